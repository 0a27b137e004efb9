"""Designs: published runs per arm, and exact power against plain enumeration with the library's own test."""

from __future__ import annotations

import numpy as np
import pytest
from isomatrix.matrix.statistics.contrast import boschloo
from isomatrix.matrix.statistics.power import (
    EXACT_RUNS,
    Test,
    clean_runs,
    fixed_power,
    runs_for_power,
    runs_to_see_one,
    thresholds,
)
from scipy import stats

# Fisher and Boschloo, one-sided, 80 %, at alpha .05, .025 and .005.
PUBLISHED = {
    (0.9, 0.0): ((5, 4), (5, 5), (7, 6)),
    (0.5, 0.0): ((10, 8), (12, 10), (17, 15)),
    (0.3, 0.0): ((21, 18), (21, 21), (33, 29)),
    (0.2, 0.0): ((33, 27), (39, 33), (50, 44)),
    (0.1, 0.0): ((66, 54), (78, 66), (101, 90)),
    (0.9, 0.5): ((19, 17), (23, 20), (33, 30)),
    (0.3, 0.05): ((34, 28), (39, 36), (56, 51)),
}


@pytest.mark.parametrize("rates", PUBLISHED)
def test_runs_for_eighty_percent(rates: tuple[float, float]) -> None:
    found = tuple(
        tuple(runs_for_power(*rates, alpha=alpha, sides=1, test=test).runs for test in ("fisher", "boschloo"))  # type: ignore[union-attr]
        for alpha in (0.05, 0.025, 0.005)
    )
    assert found == PUBLISHED[rates]


def enumerated_power(rate: float, reference_rate: float, runs: int, alpha: float) -> float:
    """One-sided Fisher by SciPy's own distribution, table by table."""
    bad, reference_bad = np.meshgrid(np.arange(runs + 1), np.arange(runs + 1), indexing="ij")
    rejected = stats.hypergeom.sf(bad - 1, 2 * runs, bad + reference_bad, runs) <= alpha
    mass = stats.binom.pmf(bad, runs, rate) * stats.binom.pmf(reference_bad, runs, reference_rate)
    return float(mass[rejected].sum())


def test_fisher_needs_fifty_runs_to_tell_a_fifth_from_none_at_half_a_percent() -> None:
    assert enumerated_power(0.2, 0.0, 49, 0.005) < 0.8 <= enumerated_power(0.2, 0.0, 50, 0.005)
    assert fixed_power(0.2, 0.0, 50, alpha=0.005, sides=1, test="fisher") == pytest.approx(
        enumerated_power(0.2, 0.0, 50, 0.005)
    )


@pytest.mark.parametrize(("runs", "reference_runs", "alpha"), [(6, 6, 0.05), (7, 4, 0.1)])
def test_rejection_region_is_that_of_the_library_test(runs: int, reference_runs: int, alpha: float) -> None:
    smallest = thresholds(runs, reference_runs, alpha)
    for reference_bad in range(reference_runs + 1):
        rejected = [
            bad for bad in range(runs + 1) if boschloo(bad, runs, reference_bad, reference_runs).higher <= alpha
        ]
        assert rejected == list(range(int(smallest[reference_bad]), runs + 1))


@pytest.mark.parametrize("runs", [10, 40])
@pytest.mark.parametrize("test", ["boschloo", "fisher"])
def test_null_size_stays_at_or_below_alpha_for_every_common_rate(runs: int, test: Test) -> None:
    sizes = [fixed_power(rate, rate, runs, alpha=0.05, sides=2, test=test) for rate in np.linspace(0, 1, 301)]
    assert max(sizes) <= 0.05 + 1e-6


def test_boschloo_is_at_least_as_powerful_as_fisher() -> None:
    for runs in (5, 12, 25):
        for rate in (0.3, 0.6, 0.95):
            by_boschloo = fixed_power(rate, 0.05, runs, test="boschloo")
            assert by_boschloo >= fixed_power(rate, 0.05, runs, test="fisher") - 1e-12


def test_the_order_of_the_rates_and_the_sides_are_symmetric() -> None:
    assert fixed_power(0.1, 0.7, 12) == pytest.approx(fixed_power(0.7, 0.1, 12), rel=1e-9)
    assert runs_for_power(0.0, 0.5) == runs_for_power(0.5, 0.0)


def test_equal_rates_have_no_number_of_runs() -> None:
    assert runs_for_power(0.3, 0.3) is None


def test_beyond_the_enumeration_the_number_is_marked_as_approximate() -> None:
    design = runs_for_power(0.02, 0.0)
    assert design is not None
    assert not design.exact
    assert design.runs > EXACT_RUNS


@pytest.mark.parametrize(("bound", "runs"), [(0.26, 10), (0.14, 20), (0.1, 29), (0.05, 59), (0.03, 99), (0.5, 5)])
def test_clean_runs_bound_the_rate(bound: float, runs: int) -> None:
    assert clean_runs(bound) == runs
    assert 1 - 0.05 ** (1 / runs) <= bound < 1 - 0.05 ** (1 / (runs - 1))


def test_nineteen_runs_would_have_shown_the_rate_of_the_published_sweep() -> None:
    assert runs_to_see_one(8 / 54) == 19


def test_bad_designs_are_refused() -> None:
    with pytest.raises(ValueError, match="1 or 2 sides"):
        fixed_power(0.5, 0.1, 5, sides=3)
    with pytest.raises(ValueError, match="empty arm"):
        thresholds(5, 0, 0.05)
