"""The reference's logits: how they come to be, how they are kept, and how workers get them.

Before its first trial a run records trials of the reference arm until two agree bit for bit. These recordings are
no trials of the experiment: they lie in a file of their own, are in no count, and no verdict is about them. What
is kept is every logits row that a token came from, so row 0 is the prompt's last and row i comes after i tokens.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..matrix.arm import Arm
from ..matrix.log_markers import faults, notable_markers
from ..matrix.outcome import Outcome
from ..matrix.plan import Plan
from ..matrix.schema import trials_schema
from ..matrix.teacher import reference_key
from .store import ResultFolder, StoreError
from .trial import TrialRequest

__all__ = ["ReferenceLogits", "WorkerReference", "prepared", "read_reference_logits", "record"]

MOST_RECORDINGS = 4
"""A reference arm that does not repeat within so many trials gives no logits."""

RunTrial = Callable[[Arm, TrialRequest], Mapping[str, Any]]
MakeRequest = Callable[[Arm, str, Mapping[str, Any] | None], TrialRequest]


@dataclass(frozen=True)
class ReferenceLogits:
    """What is known of the reference's logits: what `reference.json` holds.

    `note` says why there are none, or why they are fewer than the reference has tokens. `recordings` are the ids
    of the trials that were run for them, `seconds` their time.
    """

    available: bool
    note: str | None
    source: str = ""
    n_vocab: int = 0
    token_ids: tuple[int, ...] = ()
    digests: tuple[int, ...] = ()
    recordings: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def n_bytes(self) -> int:
        """Size of the logits as float32."""
        return 4 * self.n_vocab * len(self.token_ids)

    def __str__(self) -> str:
        """One line for the user."""
        if not self.available:
            return f"no teacher-forced pass: {self.note}"
        size = f"{len(self.token_ids)} positions x {self.n_vocab:,} logits, {self.n_bytes / 1e6:.1f} MB"
        return f"reference logits: {self.source}; {size}" + (f"; {self.note}" if self.note else "")

    def as_json(self) -> str:
        """As stored; digests as 16 hex digits, since JSON readers elsewhere round large integers."""
        return json.dumps({**asdict(self), "digests": [f"{digest:016x}" for digest in self.digests]}) + "\n"


def read_reference_logits(folder: ResultFolder) -> ReferenceLogits | None:
    """What the result knows of its reference's logits; None where nothing was decided yet."""
    text = folder.read_reference()
    if text is None:
        return None
    try:
        data = json.loads(text)
        digests = tuple(int(digest, 16) for digest in data["digests"])
        lists = {"token_ids": tuple(data["token_ids"]), "recordings": tuple(data["recordings"])}
        return ReferenceLogits(**{**data, **lists, "digests": digests})
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{folder.reference_file} cannot be read: {error}; restore it from a copy") from error


# Recording


def record(plan: Plan, folder: ResultFolder, make_request: MakeRequest, run: RunTrial) -> ReferenceLogits | None:
    """Record the reference arm's logits, store them with their decision, and return it.

    None where the user ended a recording: then nothing is decided. A plan whose reference has no arm (ids given
    by the user), or in which no arm wants a teacher-forced pass, needs no trial for its decision.
    """
    began = time.monotonic()
    refusal = _refusal(plan)
    if refusal is not None:
        return _stored(folder, ReferenceLogits(False, refusal))
    arm = plan.arm(plan.reference["arm"])
    with tempfile.TemporaryDirectory(prefix="isomatrix-reference-") as scratch:
        recordings = _Recordings(plan, arm, Path(scratch))
        while recordings.wants_another():
            row = recordings.run(make_request, run)
            if row["outcome"] == Outcome.INTERRUPTED.value:
                return None
        logits = recordings.result()
        if logits.available:
            folder.write_reference_logits(recordings.table(logits))
        folder.write_recordings(recordings.rows())
    return _stored(folder, replace(logits, seconds=time.monotonic() - began))


