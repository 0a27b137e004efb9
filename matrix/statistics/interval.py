"""One arm: exact intervals for a rate from k corrupt trials out of n.

Source of the formulas: Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the
case of the binomial", Biometrika 26 (1934); SciPy's `binomtest` does the arithmetic.

These intervals hold for a number of trials that was fixed beforehand. Looked at after every round they do
not; `confidence_sequence.py` has the bounds that do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scipy import stats

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


def _ends(
    bad: int, runs: int, level: float, alternative: Literal["two-sided", "less", "greater"]
) -> tuple[float, float]:
    check_counts(bad, runs)
    check_level(level)
    ends = stats.binomtest(bad, runs, alternative=alternative).proportion_ci(level, method="exact")
    return float(ends.low), float(ends.high)


def clopper_pearson(bad: int, runs: int, level: float = 0.95) -> Interval:
    """Two-sided Clopper-Pearson interval. Raises `ValueError` for an empty arm or impossible counts."""
    low, high = _ends(bad, runs, level, "two-sided")
    return Interval(bad, runs, level, low, high)


def upper_bound(bad: int, runs: int, level: float = 0.95) -> Bound:
    """One-sided bound that the rate is below with confidence `level`; 1 - (1 - level)^(1/n) after 0/n."""
    return Bound(bad, runs, level, _ends(bad, runs, level, "less")[1])


def lower_bound(bad: int, runs: int, level: float = 0.95) -> Bound:
    """One-sided lower bound: the rate is above it with confidence `level`."""
    return Bound(bad, runs, level, _ends(bad, runs, level, "greater")[0])
