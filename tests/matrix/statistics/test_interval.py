"""One arm: reference values and the coverage that the exact interval promises."""

from __future__ import annotations

import numpy as np
import pytest
from isomatrix.matrix.statistics.interval import clopper_pearson, lower_bound, upper_bound
from scipy import stats


@pytest.mark.parametrize(("runs", "high"), [(5, 0.522), (10, 0.308), (20, 0.168), (30, 0.116), (100, 0.036)])
def test_interval_after_no_failure_has_the_published_upper_end(runs: int, high: float) -> None:
    interval = clopper_pearson(0, runs)
    assert interval.low == 0
    assert round(interval.high, 3) == high


def test_interval_of_five_in_ten_has_the_published_ends() -> None:
    interval = clopper_pearson(5, 10)
    assert (round(interval.low, 3), round(interval.high, 3)) == (0.187, 0.813)


@pytest.mark.parametrize(
    ("bad", "runs", "ends"),
    [(8, 54, (6.6, 27.1)), (0, 10, (0, 30.8)), (1, 5, (0.5, 71.6)), (0, 3, (0, 70.8))],
)
def test_intervals_of_the_published_sweep(bad: int, runs: int, ends: tuple[float, float]) -> None:
    interval = clopper_pearson(bad, runs)
    assert (round(100 * interval.low, 1), round(100 * interval.high, 1)) == ends


@pytest.mark.parametrize(("runs", "percent"), [(5, 45), (10, 26), (20, 14), (30, 9.5), (59, 5.0), (100, 3.0)])
def test_one_sided_bound_after_no_failure_is_the_closed_form(runs: int, percent: float) -> None:
    bound = upper_bound(0, runs).value
    assert bound == pytest.approx(1 - 0.05 ** (1 / runs), rel=1e-9)
    assert round(100 * bound, 1 if percent < 10 else 0) == percent


def test_bounds_of_an_arm_that_always_fails_mirror_those_of_one_that_never_does() -> None:
    assert lower_bound(20, 20).value == pytest.approx(1 - upper_bound(0, 20).value)
    assert upper_bound(20, 20).value == 1


@pytest.mark.parametrize("runs", [5, 12])
def test_interval_covers_every_true_rate_at_its_level(runs: int) -> None:
    ends = [clopper_pearson(bad, runs, 0.9) for bad in range(runs + 1)]
    for rate in np.linspace(0.001, 0.999, 400):
        covered = [end.low <= rate <= end.high for end in ends]
        assert stats.binom.pmf(np.arange(runs + 1), runs, rate)[covered].sum() >= 0.9


@pytest.mark.parametrize(
    ("bad", "runs", "message"),
    [(0, 0, "no trials"), (4, 3, "4 bad of 3"), (-1, 3, "-1 bad"), (1.5, 3, "whole number")],
)
def test_impossible_counts_are_refused(bad: float, runs: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        clopper_pearson(bad, runs)  # type: ignore[arg-type]


def test_a_level_in_percent_is_refused() -> None:
    with pytest.raises(ValueError, match=r"write 95 % as 0\.95"):
        upper_bound(0, 3, 95)
