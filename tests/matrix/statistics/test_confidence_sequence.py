"""Bounds that hold at every moment at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isomatrix.matrix.statistics.confidence_sequence import (
    FRACTIONS,
    WEIGHTS,
    PairedDifference,
    lower_bound_always,
    rate_above_e,
    rate_below_e,
    rate_interval_always,
    upper_bound_always,
)
from isomatrix.matrix.statistics.interval import clopper_pearson, upper_bound
from scipy import stats


def test_starting_shares_make_one_whole() -> None:
    assert WEIGHTS.sum() == pytest.approx(1)
    assert np.all((FRACTIONS > 0) & (FRACTIONS <= 1))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 6), st.integers(0, 20), st.floats(0.05, 0.95))
def test_evidence_equals_the_mixture_of_likelihood_ratios(bad: int, clean: int, bound: float) -> None:
    slow = sum(
        weight * stats.binom.pmf(bad, bad + clean, (1 - fraction) * bound) / stats.binom.pmf(bad, bad + clean, bound)
        for fraction, weight in zip(FRACTIONS, WEIGHTS, strict=True)
    )
    assert rate_below_e(bad, bad + clean, bound) == pytest.approx(slow, rel=1e-8)


@pytest.mark.parametrize("excess", [0.0, 0.1, 0.5])
def test_mean_evidence_is_at_most_one_for_every_rate_at_or_above_the_bound(excess: float) -> None:
    for runs in (1, 7, 30):
        mass = stats.binom.pmf(np.arange(runs + 1), runs, 0.2 + excess)
        mean = sum(m * rate_below_e(bad, runs, 0.2) for bad, m in enumerate(mass))
        assert mean <= 1 + 1e-9


def test_bound_is_never_crossed_more_often_than_it_promises() -> None:
    # Exact, by dynamic programming: the chance that 60 looks ever put the bound below the true rate.
    rate, alive, crossed = 0.25, np.array([1.0]), 0.0
    for runs in range(1, 61):
        alive = np.convolve(alive, [1 - rate, rate])
        below = np.array([rate_below_e(bad, runs, rate) >= 20 for bad in range(runs + 1)])
        crossed += alive[below].sum()
        alive[below] = 0
    assert 0.01 < crossed <= 0.05


def test_a_fixed_size_bound_looked_at_every_time_breaks_its_promise() -> None:
    rate, alive, crossed = 0.25, np.array([1.0]), 0.0
    for runs in range(1, 41):
        alive = np.convolve(alive, [1 - rate, rate])
        below = np.array([upper_bound(bad, runs).value < rate for bad in range(min(runs, 6) + 1)])
        crossed += alive[: len(below)][below].sum()
        alive[: len(below)][below] = 0
    assert crossed > 0.1


@pytest.mark.parametrize(("bad", "runs"), [(0, 10), (0, 40), (3, 25)])
def test_bound_is_where_the_evidence_reaches_its_level(bad: int, runs: int) -> None:
    bound = upper_bound_always(bad, runs).value
    assert rate_below_e(bad, runs, bound) == pytest.approx(20, rel=1e-3)
    assert bound > upper_bound(bad, runs).value


def test_watching_costs_little_where_an_arm_never_fails() -> None:
    assert upper_bound_always(0, 30).value < 0.106  # against 0.095 for a single look


def test_lower_bound_and_interval_mirror_the_upper_bound() -> None:
    assert lower_bound_always(9, 10).value == pytest.approx(1 - upper_bound_always(1, 10).value)
    assert rate_above_e(9, 10, 0.3) == pytest.approx(rate_below_e(1, 10, 0.7))
    interval, single = rate_interval_always(4, 20), clopper_pearson(4, 20)
    assert interval.low < single.low < 0.2 < single.high < interval.high


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), max_size=25), st.floats(0.05, 0.9))
def test_equivalence_is_the_weaker_of_two_bets(differences: list[float], margin: float) -> None:
    state = PairedDifference()
    for difference in differences:
        state = state.after(difference)
    sides = [
        sum(
            weight * math.prod(1 - fraction * (sign * difference - margin) / (1 - margin) for difference in differences)
            for fraction, weight in zip(FRACTIONS, WEIGHTS, strict=True)
        )
        for sign in (1, -1)
    ]
    assert state.within_e(margin) == pytest.approx(min(sides), rel=1e-8, abs=1e-12)


def test_order_of_the_rounds_does_not_matter() -> None:
    forward, backward = PairedDifference(), PairedDifference()
    differences = [0.0, 1.0, -0.5, 0.0, 0.25]
    for difference in differences:
        forward = forward.after(difference)
    for difference in reversed(differences):
        backward = backward.after(difference)
    assert forward == backward


def test_interval_of_the_difference_holds_the_observed_one_and_narrows() -> None:
    state = PairedDifference()
    assert state.interval() == pytest.approx((-1, 1), abs=1e-5)
    widths = []
    for _ in range(3):
        for difference in (1.0, 1.0, 0.0, 1.0, 0.0) * 4:
            state = state.after(difference)
        low, high = state.interval()
        assert low < 0.6 < high
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.6


@pytest.mark.parametrize("call", [lambda: rate_below_e(0, 3, 0), lambda: PairedDifference().within_e(1)])
def test_a_bound_at_the_end_of_the_scale_is_refused(call: object) -> None:
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        call()  # type: ignore[operator]


def test_a_difference_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match="not in -1"):
        PairedDifference().after(1.5)
