"""Rounds as blocks: the exact test within rounds, and the watch on the baseline."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isomatrix.matrix.statistics.blocking import baseline_drift, stratified_exact
from isomatrix.matrix.statistics.contrast import fisher
from isomatrix.matrix.statistics.eprocess import Block
from scipy import stats


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=20))
def test_one_trial_per_arm_and_round_is_the_binomial_test_on_discordant_rounds(
    rounds: list[tuple[bool, bool]],
) -> None:
    result = stratified_exact([Block(int(a), 1, int(b), 1) for a, b in rounds])
    above, below = sum(a and not b for a, b in rounds), sum(b and not a for a, b in rounds)
    if above + below == 0:
        assert result.two_sided == 1
        return
    assert result.higher == pytest.approx(stats.binomtest(above, above + below, alternative="greater").pvalue)
    assert result.two_sided == pytest.approx(stats.binomtest(above, above + below).pvalue)


def test_a_single_stratum_is_the_one_sided_fisher_test() -> None:
    assert stratified_exact([Block(7, 9, 2, 8)]).higher == pytest.approx(fisher(7, 9, 2, 8).higher)


def test_several_strata_equal_the_enumeration_of_all_relabellings() -> None:
    strata = [Block(2, 2, 0, 2), Block(1, 1, 1, 3)]
    totals = []
    for first, second in product(range(6), range(4)):  # the trials of each stratum that could be the arm's
        own = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)][first]
        bad = sum((1, 1, 0, 0)[trial] for trial in own) + (1, 1, 0, 0)[second]
        totals.append(bad)
    assert stratified_exact(strata).higher == pytest.approx(np.mean(np.array(totals) >= 3))


def test_drift_that_both_arms_share_does_not_look_like_a_difference() -> None:
    strata = [Block(0, 4, 0, 4)] * 3 + [Block(4, 4, 4, 4)] * 3
    assert stratified_exact(strata).two_sided == 1


def test_strata_without_the_baseline_are_passed_over_and_none_at_all_is_an_error() -> None:
    with_gap = stratified_exact([Block(3, 4, 0, 4), Block(2, 2, 0, 0)])
    assert with_gap == stratified_exact([Block(3, 4, 0, 4)])
    with pytest.raises(ValueError, match="no stratum"):
        stratified_exact([Block(2, 2, 0, 0)])


def test_a_moving_baseline_is_warned_about_with_its_counts() -> None:
    drift = baseline_drift({number: (int(number >= 10), 1) for number in range(20)})
    assert drift is not None
    assert drift.moved
    assert drift.sentence.startswith("the baseline's rate moved: 0/10 (0) in the first half")


def test_a_steady_baseline_is_not() -> None:
    drift = baseline_drift({number: (number % 2, 1) for number in range(20)})
    assert drift is not None
    assert not drift.moved


def test_one_round_has_no_halves() -> None:
    assert baseline_drift({0: (1, 1), 1: (0, 0)}) is None
