"""Decisions from rows: which arm differs from the baseline, is clean below a bound, or is still undecided.

A pure function of the rows of the record. The sequential rule walks through the rounds in order and decides
every arm at the first round at which its evidence suffices, from the rows up to that round alone; an arm that
is decided keeps its evidence and takes no further part. Three claims, each with its own e values (see
`eprocess` and `confidence_sequence`) and each closed over the declared family by e-Holm:

* differs: against "the arm has the baseline's rate", in either direction;
* clean below the bound: against "the arm's rate is at least the bound";
* equivalent: against "the rates differ by at least the margin".

Since all of them are e-processes, looking after every round costs no error. Where the baseline itself fails
more often than the bound (the usual isolation run), an arm is not closed as clean while it may still be told
from the baseline: that is the question there, and the clean claim is kept for the end of the budget.
The fixed rule looks once, with Boschloo and Holm.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from .bounds import rate_bounds
from .confidence_sequence import PairedDifference, rate_below_e
from .contrast import boschloo, smallest_p
from .difference import difference_interval
from .eprocess import Block, TwoStreams
from .interval import clopper_pearson
from .multiplicity import e_holm, holm
from .power import clean_runs, runs_for_power
from .rule import StopRule
from .words import (
    counts_words,
    difference_words,
    e_words,
    needed_words,
    p_words,
    percent,
    rate_words,
    reach_words,
)

__all__ = ["Decision", "Kind", "Row", "decide", "open_arms"]

Row = tuple[int, str, "bool | None"]
"""Round from 0, arm, and whether the trial is corrupt; None where it failed or could not be judged."""


class Kind(str, Enum):
    """What is known about an arm."""

    DIFFERS = "differs"
    CLEAN_BELOW_BOUND = "clean_below_bound"
    EQUIVALENT = "equivalent"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Decision:
    """What the rows say about one arm, with everything that led to it."""

    arm: str
    kind: Kind
    closed: bool  # no further trial of this arm is needed or allowed
    reason: str
    round: int | None  # round at which it was closed; None while open
    e: float | None  # evidence of the claim (while undecided: of a difference); None for the fixed rule
    e_adjusted: float | None  # the same within the family; a claim needs 1 / alpha
    p_adjusted: float | None  # Holm-adjusted Boschloo p, two-sided; None for the sequential rule
    bad: int
    runs: int  # judged trials
    failed: int  # trials without a verdict
    baseline_bad: int  # of the rounds in which both have a judged trial
    baseline_runs: int
    # Bounds of the arm's own rate at level 1 - alpha, 0..1; they hold at every round under the sequential rule.
    rate_low: float | None  # two-sided interval; None without judged trials
    rate_high: float | None
    rate_below: float | None  # one-sided upper bound
    # An undecided arm whose budget is used up: about how many runs per arm, and what they would show.
    needed_runs: int | None = None
    needed_for: Kind | None = None  # `DIFFERS`, or `CLEAN_BELOW_BOUND` after no corrupt trial at all


@dataclass(frozen=True)
class _Evidence:
    e: float | None = None
    e_adjusted: float | None = None
    p_adjusted: float | None = None


@dataclass
class _Count:
    bad: int = 0
    runs: int = 0
    failed: int = 0

    def add(self, corrupt: bool | None) -> None:
        self.failed += corrupt is None
        self.runs += corrupt is not None
        self.bad += corrupt is True

    @property
    def trials(self) -> int:
        return self.runs + self.failed


@dataclass
class _Arm:
    """Evidence about one arm so far; frozen in place by a decision."""

    name: str
    streams: TwoStreams = field(default_factory=TwoStreams)
    pairs: PairedDifference = field(default_factory=PairedDifference)
    count: _Count = field(default_factory=_Count)
    decision: Decision | None = None

    def take(self, own: _Count, baseline: _Count) -> None:
        self.count.bad += own.bad
        self.count.runs += own.runs
        self.count.failed += own.failed
        block = Block(own.bad, own.runs, baseline.bad, baseline.runs)
        self.streams = self.streams.after(block)
        if block.complete:
            self.pairs = self.pairs.after(own.bad / own.runs - baseline.bad / baseline.runs)


def decide(
    rows: Iterable[Row],
    *,
    baseline: str,
    rule: StopRule,
    family: Sequence[str] | None = None,
    wall_s: float | None = None,
    trials_by_round: Mapping[int, int] | None = None,
) -> dict[str, Decision]:
    """Decide every arm of the family against the baseline.

    `rows` may come in any order: what counts is the round each belongs to, and the order within a round has
    no influence. Rounds are numbered from 0; a round without any row holds back the later ones, so that
    rounds which finish out of order on several machines cannot change a decision. Call it when rounds are
    complete.
    `family` declares the arms whose claims share `alpha` (default: all arms seen); arms without rows count as
    members. `wall_s` is the time spent so far; `trials_by_round` counts trials for `max_trials` where a run has
    more of them than `rows`. Raises `ValueError` for rows of an undeclared arm.
    """
    rounds, own_trials = _by_round(rows)
    trials_in_round = own_trials if trials_by_round is None else trials_by_round
    seen = {arm for counts in rounds.values() for arm in counts} - {baseline}
    members = sorted(seen if family is None else set(family) - {baseline})
    strangers = sorted(seen - set(members))
    if strangers:
        raise ValueError(f"rows of arm {strangers[0]!r}, which is not in the declared family: {', '.join(members)}")
    ready = next(number for number in range(len(rounds) + 1) if number not in rounds)
    walk = _Walk(rule, baseline, [_Arm(name) for name in members])
    for number in range(min(ready, rule.rounds)):
        walk.round(number, rounds[number], trials_in_round.get(number, 0))
    if wall_s is not None and rule.max_wall_s is not None and wall_s >= rule.max_wall_s:
        walk.close(f"the wall time of {rule.max_wall_s:g} s is used up")
    walk.finish(waiting=len(rounds) - ready)
    return {arm.name: arm.decision for arm in walk.arms if arm.decision is not None}


def open_arms(decisions: dict[str, Decision]) -> tuple[str, ...]:
    """Arms that the next round must still run, by name. The baseline runs along while there is one."""
    return tuple(arm for arm, decision in sorted(decisions.items()) if not decision.closed)


def _by_round(rows: Iterable[Row]) -> tuple[dict[int, dict[str, _Count]], dict[int, int]]:
    rounds: dict[int, dict[str, _Count]] = {}
    trials: dict[int, int] = {}
    for number, arm, corrupt in rows:
        if number < 0:
            raise ValueError(f"round {number} of arm {arm!r}: rounds are numbered from 0")
        rounds.setdefault(number, {}).setdefault(arm, _Count()).add(corrupt)
        trials[number] = trials.get(number, 0) + 1
    return rounds, trials


class _Walk:
    """One pass through the rounds."""

    def __init__(self, rule: StopRule, baseline: str, arms: list[_Arm]) -> None:
        self.rule = rule
        self.baseline = baseline
        self.arms = arms
        self.rounds = 0
        self.trials = 0

    @property
    def open(self) -> list[_Arm]:
        return [arm for arm in self.arms if arm.decision is None]

    def round(self, number: int, counts: dict[str, _Count], trials: int) -> None:
        for arm in self.open:
            arm.take(counts.get(arm.name, _Count()), counts.get(self.baseline, _Count()))
        self.rounds = number + 1
        self.trials += trials
        if self.rule.kind == "sequential":
            if self.rounds >= self.rule.min_rounds:
                self._look()
        elif self.rounds == self.rule.rounds:
            self._look_once()
        for arm in self.open:
            self._give_up(arm)
        if self.rule.max_trials is not None and self.trials >= self.rule.max_trials:
            self.close(f"the budget of {self.rule.max_trials:,} trials is used up")

    def finish(self, *, waiting: int) -> None:
        if self.rounds >= self.rule.rounds:
            self.close(f"all {self.rule.rounds} rounds are run")
        note = f"; {waiting} later rounds wait for round {self.rounds}" if waiting else ""
        for arm in self.open:
            e = "" if self.rule.kind == "fixed" else f" ({e_words(arm.streams.e)})"
            reason = f"open after {self.rounds} rounds: {self._against(arm)}{e}{note}"
            arm.decision = self._decision(arm, Kind.UNDECIDED, reason, self._difference_evidence(arm), closed=False)

    def close(self, why: str) -> None:
        if self.rule.kind == "sequential" and self.rounds >= self.rule.min_rounds:
            self._look(last=True)
        for arm in self.open:
            evidence = self._difference_evidence(arm)
            arm.decision = self._undecided(arm, f"undecided, {why}", evidence, self._needed(arm))

    def _look(self, *, last: bool = False) -> None:
        """Sequential: the first claim whose closed e value reaches 1 / alpha decides."""
        claims = [(Kind.DIFFERS, [arm.streams.e for arm in self.arms])]
        if self.rule.clean_bound is not None:
            bound = self.rule.clean_bound
            below = [rate_below_e(arm.count.bad, arm.count.runs, bound) for arm in self.arms]
            claims.append((Kind.CLEAN_BELOW_BOUND, below))
        if self.rule.equivalence_margin is not None:
            margin = self.rule.equivalence_margin
            claims.append((Kind.EQUIVALENT, [arm.pairs.within_e(margin) for arm in self.arms]))
        for kind, e_values in claims:
            self._settle(kind, e_values, last=last)

    def _settle(self, kind: Kind, e_values: list[float], *, last: bool) -> None:
        """Decide the open arms whose closed e value of this claim suffices."""
        needed = 1 / self.rule.alpha
        near = [i for i, arm in enumerate(self.arms) if arm.decision is None and e_values[i] >= needed]
        if not near:
            return  # a closed e value is never above the plain one
        adjusted = e_holm(e_values)
        for i in near:
            arm = self.arms[i]
            held_back = kind is Kind.CLEAN_BELOW_BOUND and not last and self._baseline_fails(arm)
            if adjusted[i] >= needed and not held_back:
                reason = self._claim_words(arm, kind, self._evidence_words(e_values[i], adjusted[i]))
                arm.decision = self._decision(arm, kind, reason, _Evidence(e_values[i], adjusted[i]))

    def _baseline_fails(self, arm: _Arm) -> bool:
        bound = self.rule.clean_bound
        return bound is not None and arm.streams.reference_bad > bound * arm.streams.reference_runs

    def _look_once(self) -> None:
        """Fixed: one look at the counts of all rounds."""
        family = max(1, len(self.arms))
        tested = [arm for arm in self.arms if arm.count.runs and arm.streams.reference_runs]
        p_values = [1.0] * len(self.arms)
        for position, arm in enumerate(self.arms):
            if arm in tested:
                p_values[position] = boschloo(*self._table(arm)).two_sided
        for arm, p, p_adjusted in zip(self.arms, p_values, holm(p_values), strict=True):
            if arm not in tested or arm.decision is not None:
                continue
            kind = self._fixed_kind(arm, p_adjusted, self.rule.alpha / family)
            evidence = _Evidence(p_adjusted=p_adjusted)
            if kind is Kind.UNDECIDED:
                why = f"undecided, all {self.rule.rounds} rounds are run"
                arm.decision = self._undecided(arm, why, evidence, self._needed(arm))
            else:
                words = f"{p_words(p)}, {p_words(p_adjusted)} within the family of {family}"
                arm.decision = self._decision(arm, kind, self._claim_words(arm, kind, words), evidence)

    def _fixed_kind(self, arm: _Arm, p_adjusted: float, alpha: float) -> Kind:
        if p_adjusted <= self.rule.alpha:
            return Kind.DIFFERS
        bound, margin = self.rule.clean_bound, self.rule.equivalence_margin
        # A two-sided interval at 1 - 2 alpha has one-sided ends at alpha each.
        if bound is not None and clopper_pearson(arm.count.bad, arm.count.runs, 1 - 2 * alpha).high < bound:
            return Kind.CLEAN_BELOW_BOUND
        if margin is not None:
            difference = difference_interval(*self._table(arm), 1 - 2 * alpha)
            if -margin < difference.low and difference.high < margin:
                return Kind.EQUIVALENT
        return Kind.UNDECIDED

    def _give_up(self, arm: _Arm) -> None:
        limit = self.rule.give_up_after
        if limit is not None and arm.count.runs == 0 and arm.count.failed >= limit:
            reason = f"undecided: all {arm.count.failed} trials failed, so there is nothing to judge"
            arm.decision = self._decision(arm, Kind.UNDECIDED, reason, _Evidence())

    @staticmethod
    def _table(arm: _Arm) -> tuple[int, int, int, int]:
        return arm.streams.bad, arm.streams.runs, arm.streams.reference_bad, arm.streams.reference_runs

    @staticmethod
    def _against(arm: _Arm) -> str:
        own = counts_words(arm.count.bad, arm.count.runs)
        return f"{own} against {counts_words(arm.streams.reference_bad, arm.streams.reference_runs)}"

    def _difference_evidence(self, arm: _Arm) -> _Evidence:
        if self.rule.kind == "fixed":
            return _Evidence()
        closed = e_holm([other.streams.e for other in self.arms])
        return _Evidence(arm.streams.e, closed[self.arms.index(arm)])

    def _evidence_words(self, e: float, e_adjusted: float) -> str:
        if len(self.arms) < 2:
            return f"{e_words(e)}, {1 / self.rule.alpha:g} needed"
        within = e_words(e_adjusted).removeprefix("e ").removeprefix("= ")
        return f"{e_words(e)}, {within} within the family of {len(self.arms)}, {1 / self.rule.alpha:g} needed"

    def _claim_words(self, arm: _Arm, kind: Kind, evidence: str) -> str:
        if kind is Kind.DIFFERS:
            bad, runs, baseline_bad, baseline_runs = self._table(arm)
            where = difference_words(bad / runs, baseline_bad / baseline_runs)
            return f"differs ({evidence}): {self._against(arm)}, {where}"
        if kind is Kind.CLEAN_BELOW_BOUND:
            counts = counts_words(arm.count.bad, arm.count.runs)
            return f"{counts}: rate below {percent(self.rule.clean_bound or 0)} ({evidence})"
        points = 100 * (self.rule.equivalence_margin or 0)
        return f"equivalent within {points:g} points of rate ({evidence}): {self._against(arm)}"

    def _needed(self, arm: _Arm) -> tuple[int, Kind] | None:
        """About how many runs per arm would decide the arm at its observed rates, and as what."""
        bad, runs, baseline_bad, baseline_runs = self._table(arm)
        if runs == 0:
            return None
        design = runs_for_power(bad / runs, baseline_bad / baseline_runs, alpha=self.rule.alpha / len(self.arms))
        if design is not None:
            return design.runs, Kind.DIFFERS
        bound = self.rule.clean_bound
        if bound is None or arm.count.bad:
            return None
        needed = self._clean_runs(bound)
        return (needed, Kind.CLEAN_BELOW_BOUND) if needed > arm.count.runs else None

    def _clean_runs(self, bound: float) -> int:
        """Runs without a corrupt trial after which an arm is below the bound."""
        if self.rule.kind == "fixed":
            return clean_runs(bound, 1 - self.rule.alpha / len(self.arms))
        return next(runs for runs in itertools.count(1) if rate_below_e(0, runs, bound) >= 1 / self.rule.alpha)

    def _undecided(self, arm: _Arm, why: str, evidence: _Evidence, needed: tuple[int, Kind] | None) -> Decision:
        reason = f"{why}: {self._still_needed(arm, needed)}"
        decision = self._decision(arm, Kind.UNDECIDED, reason, evidence)
        return decision if needed is None else replace(decision, needed_runs=needed[0], needed_for=needed[1])

    def _still_needed(self, arm: _Arm, needed: tuple[int, Kind] | None) -> str:
        """The counts, what they bound, and the runs that would be needed."""
        count = arm.count
        bounded = rate_words(count.bad, count.runs, 1 - self.rule.alpha, always=self.rule.kind == "sequential")
        bad, runs, baseline_bad, baseline_runs = self._table(arm)
        if runs == 0:
            return f"{bounded}; no round has a judged trial of both this arm and the baseline"
        alpha = self.rule.alpha / len(self.arms)
        rates = bad / runs, baseline_bad / baseline_runs
        if needed is not None and needed[1] is Kind.CLEAN_BELOW_BOUND:
            words = (
                f"about {needed[0]} runs without a corrupt one show a rate below {percent(self.rule.clean_bound or 0)}"
            )
        else:
            words = needed_words(runs_for_power(*rates, alpha=alpha), *rates)
        if self.rule.kind == "fixed" and smallest_p(runs, baseline_runs) > alpha:
            words = f"{reach_words(runs, baseline_runs, smallest_p(runs, baseline_runs), alpha)}; {words}"
        return f"{bounded}; baseline {counts_words(baseline_bad, baseline_runs)}; {words}"

    def _decision(
        self,
        arm: _Arm,
        kind: Kind,
        reason: str,
        evidence: _Evidence,
        *,
        closed: bool = True,
    ) -> Decision:
        count = arm.count
        low = high = below = None
        if count.runs:
            ends = rate_bounds(count.bad, count.runs, 1 - self.rule.alpha, always=self.rule.kind == "sequential")
            low, high, below = ends.low, ends.high, ends.below
        return Decision(
            arm=arm.name,
            kind=kind,
            closed=closed,
            reason=reason,
            round=self.rounds - 1 if closed else None,
            e=evidence.e,
            e_adjusted=evidence.e_adjusted,
            p_adjusted=evidence.p_adjusted,
            bad=count.bad,
            runs=count.runs,
            failed=count.failed,
            baseline_bad=arm.streams.reference_bad,
            baseline_runs=arm.streams.reference_runs,
            rate_low=low,
            rate_high=high,
            rate_below=below,
        )
