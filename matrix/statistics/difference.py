"""Two arms: interval for the difference of their rates (arm minus reference).

Exact: Chan and Zhang, "Test-based exact confidence intervals for the difference of two binomial
proportions", Biometrics 55 (1999): the unconditional test with the constrained score statistic of Farrington
and Manning (Statistics in Medicine 9, 1990), inverted; the unknown reference rate is maximised over a grid.
Large tables: Newcombe's hybrid score interval, "Interval estimation for the difference between independent
proportions", Statistics in Medicine 17 (1998), method 10: approximate. The result says which one it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from .binomial import binomial_masses
from .interval import check_counts, check_level

__all__ = ["EXACT_TABLES", "Difference", "difference_interval", "newcombe"]

EXACT_TABLES = 4000
"""Largest number of tables, (n1 + 1)(n2 + 1), for which the exact interval is computed."""

_NUISANCE = np.linspace(0.0, 1.0, 201)
_SCAN_STEP = 0.004
_TIE = 1e-9

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """Rate of the arm minus rate of the reference, in -1..1, with its interval and the method's name."""

    value: float
    low: float
    high: float
    level: float
    method: str  # "exact (Chan-Zhang)" or "Newcombe score, approximate"


def difference_interval(
    bad: int, runs: int, reference_bad: int, reference_runs: int, level: float = 0.95
) -> Difference:
    """Two-sided interval for the rate difference; exact up to `EXACT_TABLES` tables, else Newcombe's.

    Raises `ValueError` for an empty arm or impossible counts.
    """
    check_counts(bad, runs, where="arm")
    check_counts(reference_bad, reference_runs, where="reference arm")
    check_level(level)
    if (runs + 1) * (reference_runs + 1) > EXACT_TABLES:
        return newcombe(bad, runs, reference_bad, reference_runs, level)
    return _chan_zhang(int(bad), int(runs), int(reference_bad), int(reference_runs), level)


def newcombe(bad: int, runs: int, reference_bad: int, reference_runs: int, level: float = 0.95) -> Difference:
    """Newcombe's hybrid score interval (method 10 of the 1998 paper)."""
    ends = [_wilson(k, n, level) for k, n in ((bad, runs), (reference_bad, reference_runs))]
    rate, reference_rate = bad / runs, reference_bad / reference_runs
    value = rate - reference_rate
    low = value - math.hypot(rate - ends[0][0], ends[1][1] - reference_rate)
    high = value + math.hypot(ends[0][1] - rate, reference_rate - ends[1][0])
    return Difference(value, max(-1.0, low), min(1.0, high), level, "Newcombe score, approximate")


def _wilson(bad: int, runs: int, level: float) -> tuple[float, float]:
    """Wilson's score interval (JASA 22 (1927)) of one rate."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = (bad + z * z / 2) / (runs + z * z)
    half = z / (runs + z * z) * math.sqrt(bad * (runs - bad) / runs + z * z / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


@lru_cache(maxsize=1024)
def _chan_zhang(bad: int, runs: int, reference_bad: int, reference_runs: int, level: float) -> Difference:
    tail = (1 - level) / 2

    def low_end(k1: int, n1: int, k2: int, n2: int) -> float:
        # Far below the score interval nothing can be accepted: the scan need not start at -1.
        start = max(-1.0, newcombe(k1, n1, k2, n2, level).low - 0.3)
        return _first_crossing(lambda delta: _upper_tail(delta, k1, n1, k2, n2), tail, start, k1 / n1 - k2 / n2)

    low = low_end(bad, runs, reference_bad, reference_runs)
    high = -low_end(reference_bad, reference_runs, bad, runs)  # the same question with the arms exchanged
    return Difference(bad / runs - reference_bad / reference_runs, low, high, level, "exact (Chan-Zhang)")


def _first_crossing(p_value: Callable[[float], float], tail: float, start: float, estimate: float) -> float:
    """Smallest difference that the test does not reject: a scan upwards, since p may dip, then bisection."""
    below = above = start
    while above < estimate and p_value(above) <= tail:
        below, above = above, min(above + _SCAN_STEP, estimate)
    while above - below > 1e-6:
        middle = (above + below) / 2
        below, above = (below, middle) if p_value(middle) > tail else (middle, above)
    return below


def _upper_tail(delta: float, k1: int, n1: int, k2: int, n2: int) -> float:
    """Largest null probability, over the reference rate, of a score at least as high as the observed one."""
    scores = _scores(delta, n1, n2)
    extreme = (scores >= scores[k1, k2] - _TIE).astype(float)
    reference_rates = max(0.0, -delta) + (min(1.0, 1 - delta) - max(0.0, -delta)) * _NUISANCE
    arm = binomial_masses(n1, np.clip(reference_rates + delta, 0, 1))
    reference = binomial_masses(n2, np.clip(reference_rates, 0, 1))
    return float(np.max(np.sum((arm @ extreme) * reference, axis=1)))


def _scores(delta: float, n1: int, n2: int) -> Array:
    """Score statistic of every table, shape (n1 + 1, n2 + 1)."""
    rate = (np.arange(n1 + 1) / n1)[:, None]
    reference_rate = (np.arange(n2 + 1) / n2)[None, :]
    constrained = _constrained_rate(rate, reference_rate, n2 / n1, delta)
    other = np.clip(constrained - delta, 0, 1)
    variance = constrained * (1 - constrained) / n1 + other * (1 - other) / n2
    distance = rate - reference_rate - delta
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = distance / np.sqrt(variance)
    return np.where(np.abs(distance) < 1e-12, 0.0, np.where(variance < 1e-15, np.copysign(np.inf, distance), scores))


def _constrained_rate(rate: Array, reference_rate: Array, ratio: float, delta: float) -> Array:
    """Maximum-likelihood rate of the arm when the difference is `delta`: Farrington and Manning's cubic."""
    a = 1 + ratio
    b = -(1 + ratio + rate + ratio * reference_rate + delta * (ratio + 2))
    c = delta**2 + delta * (2 * rate + ratio + 1) + rate + ratio * reference_rate
    d = -rate * delta * (1 + delta)
    v = b**3 / (3 * a) ** 3 - b * c / (6 * a**2) + d / (2 * a)
    u = np.copysign(np.sqrt(np.maximum(b**2 / (3 * a) ** 2 - c / (3 * a), 0)), v)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio_of_roots = np.where(u == 0, 0.0, v / u**3)
    angle = (math.pi + np.arccos(np.clip(ratio_of_roots, -1, 1))) / 3
    low, high = max(0.0, delta), min(1.0, 1 + delta)
    constrained: Array = np.clip(2 * u * np.cos(angle) - b / (3 * a), low, high)
    return constrained
