"""Two settings crossed: main effects, interaction, and hints that a one-at-a-time plan cannot follow up.

The main effect of a setting is its contrast within the levels of the other one (stratified exact test). The
interaction is D = (both - only B) - (only A - neither) in rates. Its test is unconditional and exact: the
chance of a D this large under D = 0, maximised over the three free rates, which are confined to exact
intervals whose joint error is added to p (Berger and Boos, JASA 89 (1994)). The conditional test of equal
odds ratios (Zelen, Biometrika 58 (1971)) is given beside it, but it is blind in the very case that matters
most: if neither setting alone ever fails, its margins leave one table only.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from .binomial import binomial_masses, hypergeometric_masses
from .blocking import stratified_exact
from .contrast import ExactTest, boschloo
from .eprocess import Block
from .interval import check_counts, clopper_pearson
from .words import counts_words, p_words, percent

__all__ = ["Cell", "Crossed", "OneArm", "crossed", "interaction_hints"]

Array = NDArray[np.float64]

_NUISANCE_ERROR = 1e-4
_STEPS = 17
_MOST_STEPS = 2000
_EXACT_RUNS = 1000  # of one cell
_TIE = 1e-9


@dataclass(frozen=True)
class Cell:
    """Corrupt trials and all judged trials of one combination."""

    bad: int
    runs: int

    @property
    def rate(self) -> float:
        """Observed rate, 0..1."""
        return self.bad / self.runs


@dataclass(frozen=True)
class Crossed:
    """A 2x2 crossed design: main effects within the other setting, and the interaction in rates."""

    main_a: ExactTest
    main_b: ExactTest
    interaction: float
    interaction_p: float
    odds_p: float | None  # Zelen's conditional test; None where the margins leave a single table
    sentence: str


def crossed(
    neither: Cell,
    only_a: Cell,
    only_b: Cell,
    both: Cell,
    *,
    names: tuple[str, str] = ("A", "B"),
    alpha: float = 0.05,
) -> Crossed:
    """Analyse two crossed settings; p values are two-sided. Raises `ValueError` for an empty cell."""
    places = ("neither", f"only {names[0]}", f"only {names[1]}", "both")
    for place, cell in zip(places, (neither, only_a, only_b, both), strict=True):
        check_counts(cell.bad, cell.runs, where=place)
    strata_a, strata_b = (
        [_block(only_a, neither), _block(both, only_b)],
        [_block(only_b, neither), _block(both, only_a)],
    )
    value = both.rate - only_b.rate - only_a.rate + neither.rate
    p = _interaction_p(neither, only_a, only_b, both)
    odds_p = _equal_odds_p(strata_a)
    sentence = _crossed_words(names, (neither, only_a, only_b, both), value, p, alpha)
    return Crossed(stratified_exact(strata_a), stratified_exact(strata_b), value, p, odds_p, sentence)


def _block(arm: Cell, reference: Cell) -> Block:
    return Block(arm.bad, arm.runs, reference.bad, reference.runs)


def _crossed_words(
    names: tuple[str, str], cells: tuple[Cell, Cell, Cell, Cell], value: float, p: float, alpha: float
) -> str:
    neither, only_a, only_b, both = (f"{counts_words(cell.bad, cell.runs)}" for cell in cells)
    counts = f"neither {neither}, only {names[0]} {only_a}, only {names[1]} {only_b}, both {both}"
    effect = f"interaction {100 * value:+.0f} points of rate, {p_words(p)} two-sided"
    if p <= alpha:
        return f"{names[0]} and {names[1]} act together: {counts}; {effect}"
    return f"{names[0]} and {names[1]}: no interaction shown at these sizes: {counts}; {effect}"


def _interaction_p(neither: Cell, only_a: Cell, only_b: Cell, both: Cell) -> float:
    cells = (neither, only_a, only_b, both)
    enumerable = max(cell.runs for cell in cells) <= _EXACT_RUNS
    tail = min(_interaction_tails(*cells)) if enumerable else _normal_tail(cells)
    return min(1.0, 2 * (tail + _NUISANCE_ERROR))


def _normal_tail(cells: Sequence[Cell]) -> float:
    """Cells too large to enumerate: a normal tail, with the largest variance that the null rates allow."""
    neither, only_a, only_b, both = cells
    grids, rates_both = _null_rates(cells)
    rate_a, rate_b = (axis.ravel() for axis in np.meshgrid(grids[1], grids[2], indexing="ij"))
    widest = 0.0
    for rate, rate_both in zip(grids[0], rates_both, strict=True):
        rates = (np.full_like(rate_a, rate), rate_a, rate_b, rate_both)
        variance = sum(q * (1 - q) / cell.runs for q, cell in zip(rates, cells, strict=True))
        widest = max(widest, float(np.max(np.nan_to_num(variance))))
    value = abs(both.rate - only_b.rate - only_a.rate + neither.rate)
    return NormalDist().cdf(-value / math.sqrt(widest)) if widest else float(value == 0)


def _interaction_tails(neither: Cell, only_a: Cell, only_b: Cell, both: Cell) -> tuple[float, float]:
    """Largest null probabilities of D at least, and at most, as observed."""
    plus, minus = _Sum.of(both, neither), _Sum.of(only_a, only_b)
    # D = plus / plus.steps - minus / minus.steps, compared in whole numbers: the value of `minus` at which D is
    # as observed, for every value of `plus`.
    ahead = (np.arange(2 * plus.steps + 1) - plus.observed) * minus.steps
    slack = plus.slack * minus.steps + minus.slack * plus.steps
    upper = np.clip(minus.observed + (ahead + slack) // plus.steps + 1, 0, 2 * minus.steps + 1)
    lower = np.clip(minus.observed - (slack - ahead) // plus.steps, 0, 2 * minus.steps + 1)
    grids, rates_both = _null_rates((neither, only_a, only_b, both))
    masses_b = binomial_masses(only_b.runs, grids[2])
    mass = np.concatenate([minus.given_first(row, masses_b) for row in binomial_masses(only_a.runs, grids[1])])
    below = np.concatenate([np.zeros((len(mass), 1)), np.minimum(1.0, np.cumsum(mass, axis=1))], axis=1)
    largest = [0.0, 0.0]
    for mass_neither, rate_both in zip(binomial_masses(neither.runs, grids[0]), rates_both, strict=True):
        inside = np.flatnonzero(np.isfinite(rate_both))
        if not len(inside):
            continue
        mass = plus.given_second(binomial_masses(both.runs, rate_both[inside]), mass_neither)
        at_least = np.sum(mass * below[np.ix_(inside, upper)], axis=1)
        at_most = np.sum(mass * (1 - below[np.ix_(inside, lower)]), axis=1)
        largest = [max(largest[0], float(at_least.max())), max(largest[1], float(at_most.max()))]
    return min(1.0, largest[0]), min(1.0, largest[1])


@dataclass(frozen=True)
class _Sum:
    """The sum of two cells' rates in steps of a common denominator: 0..2 `steps`.

    Without a common denominator of moderate size, rates are rounded to the nearest step, and tables within the
    rounding error of the observed one (`slack` steps) count as extreme: p can only become larger.
    """

    places: NDArray[np.int64]  # steps of every count of the first cell
    others: NDArray[np.int64]
    observed: int
    steps: int
    slack: int

    @classmethod
    def of(cls, first: Cell, second: Cell) -> _Sum:
        common = math.lcm(first.runs, second.runs)
        steps = min(common, _MOST_STEPS)
        places, others = (
            np.round(np.arange(cell.runs + 1) * (steps / cell.runs)).astype(np.int64) for cell in (first, second)
        )
        observed = int(places[first.bad] + others[second.bad])
        return cls(places, others, observed, steps, 0 if steps == common else 2)

    def given_first(self, mass: Array, others: Array) -> Array:
        """Distribution of the sum for one distribution of the first count and many of the second, a row each."""
        return np.asarray(others @ self._shifted(mass, self.others, self.places))

    def given_second(self, masses: Array, other: Array) -> Array:
        """The same for many distributions of the first count and one of the second."""
        return np.asarray(masses @ self._shifted(other, self.places, self.others))

    def _shifted(self, mass: Array, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Array:
        shifted = np.zeros((len(rows), 2 * self.steps + 1))
        shifted[np.arange(len(rows))[:, None], rows[:, None] + columns[None, :]] = mass[None, :]
        return shifted


def _null_rates(cells: Sequence[Cell]) -> tuple[list[Array], list[Array]]:
    """Rates without interaction inside the four cells' joint interval.

    Returns the grids of the first three cells, and for each rate of `neither` that of `both` at every pair of
    the other two; `nan` where it lies outside its interval.
    """
    level = 1 - _NUISANCE_ERROR / 4
    ends = [clopper_pearson(cell.bad, cell.runs, level) for cell in cells]
    grids = [np.linspace(end.low, end.high, _STEPS) for end in ends[:3]]
    slack = sum(float(grid[1] - grid[0]) for grid in grids) / 2  # a grid must not miss a corner of the box
    rates_both = []
    for rate in grids[0]:
        rate_both = np.add.outer(grids[1], grids[2]).ravel() - rate
        inside = (rate_both >= max(0.0, ends[3].low - slack) - _TIE) & (
            rate_both <= min(1.0, ends[3].high + slack) + _TIE
        )
        rates_both.append(np.where(inside, np.clip(rate_both, 0, 1), np.nan))
    return grids, rates_both


def _equal_odds_p(strata: list[Block]) -> float | None:
    """Zelen's exact test of equal odds ratios in two strata; None if the margins admit one table only."""
    first, second = strata
    total = first.bad + second.bad
    masses = [
        hypergeometric_masses(block.runs, block.reference_runs, block.bad + block.reference_bad)
        for block in (first, second)
    ]
    splits = np.arange(max(0, total - second.runs), min(first.runs, total) + 1)
    mass = masses[0][splits] * masses[1][total - splits]
    if np.count_nonzero(mass) < 2:
        return None
    mass = mass / mass.sum()
    observed = mass[first.bad - int(splits[0])]
    return min(1.0, float(mass[mass <= observed * (1 + 1e-7)].sum()))


