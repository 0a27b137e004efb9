"""Bounds that hold after every round at once, for one rate and for the difference of two rates.

A Clopper-Pearson bound that is looked at after every round and used at its best moment has no guarantee.
These have: each candidate value is tested by betting against it (Waudby-Smith and Ramdas, "Estimating means
of bounded random variables by betting", JRSS B 86 (2024)), and by Ville's inequality the true value is ever
rejected with a chance of at most alpha. A bet stakes the fraction c of all wealth against "the mean is at
least m": an observation x in 0..1 multiplies the wealth by 1 - c (x - m) / (1 - m), whose mean is then at
most 1. The e value is the average wealth over a fixed set of c, so it depends on no order of the trials. For
corrupt-or-not trials, betting c is the likelihood ratio of the rate (1 - c) m against m; c = 1 is the fastest
bet on an arm that never fails, and the smaller c carry on after a failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .interval import Bound, Interval, check_counts, check_level

__all__ = [
    "FRACTIONS",
    "WEIGHTS",
    "PairedDifference",
    "lower_bound_always",
    "rate_above_e",
    "rate_below_e",
    "rate_interval_always",
    "upper_bound_always",
]

FRACTIONS = np.array([1.0, 0.98, 0.9, 0.75, 0.55, 0.35, 0.15])
WEIGHTS = np.array([0.40, 0.15, 0.15, 0.10, 0.10, 0.05, 0.05])
"""Stakes and their starting shares: most on "it never fails", as a clean arm is the common claim."""

with np.errstate(divide="ignore"):
    _LOST = np.log1p(-FRACTIONS)  # -inf for the stake of everything

_TOLERANCE = 1e-7
_LOG_CAP = 700.0

Array = NDArray[np.float64]


def rate_below_e(bad: int, runs: int, bound: float) -> float:
    """Evidence for "the rate is below `bound`": e value against every rate of at least `bound`.

    Holds after every trial; 1 without trials. Raises `ValueError` unless 0 < bound < 1.
    """
    if not 0 < bound < 1:
        raise ValueError(f"bound = {bound!r} is not a rate strictly between 0 and 1")
    return math.exp(min(_log_rate_e(bad, runs, bound), _LOG_CAP))


def rate_above_e(bad: int, runs: int, bound: float) -> float:
    """Evidence for "the rate is above `bound`": e value against every rate of at most `bound`."""
    return rate_below_e(runs - bad, runs, 1 - bound)


def _log_rate_e(bad: int, runs: int, bound: float) -> float:
    won = (runs - bad) * np.log1p(FRACTIONS * bound / (1 - bound))
    return _log_average(won + bad * _LOST if bad else won)


def _log_average(log_wealth: Array) -> float:
    """Logarithm of the average wealth over all stakes; a stake that lost everything has -inf."""
    largest = float(log_wealth.max())
    return largest + math.log(float(WEIGHTS @ np.exp(log_wealth - largest)))


def upper_bound_always(bad: int, runs: int, level: float = 0.95) -> Bound:
    """Upper bound for the rate that holds with confidence `level` at every moment at once."""
    check_counts(bad, runs)
    check_level(level)
    return Bound(bad, runs, level, _upper_value(bad, runs, level))


def lower_bound_always(bad: int, runs: int, level: float = 0.95) -> Bound:
    """Lower bound for the rate that holds with confidence `level` at every moment at once."""
    check_counts(bad, runs)
    check_level(level)
    return Bound(bad, runs, level, 1 - _upper_value(runs - bad, runs, level))


def rate_interval_always(bad: int, runs: int, level: float = 0.95) -> Interval:
    """Two-sided interval for the rate that holds at every moment at once: both bounds at half the error."""
    half = (1 + level) / 2
    low = lower_bound_always(bad, runs, half).value
    return Interval(bad, runs, level, low, upper_bound_always(bad, runs, half).value)


def _upper_value(bad: int, runs: int, level: float) -> float:
    # The wealth against "at least m" grows with m for every observation, so there is one crossing.
    return _crossing(lambda bound: _log_rate_e(bad, runs, bound), -math.log1p(-level), 0.0, 1.0)


def _crossing(log_wealth: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Smallest value in low..high, to 1e-7, whose wealth reaches `target`; `high` if none does."""
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        low, high = (low, middle) if log_wealth(middle) >= target else (middle, high)
    return high


@dataclass(frozen=True)
class PairedDifference:
    """Differences (arm minus reference) of the mean outcome of each round, and bets on their mean.

    Rounds are the observations, so the rates may drift from round to round as long as the difference of the
    two stays where the claim puts it.
    """

    tally: tuple[tuple[float, int], ...] = ()  # (difference, number of rounds), in order of the difference

    def after(self, difference: float) -> PairedDifference:
        """State after one more round. Raises `ValueError` for a difference outside -1..1."""
        if not -1 <= difference <= 1:
            raise ValueError(f"difference of two rates = {difference!r} is not in -1..1")
        counts = dict(self.tally)
        counts[difference] = counts.get(difference, 0) + 1
        return PairedDifference(tuple(sorted(counts.items())))

    def within_e(self, margin: float) -> float:
        """Evidence for "the rates differ by less than `margin`": e value against that much or more."""
        if not 0 < margin < 1:
            raise ValueError(f"margin = {margin!r} is not a rate difference strictly between 0 and 1")
        # Both "at least margin above" and "at least margin below" must be refuted: the weaker e counts.
        log_e = min(self._log_below(margin, 1), self._log_below(margin, -1))
        return math.exp(min(log_e, _LOG_CAP))

    def _log_below(self, bound: float, sign: int) -> float:
        """Log e value against "the mean of sign * difference is at least `bound`"."""
        if not self.tally:
            return 0.0
        observed = sign * np.array([difference for difference, _ in self.tally])
        rounds = np.array([number for _, number in self.tally], dtype=float)
        # A bet of everything can end at 0, to rounding at just below it.
        factors = np.maximum(1 - FRACTIONS[:, None] * (observed - bound) / (1 - bound), 0.0)
        with np.errstate(divide="ignore"):
            return _log_average(np.log(factors) @ rounds)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Interval for the mean difference, valid at every moment at once; (-1, 1) before the first round."""
        check_level(level)
        target = -math.log((1 - level) / 2)
        high = _crossing(lambda bound: self._log_below(bound, 1), target, -1.0, 1.0)
        low = -_crossing(lambda bound: self._log_below(bound, -1), target, -1.0, 1.0)
        return low, high
