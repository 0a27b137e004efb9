"""What is kept of a logits row: digest, margin, largest entries, the probability of the sampled token."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any, NamedTuple

try:
    from _blake2 import blake2b  # what hashlib hands out, without loading OpenSSL for it
except ImportError:
    from hashlib import blake2b

__all__ = ["PLAIN_LIMIT", "Row", "describe_row", "digest", "prepare"]

PLAIN_LIMIT = 4096
"""Largest vocabulary that is described without NumPy.

Importing NumPy costs more time than a whole trial of a tiny model; a row of a large vocabulary costs more
without it. Which way is taken depends on the vocabulary alone, so that it is the same for all trials.
"""


class Row(NamedTuple):
    """Facts of one logits row. NaN entries count as smaller than all others."""

    digest: str
    nan_count: int
    margin: float
    top_ids: list[int]
    top_logits: list[float]
    log_normalizer: float


def digest(*buffers: Any) -> str:
    """BLAKE2b of the bytes of the buffers in a row, 64 bits as 16 hex digits."""
    state = blake2b(digest_size=8)
    for buffer in buffers:
        state.update(buffer)
    return state.hexdigest()


def prepare(n_vocab: int) -> None:
    """Load what rows of `n_vocab` entries need, so that it does not count as time of the first request."""
    if n_vocab > PLAIN_LIMIT:
        import numpy  # noqa: F401


def describe_row(row: Any, k: int) -> Row:
    """Facts of `row`, a ctypes array of float32, with the ids and values of its `k` largest entries.

    Of equal entries the smaller id comes first. `log_normalizer` is log(sum(exp(logit))) in float64, shifted
    by the largest entry; NaN if an entry is NaN or the largest is infinite.
    """
    describe: Callable[[Any, int], Row] = _plainly if len(row) <= PLAIN_LIMIT else _with_numpy
    return describe(row, k)


def _row(row: Any, k: int, nan_count: int, ids: list[int], log_normalizer: float) -> Row:
    logits = [float(row[index]) for index in ids]
    margin = logits[0] - logits[1] if len(logits) > 1 else math.nan
    return Row(digest(row), nan_count, margin, ids[:k], logits[:k], log_normalizer)


def _plainly(row: Any, k: int) -> Row:
    values: list[float] = row[:]
    n_bad = len(values) - sum(map(math.isfinite, values))
    numbers = [value for value in values if value == value] if n_bad else values
    if not numbers:
        return _row(row, k, n_bad, [], math.nan)
    wanted = max(k, 2)
    largest, least = max(numbers), heapq.nlargest(wanted, numbers)[-1]
    candidates = [index for index, value in enumerate(values) if value >= least]
    ids = sorted(candidates, key=lambda index: (-values[index], index))[:wanted]
    total = math.fsum([math.exp(value - largest) for value in values])
    return _row(row, k, n_bad, ids, largest + math.log(total) if total == total else math.nan)


def _with_numpy(row: Any, k: int) -> Row:
    import numpy as np

    values = np.frombuffer(row, dtype=np.float32)
    n_bad = int(values.size - np.count_nonzero(np.isfinite(values)))
    ranked = np.where(np.isnan(values), np.float32(-np.inf), values) if n_bad else values
    wanted = min(max(k, 2), ranked.size)
    least = np.partition(ranked, ranked.size - wanted)[ranked.size - wanted]
    candidates = np.flatnonzero(ranked >= least)
    candidates = candidates[~np.isnan(values[candidates])]
    ids = candidates[np.lexsort((candidates, -values[candidates].astype(np.float64)))][:wanted]
    if not ids.size:
        return _row(row, k, n_bad, [], math.nan)
    largest = float(values[ids[0]])
    with np.errstate(invalid="ignore"):
        total = float(np.exp(values.astype(np.float64) - largest).sum())
    log_normalizer = largest + math.log(total) if total == total else math.nan
    return _row(row, k, n_bad, [int(index) for index in ids], log_normalizer)