@dataclass(frozen=True)
class OneArm:
    """One arm of a plan: its name, the axes it moves (none for the baseline) and its counts.

    `changes` tells levels of one axis apart, one text for each axis; where it is left out, axes have one level.
    """

    name: str
    axes: frozenset[str]
    bad: int
    runs: int
    changes: frozenset[str] = frozenset()

    @property
    def parts(self) -> frozenset[str]:
        """What the arm is put together from."""
        return self.changes or self.axes


def interaction_hints(arms: Sequence[OneArm], alpha: float = 0.05, *, tested: Collection[str] = ()) -> tuple[str, ...]:
    """What the rows hint at and the plan cannot see, one sentence each; empty where nothing is hinted at.

    Exploratory: single Boschloo tests at `alpha`, no correction for their number, and worded as a hint.
    `tested` names combinations whose interaction is tested elsewhere. Raises `ValueError` unless exactly one
    arm moves no axis.
    """
    baselines = [arm for arm in arms if not arm.axes]
    if len(baselines) != 1:
        raise ValueError(f"{len(baselines)} arms move no axis; a plan has exactly one baseline")
    baseline = baselines[0]
    judged = [arm for arm in arms if arm.runs and arm.axes]
    if not baseline.runs:
        return ()
    singles = [arm for arm in judged if len(arm.axes) == 1]
    together = [arm for arm in judged if len(arm.axes) > 1]
    untested = [arm for arm in together if arm.name not in tested]
    return (
        *_joint_cures(baseline, singles, together, alpha),
        *_joint_faults(baseline, singles, untested, alpha),
    )


