"""Sentences that the numbers carry. No word of approval or blame without its count and its bound."""

from __future__ import annotations

from .confidence_sequence import lower_bound_always, rate_interval_always, upper_bound_always
from .interval import clopper_pearson, lower_bound, upper_bound
from .power import Design

__all__ = [
    "counts_words",
    "difference_words",
    "e_words",
    "needed_words",
    "p_words",
    "percent",
    "rate_words",
    "reach_words",
]


def percent(rate: float) -> str:
    """A rate with two significant digits: `26 %`, `9.5 %`, `0.12 %`, `100 %`; below 0.005 % it is `0`."""
    value = 100 * rate
    if abs(value) < 0.005:
        return "0"
    return f"{value:.2g} %" if abs(value) < 99.5 else f"{value:.3g} %"


def p_words(p: float) -> str:
    """`p = 0.235`; very small ones as a bound."""
    return f"p = {p:.3g}" if p >= 1e-4 else "p < 0.0001"


def e_words(e: float) -> str:
    """`e = 41`; very large ones as a bound."""
    if e > 1e5:
        return "e > 100,000"
    return f"e = {e:.0f}" if e >= 10 else f"e = {e:.2g}"


def counts_words(bad: int, runs: int) -> str:
    """`3/10`: bad of runs."""
    return f"{bad}/{runs}"


def rate_words(bad: int, runs: int, level: float = 0.95, *, always: bool = False) -> str:
    """What the counts of one arm say about its rate, with its confidence level.

    One-sided where every trial ended alike, else two-sided. `always` takes the bounds that hold at every
    round at once, which is what a run that was watched needs.
    """
    if runs == 0:
        return "0/0: no judged trial, so nothing is known about the rate"
    confidence = f"({percent(level)}, at every round)" if always else f"({percent(level)})"
    counts = counts_words(bad, runs)
    if bad == 0:
        bound = (upper_bound_always if always else upper_bound)(bad, runs, level)
        return f"{counts}: rate below {percent(bound.value)} {confidence}"
    if bad == runs:
        bound = (lower_bound_always if always else lower_bound)(bad, runs, level)
        return f"{counts}: rate above {percent(bound.value)} {confidence}"
    ends = (rate_interval_always if always else clopper_pearson)(bad, runs, level)
    between = f"between {percent(ends.low)} and {percent(ends.high)}"
    return f"{counts}: rate {percent(bad / runs)}, {between} {confidence}"


def difference_words(rate: float, reference_rate: float, reference: str = "the baseline") -> str:
    """`above the baseline (30 % against 0)`."""
    rates = f"({percent(rate)} against {percent(reference_rate)})"
    if rate == reference_rate:
        return f"level with {reference} in this sample {rates}"
    return f"{'above' if rate > reference_rate else 'below'} {reference} {rates}"


def needed_words(design: Design | None, rate: float, reference_rate: float) -> str:
    """What would tell two rates apart: `not enough runs: needs about 34 per arm to tell 15 % from 0`."""
    if design is None:
        return f"no difference in this sample ({percent(rate)} in both arms), so no number of runs can be named"
    high, low = max(rate, reference_rate), min(rate, reference_rate)
    return f"not enough runs: needs about {design.runs:,} per arm to tell {percent(high)} from {percent(low)}"


def reach_words(runs: int, reference_runs: int, smallest: float, alpha: float) -> str:
    """Why no table of this size could have passed."""
    return (
        f"cannot be decided at this size: {runs} against {reference_runs} trials reach p = {smallest:.3g} "
        f"at best, and {alpha:.3g} is needed"
    )
