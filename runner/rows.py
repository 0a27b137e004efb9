"""Rows between Python and Arrow, exact in both directions or refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from ..matrix.schema import REQUEST_FIELDS, trials_schema

__all__ = ["SCHEMA", "conform", "row_table", "sorted_rows"]

SCHEMA = trials_schema()
"""The trials schema, built once: that takes as long as writing a small part."""

_REQUEST_NAMES = frozenset(column.name for column in REQUEST_FIELDS)


def row_table(row: Mapping[str, Any]) -> pa.Table:
    """A table of one row by the trials schema; absent columns are null.

    NaN stays NaN and None becomes null. Raises ValueError naming the column for an unknown one or a value
    that its type cannot hold.
    """
    unknown = sorted(set(row) - set(SCHEMA.names))
    if unknown:
        raise ValueError(f"no column '{unknown[0]}' in the schema")
    _check_requests(row.get("requests") or ())
    return pa.table([_array(field, row.get(field.name)) for field in SCHEMA], schema=SCHEMA)


def _check_requests(requests: Sequence[Mapping[str, Any]]) -> None:
    # Arrow drops unknown keys of a struct without a word.
    for request in requests:
        unknown = sorted(set(request) - _REQUEST_NAMES)
        if unknown:
            raise ValueError(f"no field '{unknown[0]}' in a request of the schema")


def _array(field: pa.Field, value: Any) -> pa.Array:
    if isinstance(value, datetime) and value.tzinfo is None:
        raise ValueError(f"column {field.name}: {value} has no time zone")
    try:
        return pa.array([value], type=field.type, from_pandas=False)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"column {field.name}: {' '.join(str(error).split())[:300]}") from error


def conform(table: pa.Table, schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
    """`table` with exactly `columns`, in the types of `schema`; those it lacks are null."""
    fields = [schema.field(name) for name in columns]
    wanted = pa.schema(fields, metadata=schema.metadata)
    if table.schema.equals(wanted):  # all but the notes that Parquet adds to every field
        return pa.Table.from_arrays(table.columns, schema=wanted)
    present = set(table.schema.names)
    arrays = [
        table.column(field.name).cast(field.type)
        if field.name in present
        else pa.chunked_array([pa.nulls(table.num_rows, field.type)])
        for field in fields
    ]
    return pa.table(arrays, schema=wanted)


def sorted_rows(table: pa.Table) -> pa.Table:
    """Rows by round, position and id."""
    keys = zip(
        table.column("round").to_pylist(),
        table.column("position").to_pylist(),
        table.column("trial_id").to_pylist(),
        strict=True,
    )
    order = [index for _, index in sorted((_nulls_last(key), index) for index, key in enumerate(keys))]
    if order == list(range(table.num_rows)):
        return table
    # Slices and not `take`: that one joins all chunks of a text column and fails above 2 GiB of native logs.
    return pa.concat_tables([table.slice(index, 1) for index in order])


def _nulls_last(key: tuple[Any, ...]) -> tuple[tuple[bool, Any], ...]:
    return tuple((part is None, 0 if part is None else part) for part in key)
