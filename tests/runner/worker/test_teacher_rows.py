"""How a teacher-forced row differs from the reference's, by two ways that must agree."""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isomatrix.runner.worker import teacher
from scipy.special import log_softmax

INF, NAN = math.inf, math.nan


def _row(values: Sequence[float] | Any) -> Any:
    return (ctypes.c_float * len(values))(*[float(value) for value in values])


def _compare(ours: Any, theirs: Any, token: int = 0) -> teacher.Comparison:
    """The comparison, after both ways were seen to agree."""
    row, reference = _row(ours), bytes(_row(theirs))
    plain, fast = teacher._plainly(row, reference, token), teacher._with_numpy(row, reference, token)
    assert plain[3:] == fast[3:]
    assert plain[:3] == pytest.approx(fast[:3], rel=1e-9, abs=1e-14)
    return plain


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.1, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_measures_are_those_of_the_definitions(seed: int, scale: float) -> None:
    random = np.random.default_rng(seed)
    theirs = random.normal(0, 4, 640).astype(np.float32)
    ours = (theirs + random.normal(0, scale, 640)).astype(np.float32)
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    found = _compare(ours, theirs, token=17)
    p, q = log_softmax(b), log_softmax(a)
    assert found.kl == pytest.approx(float((np.exp(p) * (p - q)).sum()), rel=1e-4, abs=1e-14)
    assert found.nmse == pytest.approx(float(((a - b) ** 2).sum() / (b**2).sum()), rel=1e-12)
    assert found.max_abs == pytest.approx(float(abs(a - b).max()), rel=1e-15)
    assert found.rank == int((a > a[17]).sum())
    assert found.top1 == (int(a.argmax()) == int(b.argmax()))
    assert found.unlike == 0
    assert found.digest == hashlib.blake2b(ours.tobytes(), digest_size=8).hexdigest()


def test_a_bitwise_equal_row_differs_by_nothing() -> None:
    found = _compare([1.0, 3.0, 2.0], [1.0, 3.0, 2.0], token=2)
    assert found[:6] == (0.0, 0.0, 0.0, 1, True, 0)


def test_a_divergence_is_never_below_zero() -> None:
    theirs = np.linspace(-20, 20, 640, dtype=np.float32)
    assert _compare(np.nextafter(theirs, np.float32(INF)), theirs).kl >= 0


def test_adding_a_constant_changes_no_probability_but_is_an_error_of_the_logits() -> None:
    found = _compare([2.0, 3.0, 4.0], [1.0, 2.0, 3.0])
    assert found.kl == pytest.approx(0, abs=1e-15)
    assert found.nmse == pytest.approx(3 / 14)
    assert found.max_abs == 1.0


def test_of_equal_entries_the_smaller_id_comes_first() -> None:
    found = _compare([5.0, 5.0, 5.0, 1.0], [5.0, 4.0, 3.0, 1.0], token=2)
    assert found.rank == 2
    assert found.top1 is True


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("turned", [False, True])
def test_an_entry_that_is_not_finite_on_one_side_is_counted_and_makes_all_measures_infinite(
    bad: float, turned: bool
) -> None:
    ours, theirs = [1.0, bad, 2.0], [1.0, 3.0, 2.0]
    found = _compare(theirs, ours) if turned else _compare(ours, theirs)
    assert (found.kl, found.nmse, found.max_abs, found.unlike) == (INF, INF, INF, 1)


def test_entries_that_are_equally_not_finite_are_left_out() -> None:
    found = _compare([1.0, -INF, NAN, 2.5], [1.0, -INF, NAN, 2.0])
    assert found.unlike == 0
    assert found[:3] == pytest.approx(_compare([1.0, 2.5], [1.0, 2.0])[:3])
    assert _compare([NAN, NAN], [NAN, NAN])[:3] == (0.0, 0.0, 0.0)


def test_infinities_of_other_signs_are_unlike() -> None:
    assert _compare([INF, 1.0], [-INF, 1.0]).unlike == 1


def test_a_token_whose_logit_is_nan_comes_after_all_numbers() -> None:
    found = _compare([NAN, 1.0, NAN, 2.0], [3.0, 1.0, 0.0, 2.0], token=0)
    assert found.rank == 2
    assert found.top1 is False


def test_a_reference_of_zeros_makes_any_error_infinite_and_none_zero() -> None:
    assert _compare([0.0, 1.0], [0.0, 0.0]).nmse == INF
    assert _compare([0.0, -0.0], [0.0, 0.0]).nmse == 0.0


def test_a_recorder_keeps_whole_rows_up_to_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    recorder = teacher.Recorder(str(file), 30)
    for start in (0, 3, 6):
        recorder.keep(_row([start, start + 1, start + 2]))
    recorder.close()
    assert np.fromfile(file, dtype=np.float32).tolist() == [0, 1, 2, 3, 4, 5]
