"""What the rows say beyond the declared contrasts: failures, drift, contrasts within rounds or machines, crossed
settings, hints, and pairs that nobody declared.

A pure function of plan, judged rows and counts. Tests here are for sizes that were fixed beforehand. Under the
sequential rule, sizes follow from the outcomes: then the p values describe, and the sentences say so.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pyarrow as pa

from .arm import Arm
from .outcome import Outcome, Verdict
from .plan import Plan
from .statistics.blocking import Drift, baseline_drift, stratified_exact
from .statistics.bounds import rate_bounds
from .statistics.contrast import boschloo
from .statistics.eprocess import Block
from .statistics.interaction import Cell, OneArm, crossed, interaction_hints
from .statistics.multiplicity import holm
from .statistics.rule import stop_rule_from_mapping
from .statistics.words import counts_words, p_words, percent

__all__ = ["CrossedSettings", "FailedRate", "Findings", "Pair", "WithinStrata", "crossed_settings", "findings_of"]

_WATCHED = "the stop rule chose the sizes, so p describes and decides nothing"


@dataclass(frozen=True)
class FailedRate:
    """Trials of one arm that ended with one failed outcome, of all its trials; `rate` and its bounds in 0..1."""

    arm: str
    outcome: str
    count: int
    trials: int
    rate: float
    low: float
    high: float
    confidence: float

    @property
    def words(self) -> str:
        """`3/10 crash, 30 % (7 to 65 %)`."""
        ends = f"{percent(self.low)} to {percent(self.high)}"
        what = self.outcome.replace("_", " ")
        return f"{counts_words(self.count, self.trials)} {what}, {percent(self.rate)} ({ends})"


@dataclass(frozen=True)
class WithinStrata:
    """One declared contrast, tested within rounds or machines; p values are two-sided, `p_adjusted` is Holm's."""

    arm: str
    reference: str
    strata: str  # `round` or `machine`
    p: float
    p_adjusted: float


@dataclass(frozen=True)
class CrossedSettings:
    """Two changes in all four combinations: counts (corrupt, judged), main effects, and the interaction in rates."""

    first: str
    second: str
    arms: tuple[str, str, str, str]  # neither, only the first, only the second, both
    counts: tuple[tuple[int, int], ...]
    p_first: float  # main effects, each within the levels of the other change, two-sided
    p_second: float
    interaction: float  # (both - only second) - (only first - neither), in -1..1
    p_interaction: float
    p_equal_odds: float | None  # conditional test; None where the margins leave one table
    together: bool  # whether the interaction is shown at alpha over all combinations of the plan
    sentence: str


@dataclass(frozen=True)
class Pair:
    """Two arms that nobody declared to compare and that differ, Holm-adjusted over all such pairs."""

    arm: str  # the one with the higher rate
    other: str
    counts: tuple[tuple[int, int], tuple[int, int]]  # corrupt, judged
    p: float
    p_adjusted: float


@dataclass(frozen=True)
class Findings:
    """Everything beside the declared contrasts. `watched`: the sizes were chosen by a sequential stop rule."""

    failed: tuple[FailedRate, ...]
    drifts: tuple[Drift, ...]  # of reference arms whose rate moved
    machines: int
    within: tuple[WithinStrata, ...]
    crossed: tuple[CrossedSettings, ...]
    quiet: tuple[tuple[str, str], ...]  # pairs of changes that were crossed without any corrupt trial
    hints: tuple[str, ...]
    pairs: tuple[Pair, ...]
    pairs_tested: int
    watched: bool

    def warnings(self) -> list[str]:
        """What must be known before the table is read."""
        return [f"Warning: {drift.sentence}." for drift in self.drifts]

    def headlines(self) -> list[str]:
        """Interactions that are shown."""
        return [f"Crossed: {found.sentence}{self._caution}." for found in self.crossed if found.together]

    def notes(self) -> list[str]:
        """Sentences for below the table."""
        return [
            *self._failed_notes(),
            *self._within_notes(),
            *(f"Crossed: {found.sentence}{self._caution}." for found in self.crossed if not found.together),
            *self._quiet_notes(),
            *(f"{hint}." for hint in self.hints),
        ]

    def exploratory(self) -> list[str]:
        """Pairs that differ, for a list of their own."""
        groups: dict[tuple[str, float], list[Pair]] = defaultdict(list)
        for pair in self.pairs:
            groups[pair.arm, pair.p_adjusted].append(pair)
        return [
            f"{arm} {counts_words(*pairs[0].counts[0])} against "
            f"{', '.join(f'{pair.other} {counts_words(*pair.counts[1])}' for pair in pairs)}: {p_words(p)} "
            f"(Boschloo, Holm over {self.pairs_tested} pair{'s' * (self.pairs_tested > 1)}){self._caution}."
            for (arm, p), pairs in groups.items()
        ]

    def as_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dataclasses.asdict(self)

    @property
    def _caution(self) -> str:
        return f" ({_WATCHED})" if self.watched else ""

    def _failed_notes(self) -> list[str]:
        by_arm: dict[str, list[str]] = defaultdict(list)
        for failed in self.failed:
            by_arm[failed.arm].append(failed.words)
        if not by_arm:
            return []
        arms = "; ".join(f"{arm}: {' and '.join(words)}" for arm, words in by_arm.items())
        return [f"Failed trials have no verdict and count in no rate above. {arms}."]

    def _quiet_notes(self) -> list[str]:
        by_second: dict[str, list[str]] = defaultdict(list)
        for first, second in self.quiet:
            by_second[second].append(first)
        return [
            f"No trial is corrupt in any combination of {second} with {', '.join(firsts)}: nothing to attribute."
            for second, firsts in by_second.items()
        ]

    def _within_notes(self) -> list[str]:
        if not self.within:
            return []
        strata = self.within[0].strata
        why = "a reference arm's rate moved" if self.drifts else f"trials come from {self.machines} machines"
        single = len({found.reference for found in self.within}) == 1
        readings = [
            f"{found.arm}{'' if single else f' against {found.reference}'} {p_words(found.p_adjusted)}"
            for found in self.within
        ]
        against = f" against {self.within[0].reference}" if single else ""
        return [
            f"Contrasts{against} within {strata}s, because {why} (exact, two-sided, Holm over {len(readings)}): "
            f"{', '.join(readings)}{self._caution}."
        ]


