"""Facts of a logits row, by two ways that must agree."""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from isomatrix.runner.worker import rows
from scipy.special import logsumexp


def _row(values: Sequence[float]) -> Any:
    return (ctypes.c_float * len(values))(*values)


def _both(values: Sequence[float], k: int) -> tuple[rows.Row, rows.Row]:
    row = _row(values)
    return rows._plainly(row, k), rows._with_numpy(row, k)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [0, 1, 7])
def test_both_ways_agree_with_a_sort_and_a_reference_sum(seed: int, k: int) -> None:
    values = np.random.default_rng(seed).normal(0, 5, 640).astype(np.float32)
    order = np.lexsort((np.arange(640), -values.astype(np.float64)))
    for found in _both(list(values), k):
        assert found.top_ids == list(order[:k])
        assert found.top_logits == [float(values[index]) for index in order[:k]]
        assert found.margin == float(values[order[0]]) - float(values[order[1]])
        assert found.log_normalizer == pytest.approx(logsumexp(values.astype(np.float64)), rel=1e-13)
        assert found.digest == hashlib.blake2b(values.tobytes(), digest_size=8).hexdigest()
        assert found.nan_count == 0


def test_equal_entries_come_by_id_and_have_no_margin() -> None:
    for found in _both([1.0, 3.0, 3.0, 3.0, 2.0], 2):
        assert found.top_ids == [1, 2]
        assert found.margin == 0.0


def test_nan_is_counted_and_never_among_the_largest() -> None:
    for found in _both([math.nan, 1.0, math.nan, 2.0, -math.inf], 10):
        assert found.nan_count == 3
        assert found.top_ids == [3, 1, 4]
        assert found.margin == 1.0
        assert math.isnan(found.log_normalizer)


def test_an_infinite_logit_gives_no_probability() -> None:
    for found in _both([math.inf, 1.0, 2.0], 3):
        assert found.nan_count == 1
        assert found.top_ids == [0, 2, 1]
        assert math.isnan(found.log_normalizer)


def test_a_row_of_nothing_but_nan_is_described() -> None:
    for found in _both([math.nan] * 4, 3):
        assert (found.nan_count, found.top_ids, found.top_logits) == (4, [], [])
        assert math.isnan(found.margin)


def test_a_changed_bit_changes_the_digest() -> None:
    zero, other = (rows.digest(_row([0.5, value])) for value in (0.0, -0.0))
    assert zero != other


def test_the_size_of_the_vocabulary_alone_picks_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    plain, numpy = rows._plainly, rows._with_numpy
    monkeypatch.setattr(rows, "_plainly", lambda row, k: taken.append("plain") or plain(row, k))
    monkeypatch.setattr(rows, "_with_numpy", lambda row, k: taken.append("numpy") or numpy(row, k))
    for size in (rows.PLAIN_LIMIT, rows.PLAIN_LIMIT + 1):
        rows.describe_row(_row([float(size - index) for index in range(size)]), 3)
    assert taken == ["plain", "numpy"]
