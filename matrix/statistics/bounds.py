"""Bounds of one arm's rate, of the kind that the way of looking allows.

A design of fixed size has the exact interval of Clopper and Pearson. A run that is looked at after every round
needs bounds that hold at every round at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from .confidence_sequence import lower_bound_always, rate_interval_always, upper_bound_always
from .interval import clopper_pearson, lower_bound, upper_bound

__all__ = ["RateBounds", "rate_bounds"]


@dataclass(frozen=True)
class RateBounds:
    """`low` and `high`: two-sided interval; `below` and `above`: one-sided bounds; all in 0..1 at `level`."""

    low: float
    high: float
    below: float
    above: float
    level: float
    always: bool


def rate_bounds(bad: int, runs: int, level: float = 0.95, *, always: bool = False) -> RateBounds:
    """Bounds after `bad` of `runs` trials; `always` takes those that hold at every round at once.

    Raises `ValueError` for an empty arm or impossible counts.
    """
    if always:
        interval = rate_interval_always(bad, runs, level)
        below, above = upper_bound_always(bad, runs, level), lower_bound_always(bad, runs, level)
    else:
        interval = clopper_pearson(bad, runs, level)
        below, above = upper_bound(bad, runs, level), lower_bound(bad, runs, level)
    return RateBounds(interval.low, interval.high, below.value, above.value, level, always)