@dataclass(frozen=True)
class _Trial:
    round: int
    machine: str | None
    arm: str
    corrupt: bool


def findings_of(plan: Plan, judged: pa.Table, arms: Sequence[Mapping[str, Any]]) -> Findings:
    """Everything that plan, judged trials and counts (rows of `arms.parquet`) say beside the declared contrasts."""
    rule = stop_rule_from_mapping(plan.stop)
    watched = rule.kind == "sequential"
    trials = _judged(judged)
    counts = {row["arm"]: (row["n_corrupt"], row["n"]) for row in arms}
    drifts = _drifts(plan, trials, rule.alpha)
    machines = len({trial.machine for trial in trials})
    strata = "round" if drifts else "machine"
    sets = crossed_settings(plan)
    pairs = _undeclared(plan)
    return Findings(
        failed=tuple(_failed(arms, 1 - rule.alpha, watched)),
        drifts=drifts,
        machines=machines,
        within=tuple(_within(plan, trials, strata)) if drifts or machines > 1 else (),
        crossed=tuple(_crossed(sets, counts, rule.alpha)),
        quiet=tuple((arms[1].name, arms[2].name) for arms in sets if not _bad(arms, counts)),
        hints=_hints(plan, counts, [both.name for *_, both in sets], rule.alpha),
        pairs=tuple(_pairs(pairs, counts, rule.alpha)),
        pairs_tested=len(pairs),
        watched=watched,
    )


def _judged(judged: pa.Table) -> list[_Trial]:
    no_verdict = (Verdict.FAILED.value, Verdict.UNJUDGED.value)
    columns = (judged.column(name).to_pylist() for name in ("round", "machine", "arm", "corrupt", "verdict"))
    return [
        _Trial(number, machine, arm, bool(corrupt))
        for number, machine, arm, corrupt, verdict in zip(*columns, strict=True)
        if verdict not in no_verdict
    ]


# Failures


def _failed(arms: Iterable[Mapping[str, Any]], confidence: float, watched: bool) -> Iterable[FailedRate]:
    for row in arms:
        outcomes: dict[str, int] = json.loads(row["outcomes"] or "{}")
        trials = sum(outcomes.values())
        for outcome, count in sorted(outcomes.items()):
            if outcome != Outcome.OK.value and count:
                ends = rate_bounds(count, trials, confidence, always=watched)
                yield FailedRate(row["arm"], outcome, count, trials, count / trials, ends.low, ends.high, confidence)


# Rounds and machines


def _drifts(plan: Plan, trials: Sequence[_Trial], alpha: float) -> tuple[Drift, ...]:
    """Reference arms whose rate moved between the first and the second half of their rounds."""
    references = dict.fromkeys(reference for _, reference in plan.contrasts())
    found = []
    for arm in references:
        by_round: dict[int, tuple[int, int]] = {}
        for trial in trials:
            if trial.arm == arm:
                bad, runs = by_round.get(trial.round, (0, 0))
                by_round[trial.round] = (bad + trial.corrupt, runs + 1)
        drift = baseline_drift(by_round, alpha, arm=arm)
        if drift is not None and drift.moved:
            found.append(drift)
    return tuple(found)


