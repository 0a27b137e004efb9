"""What a plan can show, and what it will cost, before anything is run.

For each rate that the user names: one arm of the largest family is corrupt at that rate, every other arm and
the baseline at the baseline's. The sequential design is simulated (seeded), the fixed one enumerated.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .arm import Arm
from .plan import Plan
from .statistics.contrast import smallest_p
from .statistics.power import EXACT_RUNS, Design, clean_runs, fixed_power, runs_for_power
from .statistics.rule import StopRule, stop_rule_from_mapping
from .statistics.sequential import Kind
from .statistics.simulation import KINDS, ExpectedRun, expected_run, run_matrices
from .statistics.words import p_words, percent

__all__ = ["Expected", "Forecast", "ForecastError", "forecast"]

_SEED = 1
_MOST_REPEATS = 400
_ENTRIES = 200_000
"""Outcomes that one simulation draws at most (arms x rounds x repeats), so that all of them stay below a second."""


class ForecastError(ValueError):
    """A rate is no rate."""


@dataclass(frozen=True)
class Expected:
    """What the plan comes to if one arm is corrupt at `rate` (0..1) and nothing else differs from the baseline."""

    rate: float
    differs: float  # chance that the arm is told from the baseline, 0..1
    runs: float  # runs per arm: mean until that arm is closed (sequential), or those of the design (fixed)
    trials: float  # of all arms: mean (sequential), or those of the design (fixed)
    trials_p90: float | None  # 90th percentile; None for the fixed design
    for_power: Design | None  # the fixed design that tells this rate with 80 % power; None if rates are equal


@dataclass(frozen=True)
class Forecast:
    """The forecast of a plan; `sentences` say what holds for every rate."""

    kind: str
    arms: int
    contrasts: int
    rounds: int
    most_trials: int
    baseline_rate: float
    family: int  # contrasts of the largest family
    families: int
    repeats: int | None  # of the simulation; None for the fixed design
    expected: tuple[Expected, ...]
    sentences: tuple[str, ...]


def forecast(plan: Plan, rates: Sequence[float], baseline_rate: float = 0.0) -> Forecast:
    """Forecast a plan. Raises `ForecastError` for a rate outside 0..1."""
    for name, rate in [("plan.baseline_rate", baseline_rate), *(("plan.rates", rate) for rate in rates)]:
        if not 0 <= rate <= 1:
            raise ForecastError(f"{name}: {rate!r} is no rate between 0 and 1")
    families = _families(plan)
    rule = stop_rule_from_mapping(plan.stop)
    shared = dataclasses.replace(rule, alpha=rule.alpha / max(1, len(families)))
    largest = max((len(arms) for arms in families.values()), default=0)
    most = len(plan.arms) * plan.rounds
    most_trials = most if rule.max_trials is None else min(most, rule.max_trials)
    expected: tuple[Expected, ...] = ()
    sentences: tuple[str, ...] = ()
    repeats = None
    if largest and rule.kind == "fixed":
        expected = tuple(_fixed(plan, rate, baseline_rate, shared, largest) for rate in rates)
        sentences = _fixed_sentences(shared, largest, baseline_rate)
    elif largest:
        simulated = _Simulated(plan, families, shared, baseline_rate)
        repeats = simulated.repeats
        expected = tuple(simulated.with_one_arm_at(rate) for rate in rates)
        sentences = simulated.sentences()
    return Forecast(
        rule.kind,
        len(plan.arms),
        len(plan.contrasts()),
        plan.rounds,
        most_trials,
        baseline_rate,
        largest,
        len(families),
        repeats,
        expected,
        sentences,
    )


def _families(plan: Plan) -> dict[str, list[Arm]]:
    families: dict[str, list[Arm]] = defaultdict(list)
    for arm, reference in plan.contrasts():
        families[reference].append(plan.arm(arm))
    return families


# Fixed designs


def _fixed(plan: Plan, rate: float, baseline_rate: float, rule: StopRule, family: int) -> Expected:
    alpha = rule.alpha / family
    needed = runs_for_power(rate, baseline_rate, alpha=alpha)
    power = fixed_power(rate, baseline_rate, min(rule.rounds, EXACT_RUNS), alpha=alpha)
    return Expected(rate, power, rule.rounds, len(plan.arms) * rule.rounds, None, needed)


def _fixed_sentences(rule: StopRule, family: int, baseline_rate: float) -> tuple[str, ...]:
    alpha = rule.alpha / family
    best = smallest_p(rule.rounds, rule.rounds)
    contrasts = "the contrast" if family == 1 else f"any of {family} contrasts"
    sentences = []
    if best > alpha:
        sentences.append(
            f"{rule.rounds} rounds cannot decide {contrasts} whatever comes out: {p_words(best)} at best, "
            f"and {alpha:.2g} is needed."
        )
    if rule.clean_bound is not None and baseline_rate < rule.clean_bound:
        needed = clean_runs(rule.clean_bound, 1 - alpha)
        verb = "are enough" if needed <= rule.rounds else "would be needed"
        sentences.append(
            f"{needed} rounds without a corrupt trial {verb} to show an arm's rate below {percent(rule.clean_bound)}."
        )
    return tuple(sentences)


# Sequential designs


class _Simulated:
    """Simulations of one plan; families in which nothing differs are simulated once."""

    def __init__(self, plan: Plan, families: dict[str, list[Arm]], rule: StopRule, baseline_rate: float) -> None:
        self._plan = plan
        self._families = families
        self._rule = rule
        self._baseline_rate = baseline_rate
        widest = max(len(arms) for arms in families.values())
        self.repeats = max(50, min(_MOST_REPEATS, _ENTRIES // (widest * rule.rounds)))
        self._affected = max(families, key=lambda reference: len(families[reference]))
        self._quiet = {reference: self._run(reference, {}) for reference in families}

    def _run(self, reference: str, rates: dict[str, float]) -> ExpectedRun:
        every = {arm.name: rates.get(arm.name, self._baseline_rate) for arm in self._families[reference]}
        return expected_run(every, self._baseline_rate, self._rule, repeats=self.repeats, seed=_SEED)

    def with_one_arm_at(self, rate: float) -> Expected:
        members = self._families[self._affected]
        # An arm that others are compared with runs longer than its own contrast needs.
        arm = next((arm.name for arm in members if arm.name not in self._families), members[0].name)
        run = self._run(self._affected, {arm: rate})
        own = next(found for found in run.arms if found.arm == arm)
        runs = {**self._quiet, self._affected: run}
        trials = self._trials(runs)
        needed = runs_for_power(rate, self._baseline_rate, alpha=self._rule.alpha / len(members))
        above_mean = run.trials_p90 - run.trials
        return Expected(rate, own.shares[Kind.DIFFERS], own.rounds, trials, trials + above_mean, needed)

    def _trials(self, runs: dict[str, ExpectedRun]) -> float:
        """Trials of all families; a reference arm that is itself a member elsewhere runs once, not twice."""
        rounds = {found.arm: found.rounds for run in runs.values() for found in run.arms}
        once = sum(run.trials for run in runs.values()) - sum(rounds.get(reference, 0.0) for reference in runs)
        lengths = [run.trials - sum(found.rounds for found in run.arms) for run in runs.values()]
        return once + sum(arm.control is not None for arm in self._plan.arms) * max(lengths)

    def sentences(self) -> tuple[str, ...]:
        decided, closed = self._at_best()
        quiet = f"If no arm differs: about {self._trials(self._quiet):,.0f} trials"
        if self._rule.clean_bound is not None and self._baseline_rate == 0:
            bound = percent(self._rule.clean_bound)
            quiet += (
                f"; {self._rule.rounds} rounds are too few to show any arm's rate below {bound}"
                if closed is None
                else f", each arm closed as below {bound} after {closed} rounds"
            )
        sentences = [f"{quiet}."]
        family = len(self._families[self._affected])
        contrasts = "the contrast" if family == 1 else f"any of {family} contrasts"
        if not decided:
            sentences.insert(0, f"{self._rule.rounds} rounds cannot decide {contrasts} whatever comes out.")
        return tuple(sentences)

    def _at_best(self) -> tuple[bool, int | None]:
        """Whether all corrupt against none corrupt can be told, and when arms without a corrupt trial are closed."""
        size, rounds = len(self._families[self._affected]), self._rule.rounds
        baseline = np.zeros((1, rounds), dtype=bool)
        arms = np.zeros((1, size, rounds), dtype=bool)
        below = run_matrices(arms, baseline, self._rule)
        arms[0, 0] = True
        told = run_matrices(arms, baseline, self._rule)
        closed = KINDS[int(below.kind[0, 0])] is not Kind.UNDECIDED
        return KINDS[int(told.kind[0, 0])] is Kind.DIFFERS, int(below.rounds[0, 0]) if closed else None
