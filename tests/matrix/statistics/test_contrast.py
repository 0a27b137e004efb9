"""Two arms: published p values, an independent grid maximum, and the traps of the library underneath."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isomatrix.matrix.statistics.contrast import boschloo, fisher, smallest_p
from scipy import stats

TABLES = [
    ((4, 5, 0, 5), 0.0476, 0.0215),
    ((5, 8, 0, 8), 0.0256, 0.0081),
    ((4, 10, 0, 10), 0.0867, 0.0422),
    ((5, 20, 0, 20), 0.0471, 0.0225),
    ((18, 20, 12, 20), 0.0648, 0.0386),
]


@pytest.mark.parametrize(("table", "by_fisher", "by_boschloo"), TABLES)
def test_two_sided_reference_values(table: tuple[int, int, int, int], by_fisher: float, by_boschloo: float) -> None:
    assert round(fisher(*table).two_sided, 4) == by_fisher
    assert round(boschloo(*table).two_sided, 4) == by_boschloo


def grid_maximum(bad: int, runs: int, reference_bad: int, reference_runs: int, points: int = 4001) -> float:
    """One-sided Boschloo p by its definition: Fisher's p of every table, and a dense grid of common rates."""
    fisher_p = np.array(
        [
            [stats.hypergeom.sf(k - 1, runs + reference_runs, k + other, runs) for other in range(reference_runs + 1)]
            for k in range(runs + 1)
        ]
    )
    extreme = fisher_p <= fisher_p[bad, reference_bad] * (1 + 1e-9)
    rates = np.linspace(0, 1, points)[:, None]
    own = stats.binom.pmf(np.arange(runs + 1), runs, rates)
    other = stats.binom.pmf(np.arange(reference_runs + 1), reference_runs, rates)
    return float(np.max(np.sum((own @ extreme) * other, axis=1)))


@pytest.mark.parametrize("sizes", [(5, 5), (12, 9), (16, 16)])
def test_boschloo_is_the_maximum_over_a_dense_grid(sizes: tuple[int, int]) -> None:
    for share in ((1.0, 0.0), (0.6, 0.1), (0.8, 0.4)):
        table = (round(share[0] * sizes[0]), sizes[0], round(share[1] * sizes[1]), sizes[1])
        assert boschloo(*table).higher == pytest.approx(grid_maximum(*table), rel=1e-5)


def test_the_published_sweep_shows_nothing() -> None:
    assert round(fisher(8, 54, 0, 10).one_sided, 3) == 0.235
    assert round(boschloo(8, 54, 0, 10).one_sided, 3) == 0.146
    assert boschloo(8, 54, 0, 10).two_sided > 0.29


def test_sides_follow_the_direction_of_the_difference() -> None:
    above, below = boschloo(8, 10, 1, 10), boschloo(1, 10, 8, 10)
    assert above.higher < 0.01 < above.lower
    assert below.lower == pytest.approx(above.higher, rel=1e-6)
    assert below.two_sided == pytest.approx(2 * below.lower, rel=1e-9)


def test_arms_are_the_columns_of_the_table() -> None:
    # The transposed table is another experiment; the wrapper must not mix them up.
    transposed = stats.boschloo_exact([[7, 8], [2, 20]], alternative="greater").pvalue
    right = stats.boschloo_exact([[7, 2], [8, 20]], alternative="greater").pvalue
    assert boschloo(7, 15, 2, 22).higher == pytest.approx(right)
    assert abs(right - transposed) > 1e-3


@pytest.mark.parametrize("test", [boschloo, fisher])
def test_an_empty_arm_is_an_error_and_not_a_nan(test: type) -> None:
    with pytest.raises(ValueError, match="reference arm: no trials"):
        test(3, 5, 0, 0)
    with pytest.raises(ValueError, match="arm: no trials"):
        test(0, 0, 3, 5)


@pytest.mark.parametrize("bad", [0, 6])
def test_arms_that_all_ended_alike_have_p_one(bad: int) -> None:
    assert boschloo(bad, 6, bad, 6).two_sided == 1


@pytest.mark.parametrize("sizes", [(5, 5), (3, 8), (12, 4)])
def test_smallest_p_is_reached_by_the_most_extreme_table(sizes: tuple[int, int]) -> None:
    arm, reference = sizes
    assert smallest_p(arm, reference) == pytest.approx(2 * boschloo(arm, arm, 0, reference).higher, rel=1e-4)


def test_five_runs_against_five_cannot_go_below_two_in_a_thousand() -> None:
    assert smallest_p(5, 5) == pytest.approx(2 / 1024)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_boschloo_is_never_above_the_fisher_test_that_it_orders_by(data: st.DataObject) -> None:
    runs, reference_runs = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    bad, reference_bad = data.draw(st.integers(0, runs)), data.draw(st.integers(0, reference_runs))
    exact, conditional = (
        boschloo(bad, runs, reference_bad, reference_runs),
        fisher(bad, runs, reference_bad, reference_runs),
    )
    assert exact.higher <= conditional.higher + 1e-9
    assert exact.lower <= conditional.lower + 1e-9