def _within(plan: Plan, trials: Sequence[_Trial], strata: str) -> list[WithinStrata]:
    counts: dict[str, dict[Any, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for trial in trials:
        # A round that was resumed elsewhere has trials of two machines.
        key = (trial.round, trial.machine) if strata == "round" else trial.machine
        cell = counts[trial.arm][key]
        cell[0] += trial.corrupt
        cell[1] += 1
    found = []
    for arm, reference in plan.contrasts():
        blocks = [
            Block(*counts[arm][key], *counts[reference][key]) for key in counts[arm].keys() & counts[reference].keys()
        ]
        if blocks:
            found.append((arm, reference, stratified_exact(blocks).two_sided))
    adjusted = holm([p for *_, p in found])
    return [
        WithinStrata(arm, reference, strata, p, p_adjusted)
        for (arm, reference, p), p_adjusted in zip(found, adjusted, strict=True)
    ]


# Crossed settings


def crossed_settings(plan: Plan) -> list[tuple[Arm, Arm, Arm, Arm]]:
    """All (neither, only one, only the other, both) of the plan: an arm that two other arms make up together.

    In a crossed design the second one is the arm's own reference arm.
    """
    real = [arm for arm in plan.arms if not arm.control]
    by_changes = {frozenset(arm.changes): arm for arm in real}
    found = []
    for both in real:
        if both.reference != plan.baseline.name:
            partners = [plan.arm(both.reference)]
        else:
            partners = [arm for arm in real if arm.changes and set(arm.changes) < set(both.changes)]
        seen: set[frozenset[str]] = set()
        for second in partners:
            first = by_changes.get(frozenset(both.changes) - frozenset(second.changes))
            if first is None or not first.changes or frozenset((first.name, second.name)) in seen:
                continue
            seen.add(frozenset((first.name, second.name)))
            ordered = (first, second) if both.reference == second.name else _in_order(plan, first, second)
            found.append((plan.baseline, *ordered, both))
    return found


def _in_order(plan: Plan, first: Arm, second: Arm) -> tuple[Arm, Arm]:
    return (first, second) if plan.arms.index(first) < plan.arms.index(second) else (second, first)


def _bad(arms: Sequence[Arm], counts: Mapping[str, tuple[int, int]]) -> int:
    return sum(counts.get(arm.name, (0, 0))[0] for arm in arms)


def _crossed(
    sets: Sequence[tuple[Arm, Arm, Arm, Arm]], counts: Mapping[str, tuple[int, int]], alpha: float
) -> Iterable[CrossedSettings]:
    """Sets in which every combination has a judged trial, and one a corrupt trial."""
    for arms in sets:
        names = tuple(arm.name for arm in arms)
        cells = tuple(counts.get(name, (0, 0)) for name in names)
        if not all(runs for _, runs in cells) or not _bad(arms, counts):
            continue
        _, first, second, _ = names
        result = crossed(*(Cell(*cell) for cell in cells), names=(first, second), alpha=alpha / len(sets))
        p_first, p_second = result.main_a.two_sided, result.main_b.two_sided
        family = f" ({alpha / len(sets):.2g} needed over {len(sets)} combinations)" if len(sets) > 1 else ""
        sentence = (
            f"{result.sentence}{family}; each within the levels of the other: "
            f"{first} {p_words(p_first)}, {second} {p_words(p_second)}"
        )
        yield CrossedSettings(
            first,
            second,
            (names[0], first, second, names[3]),
            cells,
            p_first,
            p_second,
            result.interaction,
            result.interaction_p,
            result.odds_p,
            result.interaction_p <= alpha / len(sets),
            sentence,
        )


def _hints(plan: Plan, counts: Mapping[str, tuple[int, int]], tested: Sequence[str], alpha: float) -> tuple[str, ...]:
    """Hints at interactions that a one-at-a-time plan cannot see; a crossed plan tests them instead."""
    if any(reference != plan.baseline.name for _, reference in plan.contrasts()):
        return ()
    arms = [
        OneArm(
            arm.name,
            frozenset(name for name, _ in arm.changes),
            *counts.get(arm.name, (0, 0)),
            changes=frozenset(f"{name}={level}" for name, level in arm.changes),
        )
        for arm in plan.arms
        if not arm.control and not _moves_plant(arm) and (arm.changes or arm is plan.baseline)
    ]
    return interaction_hints(arms, alpha, tested=tested)


def _moves_plant(arm: Arm) -> bool:
    """Whether the arm's difference from the baseline is a fault that was planted: nothing to find out about."""
    return any(name.split(".")[0] == "plant" for name, _ in arm.changes)


# Pairs that nobody declared


def _undeclared(plan: Plan) -> list[tuple[str, str]]:
    """All pairs of arms that are no reference arm of any contrast."""
    references = {reference for _, reference in plan.contrasts()}
    return list(combinations([arm for arm, _ in plan.contrasts() if arm not in references], 2))


def _pairs(pairs: Sequence[tuple[str, str]], counts: Mapping[str, tuple[int, int]], alpha: float) -> Iterable[Pair]:
    p_values = [_pair_p(counts.get(arm, (0, 0)), counts.get(other, (0, 0))) for arm, other in pairs]
    for (arm, other), p, p_adjusted in zip(pairs, p_values, holm(p_values), strict=True):
        if p_adjusted > alpha:
            continue
        high, low = sorted((arm, other), key=lambda name: -counts[name][0] / counts[name][1])
        yield Pair(high, low, (counts[high], counts[low]), p, p_adjusted)


def _pair_p(own: tuple[int, int], other: tuple[int, int]) -> float:
    if not own[1] or not other[1] or own[0] * other[1] == other[0] * own[1]:
        return 1.0  # equal rates: both one-sided values are above one half
    return boschloo(*own, *other).two_sided