def _stored(folder: ResultFolder, logits: ReferenceLogits) -> ReferenceLogits:
    folder.write_reference(logits.as_json())
    return logits


def _refusal(plan: Plan) -> str | None:
    if not any(wants_pass(arm) for arm in plan.arms):
        return "probe.teacher_forced is off"
    if plan.reference.get("ids") is not None:
        return "ids given by the user have no logits"
    if plan.reference.get("result") is not None:
        return f"the logits of the stored result '{plan.reference['result']}' are missing"
    if _limit(plan) <= 0:
        return "reference.max_mb is 0"
    return None


def wants_pass(arm: Arm) -> bool:
    """Whether trials of this arm are to run the pass."""
    return bool(arm.configuration["probe"].get("teacher_forced"))


def _limit(plan: Plan) -> int:
    return int(float(plan.reference.get("max_mb") or 0) * 1e6)


class _Recordings:
    """Trials of the reference arm, until two agree."""

    def __init__(self, plan: Plan, arm: Arm, scratch: Path) -> None:
        self._plan = plan
        self._arm = arm
        self._scratch = scratch
        self._rows: list[dict[str, Any]] = []
        self._agreeing: int | None = None
        self._hopeless: str | None = None

    def wants_another(self) -> bool:
        """Whether another trial can still help."""
        return self._agreeing is None and self._hopeless is None and len(self._rows) < MOST_RECORDINGS

    def run(self, make_request: MakeRequest, run: RunTrial) -> Mapping[str, Any]:
        """One more trial."""
        number = len(self._rows)
        trial_id = f"recording{number}-{self._plan.trial_id(self._arm, 0)}"
        teacher = {"record": str(self._file(number)), "max_bytes": _limit(self._plan)}
        request = make_request(self._arm, trial_id, teacher)
        # Only the first request is recorded; the others of a persistent process would cost time for nothing.
        spec = {**request.spec, "probe": {**request.spec["probe"], "requests": 1}}
        row = {**run(self._arm, replace(request, spec=spec)), "trial_id": trial_id, "arm": self._arm.name}
        self._rows.append(row)
        if row["outcome"] in (Outcome.LOAD_FAILURE.value, Outcome.REFUSED.value):
            self._hopeless = f"{row['outcome']}: {row['error']}"
        elif _usable(row):
            same = [other for other in self._rows[:-1] if _usable(other) and _answer(other) == _answer(row)]
            self._agreeing = number if same else None
        return row

    def _file(self, number: int) -> Path:
        return self._scratch / f"{number}.f32"

    def result(self) -> ReferenceLogits:
        """What came of it."""
        ids = tuple(row["trial_id"] for row in self._rows)
        who = f"arm '{self._arm.name}'"
        if self._agreeing is None:
            return ReferenceLogits(False, f"{who} {self._fault()}", recordings=ids)
        row = self._rows[self._agreeing]
        n_vocab = int(json.loads(row["evidence"])["n_vocab"])
        count = self._file(self._agreeing).stat().st_size // (4 * n_vocab)
        total = len(row["token_ids"])
        limit = f"reference.max_mb ({_limit(self._plan) / 1e6:g} MB)"
        if count == 0:
            return ReferenceLogits(False, f"one row of {n_vocab:,} logits is above {limit}", recordings=ids)
        return ReferenceLogits(
            available=True,
            note=f"the first {count} of {total} positions, as many as fit into {limit}" if count < total else None,
            source=f"two recordings of {who} that agree bit for bit, {len(ids)} run",
            n_vocab=n_vocab,
            token_ids=tuple(row["token_ids"][:count]),
            digests=tuple(row["logits_digests"][:count]),
            recordings=ids,
        )

    def _fault(self) -> str:
        if self._hopeless is not None:
            return f"does not run: {self._hopeless}"
        failed = [row for row in self._rows if not _usable(row)]
        count = len(self._rows)
        if failed:
            words = failed[0]["error"] or "its native log shows a fault"
            first = f"{failed[0]['outcome']}: {words}"
            return f"has no two recordings that agree, and {len(failed)} of {count} failed ({first})"
        return f"does not repeat: no two of {count} recordings agree bit for bit"

    def table(self, logits: ReferenceLogits) -> pa.Table:
        """The logits rows with their positions, ids and digests."""
        values = np.fromfile(self._file(self._agreeing or 0), dtype=np.float32)
        rows = pa.FixedSizeListArray.from_arrays(pa.array(values), logits.n_vocab)
        count = len(logits.token_ids)
        columns = {
            "position": pa.array(range(count), pa.int32()),
            "token_id": pa.array(logits.token_ids, pa.int32()),
            "digest": pa.array(logits.digests, pa.uint64()),
            "logits": rows,
        }
        return pa.table(columns)

    def rows(self) -> pa.Table:
        """The recordings themselves, for whoever wants to look."""
        return pa.Table.from_pylist(self._rows, schema=trials_schema())


