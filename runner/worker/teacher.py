"""The teacher-forced pass: the reference's tokens are fed, and every logits row is compared with the stored one.

Free generation of a wrong computation either leaves the reference's tokens, after which contexts differ and
nothing can be compared, or it does not, and hides the fault. Here every position has the reference's context.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from operator import mul, sub
from typing import Any, NamedTuple

from .channel import Progress
from .engine import Engine
from .generate import Evaluated
from .rows import PLAIN_LIMIT, digest
from .spec import FLOAT_BYTES, Teacher

__all__ = ["Comparison", "Recorder", "compare_rows", "teacher_pass"]


class Comparison(NamedTuple):
    """How one logits row differs from the reference's. Worked out in float64.

    An entry that is NaN or infinite in one row and something else in the other is *unlike*; with any of them
    `kl`, `nmse` and `max_abs` are infinite. Entries that are equally NaN or infinite in both rows are left out.
    """

    kl: float
    """Kullback-Leibler divergence of the softmax distributions, KL(reference || trial), nats."""
    nmse: float
    """Sum of squared differences over the sum of squares of the reference."""
    max_abs: float
    """Largest absolute difference, logits."""
    rank: int
    """Entries that come before the reference's token: larger ones, and equal ones with a smaller id."""
    top1: bool
    """Whether both rows put the same token first."""
    unlike: int
    digest: str


class Recorder:
    """Keeps logits rows in a file, float32 in the machine's byte order, as long as they fit into `max_bytes`."""

    def __init__(self, path: str, max_bytes: int) -> None:
        self._file = open(path, "wb")  # noqa: PTH123, SIM115 - pathlib costs start-up time; closed by `close`
        self._left = max_bytes

    def keep(self, row: Any) -> None:
        """Write a row; once one does not fit, no later one is kept either."""
        size = ctypes.sizeof(row)
        if size > self._left:
            self._left = 0
            return
        self._file.write(row)
        self._left -= size

    def close(self) -> None:
        """Everything is in the file when this returns."""
        self._file.close()


def teacher_pass(
    engine: Engine, evaluate: Callable[[Progress], Evaluated], teacher: Teacher, progress: Progress
) -> dict[str, Any]:
    """Clear memory, evaluate the prompt and feed the reference's tokens; fields of the `teacher` event.

    The prompt is evaluated as for free generation and the tokens one by one, so that all batches have the shapes
    of the free run and an identical arm gives the reference's rows bit for bit. The first row compared is the
    prompt's last. Raises `WorkerFailure` of kind `backend_error` if an evaluation fails.
    """
    tokens = teacher.token_ids
    n_bytes = engine.n_vocab * FLOAT_BYTES
    if teacher.n_vocab != engine.n_vocab:
        note = f"the reference's logits have {teacher.n_vocab} entries a row and this model {engine.n_vocab}"
        return _fields([], f"no teacher-forced pass: {note}")
    engine.clear_memory()
    prompt = evaluate(progress)
    rows: list[Comparison] = []
    with open(teacher.logits, "rb") as file:  # noqa: PTH123
        while True:
            rows.append(compare_rows(engine.logits(), file.read(n_bytes), tokens[len(rows)]))
            done = len(rows)
            full = prompt.n_cells + done > engine.n_ctx
            finished = done == len(tokens) or full
            progress.report(prompt.position + done, last=finished)
            if finished:
                break
            position = prompt.position + done - 1
            code = engine.decode([tokens[done - 1]], position, want_logits=True)
            if code != 0:
                what = f"llama_decode returned {code} in the teacher-forced pass, token {done - 1}, position {position}"
                raise engine.library.failure("teacher", what, "backend_error")
    cut = f"only {len(rows)} of the reference's {len(tokens)} positions fit into the context of {engine.n_ctx}"
    return _fields(rows, cut if len(rows) < len(tokens) else None)


def _fields(rows: list[Comparison], note: str | None) -> dict[str, Any]:
    return {
        "teacher_kl": [row.kl for row in rows],
        "teacher_nmse": [row.nmse for row in rows],
        "teacher_max_abs": [row.max_abs for row in rows],
        "teacher_rank": [row.rank for row in rows],
        "teacher_top1": [row.top1 for row in rows],
        "teacher_unlike": [row.unlike for row in rows],
        "teacher_digests": [row.digest for row in rows],
        "teacher_note": note,
    }


def compare_rows(row: Any, reference: bytes, token: int) -> Comparison:
    """Compare `row`, a ctypes array of float32, with the bytes of the reference's row of the same length."""
    compare: Callable[[Any, bytes, int], Comparison] = _plainly if len(row) <= PLAIN_LIMIT else _with_numpy
    return compare(row, reference, token)


