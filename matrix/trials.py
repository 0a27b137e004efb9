"""A result's rows, as mappings or as an Arrow table, behind one small interface for all judges.

Trials whose answers are equal share a *group*, so that whatever depends on answers alone is worked out once
a group: a result of 100,000 trials usually has a handful.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .answer import Answer, RequestBatch, answers_of_row, digest_key, ids_key, requests_differ
from .log_markers import NOTABLE_PATTERN, MarkerHit, faults, notable_markers
from .outcome import Outcome, Verdict
from .teacher import TeacherPass, TeacherTable, teacher_of_row

__all__ = ["RowTrials", "TableTrials", "Trials", "trials_of"]

Rows = Sequence[Mapping[str, Any]]


class Trials:
    """Trials by index. Subclasses say where values, answers and logs come from."""

    def __init__(self, count: int) -> None:
        """Take the number of trials."""
        self.count = count

    def values(self, name: str) -> list[Any]:
        """A whole column as Python values; nulls where the column is missing."""
        raise NotImplementedError

    def value(self, index: int, name: str) -> Any:
        """One value; `None` where the column is missing."""
        raise NotImplementedError

    def answers(self, index: int) -> tuple[Answer, ...]:
        """The completed requests of a trial."""
        raise NotImplementedError

    def teacher(self, index: int) -> TeacherPass | None:
        """The teacher-forced pass of a trial; `None` if there was none."""
        raise NotImplementedError

    def teacher_keys(self) -> list[tuple[bytes, int] | None]:
        """Equal for trials whose passes are equal; `None` without one.

        The digests of a pass and what it was scored against determine everything that it measured.
        """
        raise NotImplementedError

    def _identities(self) -> Iterable[tuple[Any, ...]]:
        raise NotImplementedError

    def _logs_with_anchors(self) -> list[int]:
        raise NotImplementedError

    @cached_property
    def arms(self) -> list[str]:
        """Arm of each trial."""
        return self.values("arm")

    @cached_property
    def groups(self) -> list[int]:
        """Group of each trial, numbered by first appearance."""
        known: dict[tuple[Any, ...], int] = {}
        return [known.setdefault(identity, len(known)) for identity in self._identities()]

    @cached_property
    def group_keys(self) -> list[tuple[bytes | None, bytes | None, bool | None]]:
        """`digest_key`, `ids_key` and `requests_differ` of each group."""
        members = dict(zip(reversed(self.groups), range(self.count - 1, -1, -1), strict=True))
        return [self._keys(members[group]) for group in range(len(members))]

    def _keys(self, index: int) -> tuple[bytes | None, bytes | None, bool | None]:
        raise NotImplementedError

    def digest_key(self, index: int) -> bytes | None:
        """Equal for trials with equal logits digests; `None` where not measured."""
        return self.group_keys[self.groups[index]][0]

    def ids_key(self, index: int) -> bytes | None:
        """Equal for trials with equal token ids; `None` where nothing was answered."""
        return self.group_keys[self.groups[index]][1]

    def requests_differ(self, index: int) -> bool | None:
        """Whether the requests of a trial differ in digests; `None` with fewer than two."""
        return self.group_keys[self.groups[index]][2]

    @cached_property
    def markers(self) -> dict[int, tuple[MarkerHit, ...]]:
        """Fault and suspicious log markers of the trials that have any."""
        found = {index: notable_markers(self.value(index, "native_log")) for index in self._logs_with_anchors()}
        return {index: hits for index, hits in found.items() if hits}

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """Effective outcomes: a fault in the log of an ok trial makes it a backend error."""
        return [
            Outcome.BACKEND_ERROR if outcome is Outcome.OK and faults(self.markers.get(index, ())) else outcome
            for index, outcome in enumerate(_stored_outcomes(self))
        ]

    @cached_property
    def judged_outcomes(self) -> list[Outcome]:
        """Effective outcomes as the stored verdicts imply them, without reading logs again."""
        return [
            Outcome.BACKEND_ERROR if outcome is Outcome.OK and verdict == Verdict.FAILED.value else outcome
            for outcome, verdict in zip(_stored_outcomes(self), self.values("verdict"), strict=True)
        ]


def _stored_outcomes(trials: Trials) -> list[Outcome]:
    known = {outcome.value: outcome for outcome in Outcome}
    return [known[value] for value in trials.values("outcome")]


class RowTrials(Trials):
    """Trials from rows as `pyarrow.Table.to_pylist` gives them."""

    def __init__(self, rows: Rows) -> None:
        """Take the rows; they are not copied."""
        super().__init__(len(rows))
        self._rows = rows

    def values(self, name: str) -> list[Any]:
        """A whole column as Python values."""
        return [row.get(name) for row in self._rows]

    def value(self, index: int, name: str) -> Any:
        """One value; `None` where the row has no such field."""
        return self._rows[index].get(name)

    def answers(self, index: int) -> tuple[Answer, ...]:
        """The completed requests of a trial."""
        return answers_of_row(self._rows[index])

    def teacher(self, index: int) -> TeacherPass | None:
        """The teacher-forced pass of a trial; `None` if there was none."""
        return teacher_of_row(self._rows[index])

    def teacher_keys(self) -> list[tuple[bytes, int] | None]:
        """Equal for trials whose passes are equal; `None` without one."""
        passes = map(teacher_of_row, self._rows)
        return [None if one is None else (one.digests.tobytes(), one.reference) for one in passes]

    def _identities(self) -> Iterable[tuple[Any, ...]]:
        return (tuple(_identity(answer) for answer in answers_of_row(row)) for row in self._rows)

    def _keys(self, index: int) -> tuple[bytes | None, bytes | None, bool | None]:
        answers = self.answers(index)
        return digest_key(answers), ids_key(answers), requests_differ(answers)

    def _logs_with_anchors(self) -> list[int]:
        return [index for index, row in enumerate(self._rows) if row.get("native_log")]


def _identity(answer: Answer) -> tuple[Any, ...]:
    logits: tuple[Any, ...] = ()
    if answer.digests is None and answer.top is not None:
        logits = (answer.top.ids.tobytes(), answer.top.logits.tobytes(), answer.top.ids.shape)
    if answer.digests is None and answer.margins is not None:
        logits = (*logits, answer.margins.tobytes())
    return (
        answer.token_ids.tobytes(),
        None if answer.digests is None else answer.digests.tobytes(),
        None if answer.nan_counts is None else answer.nan_counts.tobytes(),
        answer.text,
        answer.stop_reason,
        answer.kv_cells_before,
        *logits,
    )


class TableTrials(Trials):
    """Trials from an Arrow table of the record's schema, without making Python objects of the requests."""

    def __init__(self, table: pa.Table) -> None:
        """Take a table with at least the columns `arm`, `outcome` and `requests`."""
        super().__init__(table.num_rows)
        self._table = table
        self._starts: list[int] = []
        self._requests: list[RequestBatch] = []
        start = 0
        for chunk in table.column("requests").chunks:
            self._starts.append(start)
            self._requests.append(RequestBatch(chunk))
            start += len(chunk)

    def values(self, name: str) -> list[Any]:
        """A whole column as Python values; repeated texts are one object."""
        if name not in self._table.column_names:
            return [None] * self.count
        column = self._table.column(name)
        if not pa.types.is_string(column.type):
            plain: list[Any] = column.to_pylist()
            return plain
        out: list[Any] = []
        for chunk in column.chunks:
            encoded = chunk.dictionary_encode()
            words = encoded.dictionary.to_pylist()
            out.extend(None if code is None else words[code] for code in encoded.indices.to_pylist())
        return out

    def value(self, index: int, name: str) -> Any:
        """One value; `None` where the table has no such column."""
        return self._table.column(name)[index].as_py() if name in self._table.column_names else None

    def answers(self, index: int) -> tuple[Answer, ...]:
        """The completed requests of a trial."""
        batch = self._batch_of(index)
        return self._requests[batch].answers(index - self._starts[batch])

    def teacher_keys(self) -> list[tuple[bytes, int] | None]:
        """Equal for trials whose passes are equal; `None` without one."""
        return self._teachers.keys()

    def teacher(self, index: int) -> TeacherPass | None:
        """The teacher-forced pass of a trial; `None` if there was none."""
        return self._teachers.get(index)

    @cached_property
    def _teachers(self) -> TeacherTable:
        return TeacherTable(self._table)

    def _batch_of(self, index: int) -> int:
        low, high = 0, len(self._starts)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._starts[middle] <= index else (low, middle)
        return low

    def _identities(self) -> Iterable[tuple[Any, ...]]:
        stops = [*self._starts[1:], self.count]
        for batch, start, stop in zip(self._requests, self._starts, stops, strict=True):
            yield from map(batch.identity, range(stop - start))

    def _keys(self, index: int) -> tuple[bytes | None, bytes | None, bool | None]:
        batch = self._batch_of(index)
        return self._requests[batch].keys(index - self._starts[batch])

    def _logs_with_anchors(self) -> list[int]:
        if "native_log" not in self._table.column_names:
            return []
        chunks = [
            piece
            for chunk in self._table.column("native_log").chunks
            for piece in (chunk.slice(at, _LOG_SLICE) for at in range(0, len(chunk), _LOG_SLICE))
        ]
        # Two threads: Arrow releases the interpreter lock while it matches.
        with ThreadPoolExecutor(max_workers=2) as pool:
            masks = list(pool.map(lambda chunk: pc.match_substring_regex(chunk, NOTABLE_PATTERN), chunks))
        return [] if not masks else pc.indices_nonzero(pa.chunked_array(masks).fill_null(False)).to_pylist()


_LOG_SLICE = 4096
"""Rows whose logs one task scans."""


def trials_of(source: pa.Table | Rows | Trials) -> Trials:
    """Trials from a table or from rows."""
    if isinstance(source, Trials):
        return source
    return TableTrials(source) if isinstance(source, pa.Table) else RowTrials(source)
