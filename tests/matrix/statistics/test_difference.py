"""Two arms: interval for the rate difference."""

from __future__ import annotations

import numpy as np
import pytest
from isomatrix.matrix.statistics.difference import difference_interval, newcombe
from isomatrix.matrix.statistics.interval import clopper_pearson
from scipy import stats


@pytest.mark.parametrize(("runs", "reference_runs"), [(4, 4), (5, 2)])
def test_exact_interval_covers_every_pair_of_rates(runs: int, reference_runs: int) -> None:
    ends = [
        [difference_interval(bad, runs, other, reference_runs) for other in range(reference_runs + 1)]
        for bad in range(runs + 1)
    ]
    low = np.array([[end.low for end in row] for row in ends])
    high = np.array([[end.high for end in row] for row in ends])
    for rate in np.linspace(0, 1, 31):
        for other in np.linspace(0, 1, 31):
            covered = (low <= rate - other + 1e-6) & (high >= rate - other - 1e-6)
            own = stats.binom.pmf(np.arange(runs + 1), runs, rate)
            mass = np.outer(own, stats.binom.pmf(np.arange(reference_runs + 1), reference_runs, other))
            assert mass[covered].sum() >= 0.95


def test_without_any_failure_the_difference_is_known_no_better_than_a_rate() -> None:
    interval = difference_interval(0, 5, 0, 5)
    assert interval.high == pytest.approx(clopper_pearson(0, 5).high, abs=1e-4)
    assert interval.low == pytest.approx(-interval.high, abs=1e-5)


def test_exchanging_the_arms_mirrors_the_interval() -> None:
    one, other = difference_interval(7, 9, 2, 12), difference_interval(2, 12, 7, 9)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low), abs=1e-5)


def test_interval_leaves_zero_out_where_the_arms_clearly_differ() -> None:
    assert difference_interval(9, 10, 0, 10).low > 0.4
    assert difference_interval(8, 54, 0, 10).low < 0 < difference_interval(8, 54, 0, 10).high


@pytest.mark.parametrize(("table", "ends"), [((56, 70, 48, 80), (0.0524, 0.3339)), ((9, 10, 3, 10), (0.1705, 0.8090))])
def test_newcombe_reproduces_the_examples_of_its_paper(
    table: tuple[int, int, int, int], ends: tuple[float, float]
) -> None:
    interval = newcombe(*table)
    assert (round(interval.low, 4), round(interval.high, 4)) == ends


def test_large_tables_say_that_they_are_approximate() -> None:
    assert difference_interval(56, 70, 48, 80).method == "Newcombe score, approximate"
    assert difference_interval(5, 20, 0, 20).method == "exact (Chan-Zhang)"


def test_a_dip_of_p_below_the_limit_does_not_end_the_interval_early() -> None:
    # Towards zero p rises above 0.025, falls below it and rises again: the first rise is the end.
    assert difference_interval(5, 56, 0, 29).low == pytest.approx(-0.0521, abs=2e-3)