def _rarer(arm: OneArm, other: OneArm, alpha: float) -> bool:
    """Whether the arm is below the other one; a cheap look at the rates spares most tests."""
    if arm.bad * other.runs >= other.bad * arm.runs:
        return False
    return boschloo(arm.bad, arm.runs, other.bad, other.runs).lower <= alpha


def _joint_cures(baseline: OneArm, singles: list[OneArm], together: list[OneArm], alpha: float) -> list[str]:
    """Several single changes each lower a failing baseline: it may need all of them at once to fail."""
    cures = [arm for arm in singles if _rarer(arm, baseline, alpha)]
    axes = frozenset().union(*(arm.axes for arm in cures))
    if len(axes) < 2 or any(arm.axes >= axes for arm in together):
        return []
    named = ", ".join(f"{arm.name} {counts_words(arm.bad, arm.runs)}" for arm in cures)
    return [
        f"hint (exploratory): {named} are each below the baseline's "
        f"{counts_words(baseline.bad, baseline.runs)}; the fault may need "
        f"{' and '.join(sorted(axes))} together, which one change at a time cannot show: cross them"
    ]


def _joint_faults(baseline: OneArm, singles: list[OneArm], together: list[OneArm], alpha: float) -> list[str]:
    """A combination fails more often than every one of its parts and than the baseline."""
    hints = []
    alone = {next(iter(arm.parts)): arm for arm in singles}
    for arm in together:
        parts = [baseline, *(alone[part] for part in sorted(arm.parts) if part in alone)]
        if not all(_rarer(part, arm, alpha) for part in parts):
            continue
        missing = sorted(part for part in arm.parts if part not in alone)
        named = ", ".join(f"{part.name} {counts_words(part.bad, part.runs)}" for part in parts)
        rest = f"; {', '.join(missing)} alone was not run" if missing else ""
        hints.append(
            f"hint (exploratory): {arm.name} {counts_words(arm.bad, arm.runs)} "
            f"({percent(arm.bad / arm.runs)}) is above each of {named}{rest}; "
            "its changes may act together: cross them"
        )
    return hints
