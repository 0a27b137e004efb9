"""The worker's answer: JSON lines from the result pipe, turned into fields of the record.

The protocol is in `docs/worker-protocol.md`. Nothing that a faulty worker sends raises here: a line that
breaks the protocol makes the answer incomplete and says why.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from ..matrix.outcome import Outcome
from ..matrix.schema import REQUEST_FIELDS, TEACHER_COLUMNS, request_type
from .errors import UserError

__all__ = ["MAX_LINE_BYTES", "BadInput", "LineReader", "OversizedLine", "Transcript"]

MAX_LINE_BYTES = 256 * 1024 * 1024
"""A longer line is no answer of ours: 100,000 tokens with ten logits each take about 40 MB."""

FAILURES = {
    "load_failure": Outcome.LOAD_FAILURE,
    "refused": Outcome.REFUSED,
    "backend_error": Outcome.BACKEND_ERROR,
    "out_of_memory": Outcome.OUT_OF_MEMORY,
}

_BAD_INPUT = "bad_input"
_STAGES = ("prompt", "generate", "teacher")


class BadInput(UserError):
    """The user's mistake (a missing file, a prompt longer than the context): every trial would repeat it."""


class OversizedLine(Exception):
    """The worker sent more than `MAX_LINE_BYTES` without an end of line."""


