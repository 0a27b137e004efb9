"""The e-process of two arms: against a slow independent product, and the properties that make it valid."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isomatrix.matrix.statistics.eprocess import Block, TwoStreams, two_streams
from scipy import stats

trials = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=25)
blocks = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(0, 3), st.integers(1, 3)).map(
        lambda b: Block(min(b[0], b[1]), b[1], min(b[2], b[3]), b[3])
    ),
    min_size=1,
    max_size=8,
)


def exact_product(outcomes: list[tuple[bool, bool]]) -> Fraction:
    """The construction in exact arithmetic, trial by trial, one trial per arm and block."""
    prior = Fraction(18, 100)
    e, own, other = Fraction(1), 0, 0
    for number, (bad, reference_bad) in enumerate(outcomes):
        rate, reference = ((k + prior) / (number + 2 * prior) for k in (own, other))
        pooled = (rate + reference) / 2
        e *= (rate if bad else 1 - rate) / (pooled if bad else 1 - pooled)
        e *= (reference if reference_bad else 1 - reference) / (pooled if reference_bad else 1 - pooled)
        own, other = own + bad, other + reference_bad
    return e


@settings(max_examples=60, deadline=None)
@given(trials)
def test_equals_the_product_in_exact_arithmetic(outcomes: list[tuple[bool, bool]]) -> None:
    state = two_streams(Block(int(bad), 1, int(reference), 1) for bad, reference in outcomes)
    assert state.e == pytest.approx(float(exact_product(outcomes)), rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(blocks)
def test_any_block_sizes_equal_the_likelihood_ratio_of_binomials(sequence: list[Block]) -> None:
    e, own, runs, other, others = 1.0, 0, 0, 0, 0
    for block in sequence:
        rate, reference = (own + 0.18) / (runs + 0.36), (other + 0.18) / (others + 0.36)
        pooled = (block.runs * rate + block.reference_runs * reference) / (block.runs + block.reference_runs)
        likelihoods = [
            stats.binom.pmf(block.bad, block.runs, p) * stats.binom.pmf(block.reference_bad, block.reference_runs, q)
            for p, q in ((rate, reference), (pooled, pooled))
        ]
        e *= likelihoods[0] / likelihoods[1]
        own, runs, other, others = (
            own + block.bad,
            runs + block.runs,
            other + block.reference_bad,
            others + block.reference_runs,
        )
    assert two_streams(sequence).e == pytest.approx(e, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(blocks, st.integers(1, 3), st.integers(1, 3), st.floats(0, 1))
def test_the_next_block_has_a_mean_of_at_most_one_under_any_common_rate(
    past: list[Block], runs: int, reference_runs: int, rate: float
) -> None:
    state = two_streams(past)
    mean = sum(
        stats.binom.pmf(bad, runs, rate)
        * stats.binom.pmf(other, reference_runs, rate)
        * np.exp(state.after(Block(bad, runs, other, reference_runs)).log_e - state.log_e)
        for bad, other in product(range(runs + 1), range(reference_runs + 1))
    )
    assert mean <= 1 + 1e-9


def test_exchanging_the_arms_changes_nothing() -> None:
    sequence = [Block(1, 1, 0, 1), Block(1, 2, 0, 1), Block(0, 1, 0, 1)]
    mirrored = [Block(b.reference_bad, b.reference_runs, b.bad, b.runs) for b in sequence]
    assert two_streams(sequence).log_e == pytest.approx(two_streams(mirrored).log_e)
    assert two_streams(sequence).difference == -two_streams(mirrored).difference


def test_a_round_without_the_baseline_compares_nothing() -> None:
    state = two_streams([Block(1, 1, 0, 1)])
    assert state.after(Block(1, 1, 0, 0)) == state
    assert TwoStreams().e == 1
    assert TwoStreams().difference == 0


def test_a_deterministic_fault_is_told_from_a_clean_baseline_in_four_rounds() -> None:
    assert two_streams([Block(1, 1, 0, 1)] * 3).e < 20 <= two_streams([Block(1, 1, 0, 1)] * 4).e


def test_impossible_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="block, reference arm: 2 bad of 1"):
        Block(0, 1, 2, 1)


def test_very_long_streams_do_not_overflow() -> None:
    assert two_streams([Block(1, 1, 0, 1)] * 2000).e > 1e300