def _usable(row: Mapping[str, Any]) -> bool:
    healthy = row["outcome"] == Outcome.OK.value and bool(row["token_ids"])
    return healthy and not faults(notable_markers(row["native_log"]))


def _answer(row: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    return row["token_ids"], row["logits_digests"]


# For workers


@dataclass(frozen=True)
class WorkerReference:
    """Reference logits laid out for workers: one file of float32 rows."""

    logits: ReferenceLogits
    file: Path | None

    def section(self, arm: Arm) -> dict[str, Any] | None:
        """The `teacher` section of a trial's spec; None for a trial without a pass."""
        if self.file is None or not wants_pass(arm):
            return None
        return {
            "logits": str(self.file),
            "n_vocab": self.logits.n_vocab,
            "token_ids": list(self.logits.token_ids),
        }

    def columns(self, arm: Arm, row: Mapping[str, Any]) -> dict[str, Any]:
        """What the runner has to add to the teacher-forced columns of a row."""
        if not wants_pass(arm):
            return {"teacher_note": "no teacher-forced pass: probe.teacher_forced is off"}
        if self.file is None:
            return {"teacher_note": str(self.logits)}
        count = len(row.get("teacher_digests") or ())
        if count == 0:
            return {}
        return {"teacher_reference": reference_key(self.logits.token_ids[:count], self.logits.digests[:count])}


@contextlib.contextmanager
def prepared(folder: ResultFolder) -> Iterator[WorkerReference]:
    """The reference's logits on local disk for as long as some trials run.

    Raises `StoreError` where the stored rows are not those that their digests were taken of.
    """
    logits = read_reference_logits(folder)
    if logits is None or not logits.available:
        yield WorkerReference(logits or ReferenceLogits(False, "nothing was recorded"), None)
        return
    with tempfile.TemporaryDirectory(prefix="isomatrix-reference-") as scratch:
        file = Path(scratch) / "logits.f32"
        _lay_out(folder, logits, file)
        yield WorkerReference(logits, file)


def _lay_out(folder: ResultFolder, logits: ReferenceLogits, file: Path) -> None:
    table = folder.read_reference_logits()
    with file.open("wb") as stream:
        for chunk in table.column("logits").chunks:
            stream.write(chunk.flatten().to_numpy().astype(np.float32, copy=False).data)
    stored = (tuple(table.column("token_id").to_pylist()), tuple(table.column("digest").to_pylist()))
    if stored != (logits.token_ids, logits.digests) or _digests(file, logits.n_vocab) != logits.digests:
        raise StoreError(f"{folder.reference_logits_file}: its rows are not those that were recorded; restore it")


def _digests(file: Path, n_vocab: int) -> tuple[int, ...]:
    rows = np.fromfile(file, dtype=np.float32)
    if len(rows) % n_vocab:
        return ()
    return tuple(
        int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "big")
        for row in rows.reshape(-1, n_vocab)
    )