class LineReader:
    """Splits a byte stream into lines, whatever the pieces it arrives in."""

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that `data` completes. Raises `OversizedLine`."""
        *whole, rest = data.split(b"\n")
        for line in whole:
            yield b"".join([*self._pieces, line])
            self._pieces, self._size = [], 0
        if rest:
            self._pieces.append(rest)
            self._size += len(rest)
        if self._size > self._max_bytes:
            raise OversizedLine(f"a line of the answer is longer than {self._max_bytes} bytes")

    @property
    def pending(self) -> int:
        """Bytes of an unfinished line."""
        return self._size


class Transcript:
    """What one worker has said so far."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {"progress_stage": None}
        self._library: dict[str, Any] = {}
        self._teacher: dict[str, Any] = {}
        self._requests: list[dict[str, Any]] = []
        self._lines = 0
        self._done: int | None = None
        self.failure: tuple[Outcome, str] | None = None
        self.bad_input: str | None = None
        self.broken: str | None = None

    def add(self, line: bytes) -> Mapping[str, Any] | None:
        """Take in one line; returns the event, or None where the line is not one."""
        self._lines += 1
        try:
            event = json.loads(line)
            name = event["event"]
            handler = getattr(self, f"_on_{name}", None) if isinstance(name, str) else None
            if handler is not None:
                handler(event)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            self.mark_broken(f"line {self._lines} of the answer breaks the protocol: {_one_line(error)}")
            return None
        return dict(event)

    def mark_broken(self, why: str) -> None:
        """Say that the answer cannot be trusted; the first reason stands."""
        self.broken = self.broken or why

    @property
    def complete(self) -> bool:
        """Whether `done` came, with the announced number of requests and nothing broken."""
        return self._done is not None and self.broken is None and self.failure is None

    def progress(self) -> str:
        """How far the worker came, in words."""
        stage = self._fields["progress_stage"]
        if stage is None:
            return "no event"
        if stage not in ("prompt", "generate"):
            return f"last stage {stage}"
        done = self._fields["progress_generated" if stage == "generate" else "progress_prompt_tokens"]
        return f"last stage {stage}, request {self._fields['progress_request']}, {done} tokens"

    def fields(self) -> dict[str, Any]:
        """The columns of the record that come from the answer; unmeasured ones are None or absent."""
        first = self._requests[0] if self._requests else {}
        fields = dict(self._fields)
        evidence = {**fields.pop("evidence", {}), **self._library}
        fields["evidence"] = _json(evidence) if evidence else None
        fields["n_requests"] = len(self._requests)
        fields["requests"] = self._requests
        fields.update(self._teacher)
        for name in ("token_ids", "logits_digests", "n_prompt_tokens", "n_generated", "stop_reason", "text"):
            fields[name] = first.get(name)
        for name in ("prompt_s", "generate_s"):
            times = [request[name] for request in self._requests if request[name] is not None]
            fields[name] = sum(times) if times else None
        return fields

    def _on_started(self, event: Mapping[str, Any]) -> None:
        self._fields["progress_stage"] = "started"
        self._fields["python"] = _optional(event, "python", str)
        self._library["worker_version"] = event.get("worker_version")

    def _on_library(self, event: Mapping[str, Any]) -> None:
        self._fields["library"] = _optional(event, "library", str)
        self._fields["build"] = _optional(event, "build", str)
        self._library.update({name: event.get(name) for name in ("system_info", "devices")})

    def _on_loaded(self, event: Mapping[str, Any]) -> None:
        self._fields["progress_stage"] = "loaded"
        self._fields["load_s"] = _optional(event, "load_s", int, float)
        self._fields["applied"] = _json(event["applied"])
        self._fields["evidence"] = dict(event["evidence"])

    def _on_progress(self, event: Mapping[str, Any]) -> None:
        stage, request, done = event["stage"], event["request"], event["done"]
        if stage not in _STAGES or not isinstance(request, int) or not isinstance(done, int):
            raise ValueError(f"progress with stage {stage!r}, request {request!r}, done {done!r}")
        if stage == "teacher":
            self._fields["progress_stage"] = stage  # how far the request came stays as it is
        elif stage == "prompt":
            self._at(stage, request, done, 0)
        elif request == self._fields.get("progress_request"):
            self._at(stage, request, self._fields["progress_prompt_tokens"], done)
        else:
            self._at(stage, request, None, done)

    def _on_request(self, event: Mapping[str, Any]) -> None:
        record = _request_record(event)
        if record["request"] != len(self._requests):
            raise ValueError(f"request {record['request']!r} where {len(self._requests)} was next")
        self._requests.append(record)
        self._at("generate", record["request"], record["n_prompt_tokens"], record["n_generated"])

    def _on_teacher(self, event: Mapping[str, Any]) -> None:
        columns = [column for column in TEACHER_COLUMNS if column.name in event]
        self._teacher = {column.name: _decoded(event[column.name], column.type) for column in columns}
        for column in columns:
            pa.array([self._teacher[column.name]], type=column.type)
        self._fields["progress_stage"] = "teacher"

    def _on_plant(self, event: Mapping[str, Any]) -> None:
        self._fields["plant_fired"] = bool(event["fired"])
        told = {name: value for name, value in event.items() if name not in ("event", "t", "kind", "fired")}
        self._fields["plant_report"] = _json(told)

    def _on_error(self, event: Mapping[str, Any]) -> None:
        kind, message = event["kind"], str(event["message"])
        where = event.get("where")
        text = f"{message} (in {where})" if where else message
        if kind == _BAD_INPUT:
            self.bad_input = self.bad_input or message
        elif kind not in FAILURES:
            raise ValueError(f"error of unknown kind {kind!r}: {text}")
        self.failure = self.failure or (FAILURES.get(kind, Outcome.NO_RESULT), text)

    def _on_done(self, event: Mapping[str, Any]) -> None:
        self._fields["progress_stage"] = "done"
        if event["n_requests"] != len(self._requests):
            raise ValueError(f"done after {event['n_requests']!r} requests, of which {len(self._requests)} came")
        self._done = len(self._requests)

    def _at(self, stage: str, request: int, prompt_tokens: int | None, generated: int | None) -> None:
        self._fields["progress_stage"] = stage
        self._fields["progress_request"] = request
        self._fields["progress_prompt_tokens"] = prompt_tokens
        self._fields["progress_generated"] = generated


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _optional(event: Mapping[str, Any], name: str, *kinds: type) -> Any:
    value = event.get(name)
    if value is not None and not isinstance(value, kinds):
        raise ValueError(f"{name} is {value!r}")
    return value


def _request_record(event: Mapping[str, Any]) -> dict[str, Any]:
    record = {column.name: _decoded(event.get(column.name), column.type) for column in REQUEST_FIELDS}
    # Converting once here turns a field of the wrong type into a broken answer instead of an unwritable row.
    pa.array([record], type=request_type())
    return record


def _decoded(value: Any, kind: pa.DataType) -> Any:
    """Digests come as 16 hex digits, because JSON readers elsewhere round large integers."""
    if value is None:
        return None
    if kind == pa.uint64():
        return int(value, 16)
    if pa.types.is_list(kind) and kind.value_type == pa.uint64():
        return [int(digest, 16) for digest in value]
    return value
