"""One request's answer as NumPy views, from a row (mapping) or straight from Arrow buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

__all__ = [
    "Answer",
    "Array",
    "RequestBatch",
    "TopK",
    "answers_of_row",
    "digest_key",
    "ids_key",
    "requests_differ",
]

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class TopK:
    """The k largest logits of each position: `ids` and `logits`, both (positions, k).

    A position with fewer entries is padded with id -1 and logit NaN.
    """

    ids: Array
    logits: Array


@dataclass(frozen=True, eq=False)
class Answer:
    """What one request produced. `None` means not measured."""

    token_ids: Array
    digests: Array | None = None
    margins: Array | None = None
    top: TopK | None = None
    nan_counts: Array | None = None
    text: str | None = None
    stop_reason: str | None = None
    kv_cells_before: int | None = None
    projector_digest: int | None = None

    @property
    def n_nan(self) -> int:
        """NaN or infinite logits over all positions; 0 where not measured."""
        return 0 if self.nan_counts is None else int(self.nan_counts.sum())


def _array(values: Any, dtype: Any) -> Array | None:
    return None if values is None else np.asarray(values, dtype=dtype)


def _padded(rows: Sequence[Any], fill: float, dtype: Any) -> Array:
    width = max((len(row) for row in rows), default=0)
    out = np.full((len(rows), width), fill, dtype=dtype)
    for index, row in enumerate(rows):
        out[index, : len(row)] = row
    return out


def _top_of_lists(ids: Any, logits: Any) -> TopK | None:
    if ids is None or logits is None or len(ids) == 0:
        return None
    return TopK(_padded(ids, -1, np.int32), _padded(logits, np.nan, np.float32))


def _answer_of_mapping(request: Mapping[str, Any]) -> Answer:
    return Answer(
        token_ids=np.asarray(request.get("token_ids") or [], dtype=np.int32),
        digests=_array(request.get("logits_digests"), np.uint64),
        margins=_array(request.get("margins"), np.float32),
        top=_top_of_lists(request.get("top_ids"), request.get("top_logits")),
        nan_counts=_array(request.get("nan_counts"), np.int32),
        text=request.get("text"),
        stop_reason=request.get("stop_reason"),
        kv_cells_before=request.get("kv_cells_before"),
        projector_digest=request.get("projector_digest"),
    )


def answers_of_row(row: Mapping[str, Any]) -> tuple[Answer, ...]:
    """Every completed request of a stored row, in order; empty if there is none."""
    return tuple(_answer_of_mapping(request) for request in row.get("requests") or ())


def _collapsed(parts: list[bytes]) -> bytes:
    """One key of a trial's requests; equal requests count once, so 1 and 3 equal requests have one key."""
    kept = parts[:1] if all(part == parts[0] for part in parts) else parts
    return b"".join(len(part).to_bytes(4, "little") + part for part in kept)


def digest_key(answers: Sequence[Answer]) -> bytes | None:
    """Equal for two trials exactly if all their logits digests are equal; null where not measured.

    A process that answers several times with equal digests has the key of one that answers once.
    """
    if not answers or any(answer.digests is None for answer in answers):
        return None
    return _collapsed([answer.digests.tobytes() for answer in answers if answer.digests is not None])


def ids_key(answers: Sequence[Answer]) -> bytes | None:
    """As `digest_key`, for the token ids."""
    return _collapsed([answer.token_ids.tobytes() for answer in answers]) if answers else None


def requests_differ(answers: Sequence[Answer]) -> bool | None:
    """Whether identical requests of one process have different digests; null with fewer than two."""
    if len(answers) < 2 or any(answer.digests is None for answer in answers):
        return None
    first = answers[0].digests
    return any(not np.array_equal(first, answer.digests) for answer in answers[1:])  # type: ignore[arg-type]


def _validity(array: pa.Array) -> Array | None:
    """Which entries are there; `None` if all are."""
    return None if array.null_count == 0 else array.is_valid().to_numpy(zero_copy_only=False)


class _Lists:
    """A list array as offsets and flat values; a null list is told from an empty one."""

    def __init__(self, array: pa.Array, dtype: Any) -> None:
        self.offsets: Array = array.offsets.to_numpy()
        self.valid = _validity(array)
        values = array.values
        if values.null_count:
            values = values.fill_null(float("nan") if pa.types.is_floating(values.type) else -1)
        self.values: Array = values.to_numpy(zero_copy_only=False).astype(dtype, copy=False)

    def get(self, index: int) -> Array | None:
        if self.valid is not None and not self.valid[index]:
            return None
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def raw(self, start: int, stop: int) -> bytes:
        """Lengths and values of some neighbouring lists, as bytes."""
        bounds = self.offsets[start : stop + 1]
        shape: bytes = np.diff(bounds).tobytes()
        validity = b"" if self.valid is None else self.valid[start:stop].tobytes()
        data: bytes = self.values[bounds[0] : bounds[-1]].tobytes()
        return shape + validity + data


