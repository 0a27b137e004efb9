"""A family of contrasts: Holm and the closure of e values against independent implementations."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isomatrix.matrix.statistics.multiplicity import e_bonferroni, e_holm, holm

multipletests = pytest.importorskip("statsmodels.stats.multitest").multipletests


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_equals_statsmodels(p_values: list[float]) -> None:
    assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1], abs=1e-12)


def test_an_empty_family_has_no_adjusted_values() -> None:
    assert holm([]) == ()


def test_holm_refuses_a_nan() -> None:
    with pytest.raises(ValueError, match="p value 1"):
        holm([0.1, float("nan")])


def slow_closure(e_values: list[float]) -> list[float]:
    """By definition: the smallest mean over all subsets that hold the member."""
    members = range(len(e_values))
    return [
        min(
            float(np.mean([e_values[index] for index in subset]))
            for size in range(1, len(e_values) + 1)
            for subset in combinations(members, size)
            if member in subset
        )
        for member in members
    ]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=6))
def test_closed_e_values_are_the_worst_mean_over_all_subsets(e_values: list[float]) -> None:
    assert e_holm(e_values) == pytest.approx(slow_closure(e_values), rel=1e-9, abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12))
def test_closure_loses_nothing_against_bonferroni(e_values: list[float]) -> None:
    for closed, plain in zip(e_holm(e_values), e_bonferroni(e_values), strict=True):
        assert closed >= plain * (1 - 1e-12)


def test_arms_with_equal_evidence_pay_nothing_for_the_family() -> None:
    assert e_holm([20.0] * 9) == pytest.approx([20.0] * 9)


def test_negative_evidence_is_refused() -> None:
    with pytest.raises(ValueError, match="e value 0"):
        e_holm([-0.1, 3])
