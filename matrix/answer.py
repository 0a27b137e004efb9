"""One request's answer as NumPy views, from a row (mapping) or straight from Arrow buffers."""

from __future__ import annotations

from bisect import bisect_right
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
    "ListColumn",
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


def _bytes_of(array: Array) -> memoryview:
    """The memory of an array; an empty one cannot be cast."""
    return np.ascontiguousarray(array).data.cast("B") if array.size else memoryview(b"")


class _Lists:
    """A list array as offsets and flat values; a null list is told from an empty one."""

    def __init__(self, array: pa.Array, dtype: Any) -> None:
        offsets = array.offsets.to_numpy()
        self.bounds: list[int] = offsets.tolist()
        self.valid = _validity(array)
        values = array.values
        if values.null_count:
            values = values.fill_null(float("nan") if pa.types.is_floating(values.type) else -1)
        self.values: Array = values.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
        self._bytes = _bytes_of(self.values)
        self._width = self.values.dtype.itemsize
        self._lengths = _bytes_of(np.diff(offsets))

    def get(self, index: int) -> Array | None:
        if self.valid is not None and not self.valid[index]:
            return None
        return self.values[self.bounds[index] : self.bounds[index + 1]]

    def raw(self, start: int, stop: int) -> bytes:
        """Lengths and values of some neighbouring lists, as bytes."""
        low, high = self.bounds[start] * self._width, self.bounds[stop] * self._width
        exact = bytes(self._lengths[4 * start : 4 * stop]) + bytes(self._bytes[low:high])
        if self.valid is None:
            return exact
        validity: bytes = self.valid[start:stop].tobytes()
        return validity + exact


class ListColumn:
    """A list column of a table, chunk by chunk, read without making Python lists."""

    def __init__(self, column: pa.ChunkedArray, dtype: Any) -> None:
        """Take a chunked list array; its values become arrays of `dtype`."""
        self._starts: list[int] = []
        self._lists: list[_Lists] = []
        start = 0
        for chunk in column.chunks:
            self._starts.append(start)
            self._lists.append(_Lists(chunk, dtype))
            start += len(chunk)

    def get(self, index: int) -> Array | None:
        """One list as an array; `None` for a null."""
        place = bisect_right(self._starts, index) - 1
        return self._lists[place].get(index - self._starts[place])


class _NestedLists:
    """A list of lists as positions by k."""

    def __init__(self, array: pa.Array, dtype: Any, fill: float) -> None:
        self._offsets: Array = array.offsets.to_numpy()
        self._valid = _validity(array)
        inner = array.values
        self._inner_offsets: Array = inner.offsets.to_numpy()
        self._values = _Lists(inner, dtype).values if len(inner) else np.empty(0, dtype)
        widths = np.unique(np.diff(self._inner_offsets))
        self._width = int(widths[0]) if len(widths) == 1 else None
        self._fill = fill
        self._dtype = dtype

    def get(self, index: int) -> Array | None:
        if self._valid is not None and not self._valid[index]:
            return None
        bounds = self._inner_offsets[self._offsets[index] : self._offsets[index + 1] + 1]
        flat = self._values[bounds[0] : bounds[-1]]
        if self._width is not None:
            return flat.reshape(len(bounds) - 1, self._width)
        rows = [flat[low - bounds[0] : high - bounds[0]] for low, high in pairwise(bounds)]
        return _padded(rows, self._fill, self._dtype)

    def raw(self, start: int, stop: int) -> bytes:
        low, high = self._offsets[start], self._offsets[stop]
        bounds = self._inner_offsets[low : high + 1]
        shape: bytes = np.diff(self._offsets[start : stop + 1]).tobytes() + np.diff(bounds).tobytes()
        data: bytes = self._values[bounds[0] : bounds[-1]].tobytes()
        return shape + data


class RequestBatch:
    """The `requests` column of one chunk, read without making Python lists."""

    def __init__(self, column: pa.ListArray) -> None:
        """Take a list of structs of the record's request type."""
        self._bounds: list[int] = column.offsets.to_pylist()
        self._valid: list[bool] = column.is_valid().to_pylist()
        values = column.values
        self._ids = _Lists(values.field("token_ids"), np.int32)
        self._digests = _Lists(values.field("logits_digests"), np.uint64)
        self._margins = _Lists(values.field("margins"), np.float32)
        self._nan_counts = _Lists(values.field("nan_counts"), np.int32)
        self._top_ids = _NestedLists(values.field("top_ids"), np.int32, -1)
        self._top_logits = _NestedLists(values.field("top_logits"), np.float32, np.nan)
        stops = values.field("stop_reason").dictionary_encode()
        self._stops: list[str] = stops.dictionary.to_pylist()
        self._stop_codes: list[int] = stops.indices.fill_null(-1).to_pylist()
        self._cells: list[int] = values.field("kv_cells_before").fill_null(-1).to_pylist()
        self._text = values.field("text")
        self._texts = _texts(self._text)

    def bounds(self, row: int) -> tuple[int, int]:
        """First and one past the last request of a row, in the flat arrays."""
        return (self._bounds[row], self._bounds[row + 1]) if self._valid[row] else (0, 0)

    def identity(self, row: int) -> tuple[Any, ...]:
        """Equal for two rows whose answers are equal in everything that a verdict looks at."""
        start, stop = self.bounds(row)
        if start == stop:
            return ()
        identity = (
            self._digests.raw(start, stop),
            self._ids.raw(start, stop),
            self._nan_counts.raw(start, stop),
            tuple(self._stop_codes[start:stop]),
            tuple(self._cells[start:stop]),
            self._texts(start, stop),
        )
        if self._digests.valid is None or self._digests.valid[start:stop].all():
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
            code, cells = self._stop_codes[index], self._cells[index]
            yield Answer(
                token_ids=np.empty(0, np.int32) if token_ids is None else token_ids,
                digests=self._digests.get(index),
                margins=self._margins.get(index),
                top=None if ids is None or logits is None or len(ids) == 0 else TopK(ids, logits),
                nan_counts=self._nan_counts.get(index),
                text=self._text[index].as_py(),
                stop_reason=None if code < 0 else self._stops[code],
                kv_cells_before=None if cells < 0 else cells,
            )

    def keys(self, row: int) -> tuple[bytes | None, bytes | None, bool | None]:
        """`digest_key`, `ids_key` and `requests_differ` of a row."""
        start, stop = self.bounds(row)
        if start == stop:
            return None, None, None
        digests = [part.tobytes() for at in range(start, stop) if (part := self._digests.get(at)) is not None]
        ids = [b"" if (part := self._ids.get(at)) is None else part.tobytes() for at in range(start, stop)]
        measured = len(digests) == stop - start
        differ = any(part != digests[0] for part in digests[1:]) if measured and stop - start > 1 else None
        return _collapsed(digests) if measured else None, _collapsed(ids), differ


def _texts(column: pa.Array) -> Callable[[int, int], bytes]:
    """A function from a range of requests to something that is equal for equal texts."""
    lengths = _bytes_of(pc.binary_length(column).fill_null(-1).to_numpy())
    _, offsets, data = column.buffers()[:3]
    starts: list[int] = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].tolist()
    view = memoryview(b"" if data is None else data)

    def raw(start: int, stop: int) -> bytes:
        return bytes(lengths[4 * start : 4 * stop]) + bytes(view[starts[start] : starts[stop]])

    return raw
