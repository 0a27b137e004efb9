"""One arm: exact intervals for a rate from k corrupt trials out of n.

Source of the formulas: Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the
case of the binomial", Biometrika 26 (1934): quantiles of Beta distributions.

These intervals hold for a number of trials that was fixed beforehand. Looked at after every round they do
not; `confidence_sequence.py` has the bounds that do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = [
    "Bound",
    "Interval",
    "check_counts",
    "check_level",
    "clopper_pearson",
    "lower_bound",
    "upper_bound",
]


@dataclass(frozen=True)
class Interval:
    """Two-sided exact interval for a rate: `bad` of `runs` trials, confidence `level`, ends in 0..1."""

    bad: int
    runs: int
    level: float
    low: float
    high: float


@dataclass(frozen=True)
class Bound:
    """One-sided exact bound: with confidence `level` the rate lies on one side of `value` (0..1)."""

    bad: int
    runs: int
    level: float
    value: float


def check_counts(bad: int, runs: int, *, where: str = "arm") -> None:
    """Raise `ValueError`, naming `where`, unless 0 <= bad <= runs and there is at least one trial."""
    for name, value in (("bad", bad), ("runs", runs)):
        if isinstance(value, bool) or int(value) != value:
            raise ValueError(f"{where}: {name} = {value!r} is not a whole number of trials")
    if runs < 1:
        raise ValueError(f"{where}: no trials, so there is no rate; run at least one")
    if not 0 <= bad <= runs:
        raise ValueError(f"{where}: {bad} bad of {runs} trials is impossible; bad must lie in 0..{runs}")


def check_level(level: float) -> None:
    """Raise `ValueError` unless `level` is a confidence level strictly between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"level = {level!r} is not a confidence level; write 95 % as 0.95")


def _check(bad: int, runs: int, level: float) -> None:
    check_counts(bad, runs)
    check_level(level)


def _upper_end(bad: int, runs: int, tail: float) -> float:
    """The rate at which `bad` or fewer corrupt trials have the chance `tail`."""
    if bad == runs:
        return 1.0
    if bad == 0:
        return -math.expm1(math.log(tail) / runs)  # 1 - tail^(1/n)
    # Imported here because every command reads intervals and most of them have the closed form above:
    # SciPy's special functions take about half a second to import.
    from scipy.special import betaincinv

    return 1 - float(betaincinv(runs - bad, bad + 1, tail))


def _lower_end(bad: int, runs: int, tail: float) -> float:
    return 1 - _upper_end(runs - bad, runs, tail) if bad else 0.0


def clopper_pearson(bad: int, runs: int, level: float = 0.95) -> Interval:
    """Two-sided Clopper-Pearson interval. Raises `ValueError` for an empty arm or impossible counts."""
    _check(bad, runs, level)
    tail = (1 - level) / 2
    return Interval(bad, runs, level, _lower_end(bad, runs, tail), _upper_end(bad, runs, tail))


def upper_bound(bad: int, runs: int, level: float = 0.95) -> Bound:
    """One-sided bound that the rate is below with confidence `level`; 1 - (1 - level)^(1/n) after 0/n."""
    _check(bad, runs, level)
    return Bound(bad, runs, level, _upper_end(bad, runs, 1 - level))


def lower_bound(bad: int, runs: int, level: float = 0.95) -> Bound:
    """One-sided lower bound: the rate is above it with confidence `level`."""
    _check(bad, runs, level)
    return Bound(bad, runs, level, _lower_end(bad, runs, 1 - level))
