"""Designs: exact power of fixed two-arm tests, and how many runs a claim needs.

Everything is enumerated: the rejection region over all tables of a size, its null size maximised over the
common rate, its probability under two rates. Boschloo's region holds all tables whose one-sided Fisher p is
at most some c; c is the largest value that keeps the null size at or below alpha. A two-sided test is both
one-sided ones at alpha / 2, as in SciPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .binomial import binomial_masses, log_choose
from .interval import check_level

__all__ = [
    "EXACT_RUNS",
    "Design",
    "Test",
    "clean_runs",
    "fixed_power",
    "runs_for_power",
    "runs_to_see_one",
    "thresholds",
]

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Test = Literal["boschloo", "fisher"]

EXACT_RUNS = 250
"""Largest number of runs per arm that is enumerated; beyond it `runs_for_power` is an approximation."""

# Common rates on the arcsine scale, where a binomial count of N is equally wide everywhere: around its top a
# null size curves by at most 4 N, so a grid of 400 misses less than 0.4 % of it at N = 500 trials.
_STEP = math.pi / 800
_ANGLES = (np.arange(400) + 0.5) * _STEP
_GRID = np.sin(_ANGLES) ** 2
_TIE = 1e-9


@dataclass(frozen=True)
class Design:
    """Runs per arm of a fixed design; `exact` is False where a normal approximation gave them."""

    runs: int
    exact: bool
    power: float
    alpha: float
    sides: int


def _check_design(alpha: float, sides: int) -> None:
    check_level(1 - alpha)
    if sides not in (1, 2):
        raise ValueError(f"sides = {sides!r}: a test has 1 or 2 sides")


def clean_runs(bound: float, level: float = 0.95) -> int:
    """Runs without any failure after which the one-sided exact upper bound is at or below `bound`."""
    check_level(level)
    if not 0 < bound < 1:
        raise ValueError(f"bound = {bound!r} is not a rate strictly between 0 and 1")
    return math.ceil(math.log1p(-level) / math.log1p(-bound) - 1e-9)


def runs_to_see_one(rate: float, level: float = 0.95) -> int:
    """Runs after which a fault of this rate has shown itself at least once with probability `level`."""
    return clean_runs(rate, level)


@lru_cache(maxsize=512)
def _fisher_p(runs: int, reference_runs: int) -> Array:
    """One-sided Fisher p (arm higher) of every table, shape (runs + 1, reference_runs + 1)."""
    table = np.ones((runs + 1, reference_runs + 1))
    log_arm = log_choose(runs)
    log_reference = log_choose(reference_runs)
    log_all = log_choose(runs + reference_runs)
    for total in range(runs + reference_runs + 1):
        bad = np.arange(max(0, total - reference_runs), min(runs, total) + 1)
        mass = np.exp(log_arm[bad] + log_reference[total - bad] - log_all[total])
        table[bad, total - bad] = np.minimum(1.0, np.cumsum(mass[::-1])[::-1])
    return table


def _region(p_values: Array, limit: float) -> Counts:
    """For every reference count the smallest count of the arm with p <= limit; runs + 1 where none has."""
    # Fisher's p falls as the arm's count grows, so a column of the region is an upper part of the column.
    inside: Counts = np.sum(p_values > limit * (1 + _TIE), axis=0)
    return inside


def _tails(masses: Array) -> Array:
    """Probability of at least k for k = 0..runs + 1, from the masses of one binomial per row."""
    padded = np.concatenate([masses, np.zeros((len(masses), 1))], axis=1)
    tails: Array = np.cumsum(padded[:, ::-1], axis=1)[:, ::-1]
    return tails


@lru_cache(maxsize=64)
def _grid_masses(runs: int) -> Array:
    return binomial_masses(runs, _GRID)


@lru_cache(maxsize=64)
def _grid_tails(runs: int) -> Array:
    return _tails(_grid_masses(runs))


def _sizes(smallest: Counts, runs: int) -> Array:
    """Null probability of the region at every common rate of the grid."""
    sizes: Array = np.sum(_grid_masses(len(smallest) - 1) * _grid_tails(runs)[:, smallest], axis=1)
    return sizes


def _fits(smallest: Counts, runs: int, alpha: float) -> bool:
    """Whether the null size stays at or below alpha for every common rate: a grid, then finer at its top."""
    sizes = _sizes(smallest, runs)
    limit = alpha * (1 + _TIE)
    if sizes.max() > limit:
        return False
    if sizes.max() < 0.99 * limit:
        return True
    top = _ANGLES[int(np.argmax(sizes))]
    fine = np.sin(np.linspace(max(1e-5, top - _STEP), min(math.pi / 2 - 1e-5, top + _STEP), 81)) ** 2
    reference = binomial_masses(len(smallest) - 1, fine)
    return bool(np.sum(reference * _tails(binomial_masses(runs, fine))[:, smallest], axis=1).max() <= limit)


@lru_cache(maxsize=2048)
def _boschloo_limit(runs: int, reference_runs: int, alpha: float) -> float:
    """Largest one-sided Fisher p whose region has a null size of at most `alpha`; 0 if there is none."""
    p_values = _fisher_p(runs, reference_runs)
    # Ties up to rounding count as one value; Boschloo's p is never above Fisher's, so alpha itself fits.
    candidates = np.unique(np.round(p_values[p_values <= min(1.0, 20 * alpha)], 12))
    low, high = int(np.searchsorted(candidates, alpha)) - 1, len(candidates)
    while high - low > 1:  # candidates[low] fits, candidates[high] does not
        middle = (low + high) // 2
        fits = _fits(_region(p_values, float(candidates[middle]) + 1e-12), runs, alpha)
        low, high = (middle, high) if fits else (low, middle)
    return float(candidates[low]) + 1e-12 if low >= 0 else 0.0


def thresholds(runs: int, reference_runs: int, alpha: float, *, test: Test = "boschloo") -> Counts:
    """One-sided rejection region: per reference count, the smallest count of the arm that rejects.

    `runs + 1` where none does. `alpha` is the level of this side.
    """
    _check_design(alpha, 1)
    if runs < 1 or reference_runs < 1:
        raise ValueError(f"a design of {runs} and {reference_runs} trials has an empty arm")
    p_values = _fisher_p(runs, reference_runs)
    limit = alpha if test == "fisher" else _boschloo_limit(runs, reference_runs, alpha)
    return _region(p_values, limit)


def fixed_power(
    rate: float,
    reference_rate: float,
    runs: int,
    reference_runs: int | None = None,
    *,
    alpha: float = 0.05,
    sides: int = 2,
    test: Test = "boschloo",
) -> float:
    """Probability that a fixed design tells `rate` from `reference_rate`. One side: the arm is higher."""
    _check_design(alpha, sides)
    reference_runs = runs if reference_runs is None else reference_runs
    side = alpha / sides
    higher = _chance(thresholds(runs, reference_runs, side, test=test), runs, rate, reference_rate)
    if sides == 1:
        return higher
    lower_region = thresholds(reference_runs, runs, side, test=test)
    return min(1.0, higher + _chance(lower_region, reference_runs, reference_rate, rate))


def _chance(smallest: Counts, runs: int, rate: float, reference_rate: float) -> float:
    """Probability of the region at one pair of rates; the ends 0 and 1 are allowed."""
    reference = binomial_masses(len(smallest) - 1, np.array([reference_rate]))
    tails = _tails(binomial_masses(runs, np.array([rate])))
    return min(1.0, float(np.sum(reference[0] * tails[0, smallest])))


def _approximate_runs(rate: float, reference_rate: float, alpha: float, power: float, sides: int) -> float:
    """Casagrande, Pike and Smith (1978): normal approximation with continuity correction."""
    normal = NormalDist()
    gap = abs(rate - reference_rate)
    middle = (rate + reference_rate) / 2
    spread = -normal.inv_cdf(alpha / sides) * math.sqrt(2 * middle * (1 - middle))
    own = normal.inv_cdf(power) * math.sqrt(rate * (1 - rate) + reference_rate * (1 - reference_rate))
    plain = ((spread + own) / gap) ** 2
    return plain / 4 * (1 + math.sqrt(1 + 4 / (plain * gap))) ** 2


def _first_above(reached: Callable[[int], float], runs: int, power: float) -> int:
    """Smallest number of runs with this power, going down from one that has it.

    Power is a sawtooth in the number of runs: the search ends after a whole tooth below `power`.
    """
    found = runs
    tooth = max(4, runs // 8)
    for fewer in range(runs - 1, 0, -1):
        if reached(fewer) >= power:
            found = fewer
        elif found - fewer >= tooth:
            break
    return found


@lru_cache(maxsize=1024)
def runs_for_power(
    rate: float,
    reference_rate: float,
    *,
    alpha: float = 0.05,
    power: float = 0.8,
    sides: int = 2,
    test: Test = "boschloo",
) -> Design | None:
    """Smallest equal number of runs per arm with at least `power`; None if the rates are equal.

    Exact up to `EXACT_RUNS` per arm, beyond that a normal approximation and marked so.
    """
    _check_design(alpha, sides)
    check_level(power)
    high, low = max(rate, reference_rate), min(rate, reference_rate)
    if not 0 <= low <= high <= 1:
        raise ValueError(f"rates {rate!r} and {reference_rate!r} must lie in 0..1")
    if high == low:
        return None
    about = _approximate_runs(high, low, alpha, power, sides)
    reached = lru_cache(maxsize=None)(lambda runs: fixed_power(high, low, runs, alpha=alpha, sides=sides, test=test))
    # The exact number lies at 0.63 to 1 of the approximate one over all rates tried; the search starts below that.
    runs = max(1, int(0.6 * about) - 2)
    while runs <= EXACT_RUNS and reached(runs) < power:
        runs += max(1, runs // 16)
    if runs <= EXACT_RUNS:
        found = _first_above(reached, runs, power)
        return Design(found, True, reached(found), alpha, sides)
    return Design(max(math.ceil(about), EXACT_RUNS + 1), False, power, alpha, sides)