def _plainly(row: Any, reference: bytes, token: int) -> Comparison:
    ours: list[float] = row[:]
    own = ours[token]
    if bytes(row) == reference:
        return Comparison(0.0, 0.0, 0.0, _rank(ours, own, token), True, 0, digest(row))
    theirs: list[float] = list(memoryview(reference).cast("f"))
    rank, top1 = _rank(ours, own, token), _largest(ours) == _largest(theirs)
    unlike = 0
    if not all(map(math.isfinite, ours)) or not all(map(math.isfinite, theirs)):
        unlike = sum(map(_unlike, ours, theirs))
        both = [(a, b) for a, b in zip(ours, theirs) if math.isfinite(a) and math.isfinite(b)]
        ours, theirs = [a for a, _ in both], [b for _, b in both]
    if unlike or not ours:
        bad = math.inf if unlike else 0.0
        return Comparison(bad, bad, bad, rank, top1, unlike, digest(row))
    differences = list(map(sub, theirs, ours))
    nmse = _ratio(math.fsum(map(mul, differences, differences)), math.fsum(map(mul, theirs, theirs)))
    divergence = _divergence(ours, theirs, differences)
    return Comparison(divergence, nmse, max(map(abs, differences)), rank, top1, 0, digest(row))


def _unlike(ours: float, theirs: float) -> bool:
    """Whether one of two entries is NaN or infinite, and the other is not the same."""
    if math.isfinite(ours) and math.isfinite(theirs):
        return False
    return ours != theirs and not (ours != ours and theirs != theirs)


def _ratio(error: float, squares: float) -> float:
    if squares:
        return error / squares
    return math.inf if error else 0.0


def _rank(values: list[float], own: float, token: int) -> int:
    if own != own:
        return sum(value == value for value in values)
    return sum(value > own for value in values) + values[:token].count(own)


def _largest(values: list[float]) -> int:
    """Index of the first largest entry that is a number; -1 if there is none."""
    numbers = [value for value in values if value == value]
    return values.index(max(numbers)) if numbers else -1


def _divergence(ours: list[float], theirs: list[float], differences: list[float]) -> float:
    """KL(reference || trial): the mean of log p - log q under p, with the normalizers taken out of the mean."""
    largest, shift = max(theirs), max(ours)
    weights = [math.exp(value - largest) for value in theirs]
    total = math.fsum(weights)
    moved = math.fsum(map(mul, weights, differences)) / total
    own_total = math.fsum([math.exp(value - shift) for value in ours])
    return max(moved + shift + math.log(own_total) - largest - math.log(total), 0.0)


def _with_numpy(row: Any, reference: bytes, token: int) -> Comparison:
    import numpy as np

    ours = np.frombuffer(row, dtype=np.float32)
    own = ours[token]
    above = np.count_nonzero(~np.isnan(ours) if np.isnan(own) else ours > own)
    rank = int(above + np.count_nonzero(ours[:token] == own))
    if bytes(row) == reference:
        return Comparison(0.0, 0.0, 0.0, rank, True, 0, digest(row))
    theirs = np.frombuffer(reference, dtype=np.float32)
    top1 = _first_largest(ours) == _first_largest(theirs)
    finite = np.isfinite(ours) & np.isfinite(theirs)
    unlike = 0
    if not finite.all():
        equal = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        unlike = int(np.count_nonzero(~finite & ~equal))
    if unlike or not finite.any():
        bad = math.inf if unlike else 0.0
        return Comparison(bad, bad, bad, rank, top1, unlike, digest(row))
    a, b = ours[finite].astype(np.float64), theirs[finite].astype(np.float64)
    difference = b - a
    nmse = _ratio(float(difference @ difference), float(b @ b))
    return Comparison(_divergence_of(a, b, difference), nmse, float(abs(difference).max()), rank, top1, 0, digest(row))


def _first_largest(values: Any) -> int:
    import numpy as np

    numbers = np.where(np.isnan(values), np.float32(-np.inf), values)
    place = int(numbers.argmax())
    if np.isnan(values[place]):  # all others are minus infinity or NaN
        there = np.flatnonzero(~np.isnan(values))
        return int(there[0]) if there.size else -1
    return place


def _divergence_of(ours: Any, theirs: Any, difference: Any) -> float:
    import numpy as np

    largest, shift = float(theirs.max()), float(ours.max())
    weights = np.exp(theirs - largest)
    total = float(weights.sum())
    moved = float(weights @ difference) / total
    normalizer = largest + math.log(total)
    return max(moved + shift + math.log(float(np.exp(ours - shift).sum())) - normalizer, 0.0)