class _NestedLists:
    """A list of lists as positions by k."""

    def __init__(self, array: pa.Array, dtype: Any, fill: float) -> None:
        self.offsets: Array = array.offsets.to_numpy()
        self.valid = _validity(array)
        self.inner = _Lists(array.values, dtype)
        self.fill = fill
        self.dtype = dtype

    def get(self, index: int) -> Array | None:
        if self.valid is not None and not self.valid[index]:
            return None
        start, stop = self.offsets[index], self.offsets[index + 1]
        bounds = self.inner.offsets[start : stop + 1]
        flat = self.inner.values[bounds[0] : bounds[-1]]
        widths = np.diff(bounds)
        if len(widths) and (widths == widths[0]).all():
            return flat.reshape(len(widths), int(widths[0]))
        return _padded(
            [flat[low - bounds[0] : high - bounds[0]] for low, high in pairwise(bounds)],
            self.fill,
            self.dtype,
        )

    def raw(self, start: int, stop: int) -> bytes:
        low, high = self.offsets[start], self.offsets[stop]
        shape: bytes = np.diff(self.offsets[start : stop + 1]).tobytes()
        return shape + self.inner.raw(int(low), int(high))


class RequestBatch:
    """The `requests` column of one record batch, read without making Python lists."""

    def __init__(self, column: pa.ListArray) -> None:
        """Take a list of structs of the record's request type."""
        self._offsets: Array = column.offsets.to_numpy()
        self._valid: Array = column.is_valid().to_numpy(zero_copy_only=False)
        values = column.values
        self._ids = _Lists(values.field("token_ids"), np.int32)
        self._digests = _Lists(values.field("logits_digests"), np.uint64)
        self._margins = _Lists(values.field("margins"), np.float32)
        self._nan_counts = _Lists(values.field("nan_counts"), np.int32)
        self._top_ids = _NestedLists(values.field("top_ids"), np.int32, -1)
        self._top_logits = _NestedLists(values.field("top_logits"), np.float32, np.nan)
        self._text = values.field("text")
        self._stop = values.field("stop_reason")
        self._stop_codes: Array = self._stop.dictionary_encode().indices.fill_null(-1).to_numpy()
        self._cells = values.field("kv_cells_before")
        self._cells_filled: Array = self._cells.fill_null(-1).to_numpy()
        self._projector = values.field("projector_digest")
        self._all_digests = self._digests.valid is None
        self._texts = _texts(self._text)

    def bounds(self, row: int) -> tuple[int, int]:
        """First and one past the last request of a row, in the flat arrays."""
        if not self._valid[row]:
            return 0, 0
        return int(self._offsets[row]), int(self._offsets[row + 1])

    def identity(self, row: int) -> tuple[bytes, ...]:
        """Equal for two rows whose answers are equal in everything that a verdict looks at."""
        start, stop = self.bounds(row)
        if start == stop:
            return ()
        identity = (
            self._digests.raw(start, stop),
            self._ids.raw(start, stop),
            self._nan_counts.raw(start, stop),
            self._stop_codes[start:stop].tobytes(),
            self._cells_filled[start:stop].tobytes(),
            self._texts(start, stop),
        )
        if self._all_digests:
            return identity  # a digest stands for its whole row of logits
        return (
            *identity,
            self._top_ids.raw(start, stop),
            self._top_logits.raw(start, stop),
            self._margins.raw(start, stop),
        )

    def answers(self, row: int) -> tuple[Answer, ...]:
        """Every completed request of a row, in order."""
        return tuple(self._answers(*self.bounds(row)))

    def _answers(self, start: int, stop: int) -> Iterator[Answer]:
        for index in range(start, stop):
            ids, logits = self._top_ids.get(index), self._top_logits.get(index)
            token_ids = self._ids.get(index)
            yield Answer(
                token_ids=np.empty(0, np.int32) if token_ids is None else token_ids,
                digests=self._digests.get(index),
                margins=self._margins.get(index),
                top=None if ids is None or logits is None or len(ids) == 0 else TopK(ids, logits),
                nan_counts=self._nan_counts.get(index),
                text=self._text[index].as_py(),
                stop_reason=self._stop[index].as_py(),
                kv_cells_before=self._cells[index].as_py(),
                projector_digest=self._projector[index].as_py(),
            )

    def keys(self, row: int) -> tuple[bytes | None, bytes | None, bool | None]:
        """`digest_key`, `ids_key` and `requests_differ` of a row."""
        start, stop = self.bounds(row)
        if start == stop:
            return None, None, None
        digests = [self._digests.get(index) for index in range(start, stop)]
        ids = [self._ids.get(index) for index in range(start, stop)]
        known = [part.tobytes() for part in digests if part is not None]
        measured = len(known) == stop - start
        return (
            _collapsed(known) if measured else None,
            _collapsed([b"" if part is None else part.tobytes() for part in ids]),
            any(part != known[0] for part in known[1:]) if measured and len(known) > 1 else None,
        )


def _texts(column: pa.Array) -> Callable[[int, int], bytes]:
    """A function from a range of requests to their texts as bytes."""
    lengths: Array = pc.binary_length(column).fill_null(-1).to_numpy()
    _, offsets, data = column.buffers()[:3]
    starts = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    view = memoryview(data) if data is not None else memoryview(b"")

    def raw(start: int, stop: int) -> bytes:
        sizes: bytes = lengths[start:stop].tobytes()
        return sizes + bytes(view[starts[start] : starts[stop]])

    return raw
