"""What a sequential design will cost: seeded simulation of whole matrices, all repetitions at once.

The same rule as `sequential.decide`, written a second time over arrays (and tested against it): every judged
trial of every arm is one entry, no trial fails, one trial per arm and round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .confidence_sequence import FRACTIONS, WEIGHTS
from .eprocess import PRIOR
from .multiplicity import e_holm_rows
from .rule import StopRule
from .sequential import Kind

__all__ = ["KINDS", "ExpectedArm", "ExpectedRun", "Matrices", "expected_run", "run_matrices"]

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

KINDS = (Kind.UNDECIDED, Kind.DIFFERS, Kind.CLEAN_BELOW_BOUND, Kind.EQUIVALENT)
"""Meaning of the numbers in `Matrices.kind`."""

_LOG_CAP = 650.0


@dataclass(frozen=True)
class Matrices:
    """Results of simulated matrices; shapes (matrices, arms) and (matrices,)."""

    kind: NDArray[np.int8]  # index into KINDS
    rounds: NDArray[np.int64]  # rounds that the arm took part in
    trials: NDArray[np.int64]  # trials of all arms and the baseline


@dataclass(frozen=True)
class ExpectedArm:
    """One arm over all repetitions: mean rounds until closed and the share of each end (0..1)."""

    arm: str
    rate: float
    rounds: float
    shares: dict[Kind, float]


@dataclass(frozen=True)
class ExpectedRun:
    """A whole run: mean and 90th percentile of its trials, baseline included, and each arm."""

    trials: float
    trials_p90: float
    arms: tuple[ExpectedArm, ...]
    repeats: int
    seed: int


def expected_run(
    rates: Mapping[str, float], baseline_rate: float, rule: StopRule, *, repeats: int = 400, seed: int = 1
) -> ExpectedRun:
    """Trials that a sequential run is expected to take if the arms really have these rates.

    `rates`: rate per arm (baseline left out), 0..1. Raises `ValueError` for another rule or no arm.
    """
    if rule.kind != "sequential" or not rates:
        raise ValueError("expected runs are simulated for a sequential rule and at least one arm")
    generator = np.random.default_rng(seed)
    levels = np.array(list(rates.values()), dtype=float)
    arms = generator.random((repeats, len(levels), rule.rounds)) < levels[None, :, None]
    result = run_matrices(arms, generator.random((repeats, rule.rounds)) < baseline_rate, rule)
    per_arm = tuple(
        ExpectedArm(
            arm,
            rate,
            float(result.rounds[:, position].mean()),
            {kind: float(np.mean(result.kind[:, position] == index)) for index, kind in enumerate(KINDS)},
        )
        for position, (arm, rate) in enumerate(rates.items())
    )
    p90 = float(np.percentile(result.trials, 90))
    return ExpectedRun(float(result.trials.mean()), p90, per_arm, repeats, seed)


def run_matrices(arms: Flags, baseline: Flags, rule: StopRule) -> Matrices:
    """Run the sequential rule over given outcomes.

    `arms`: corrupt or not, shape (matrices, arms, rounds); `baseline`: shape (matrices, rounds). Only the
    budget `rounds` of the rule is simulated; `max_trials` and `max_wall_s` are not.
    """
    state = _State.start(arms.shape[0], arms.shape[1])
    kind = np.zeros(arms.shape[:2], dtype=np.int8)
    rounds = np.zeros(arms.shape[:2], dtype=np.int64)
    length = np.zeros(arms.shape[0], dtype=np.int64)
    live = np.arange(arms.shape[0])  # matrices with an open arm
    for number in range(min(arms.shape[2], rule.rounds)):
        part = state.of(live)
        is_open = kind[live] == 0
        part.take(arms[live, :, number], baseline[live, number], is_open)
        rounds[live] += is_open
        length[live] = number + 1
        if number + 1 >= rule.min_rounds:
            last = number + 1 == min(arms.shape[2], rule.rounds)
            kind[live] = part.decide(rule, kind[live], last)
        state.put(live, part)
        live = live[np.any(kind[live] == 0, axis=1)]
        if not len(live):
            break
    return Matrices(kind, rounds, rounds.sum(axis=1) + length)


@dataclass
class _State:
    """Evidence of every arm of every matrix."""

    bad: Array
    baseline_bad: Array  # of the rounds that the arm took part in
    above: Array  # rounds in which only the arm was corrupt
    below: Array  # rounds in which only the baseline was
    rounds: Array
    log_e: Array

    @classmethod
    def start(cls, matrices: int, arms: int) -> _State:
        return cls(*(np.zeros((matrices, arms)) for _ in range(6)))

    def of(self, rows: NDArray[np.int64]) -> _State:
        return _State(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def put(self, rows: NDArray[np.int64], part: _State) -> None:
        for name in self.__dataclass_fields__:
            getattr(self, name)[rows] = getattr(part, name)

    def take(self, arms: Flags, baseline: Flags, is_open: Flags) -> None:
        own, other = arms, np.broadcast_to(baseline[:, None], arms.shape)
        rate = (self.bad + PRIOR) / (self.rounds + 2 * PRIOR)
        reference = (self.baseline_bad + PRIOR) / (self.rounds + 2 * PRIOR)
        pooled = (rate + reference) / 2
        gain = np.log(
            np.where(own, rate / pooled, (1 - rate) / (1 - pooled))
            * np.where(other, reference / pooled, (1 - reference) / (1 - pooled))
        )
        self.log_e += np.where(is_open, gain, 0)
        self.bad += own & is_open
        self.baseline_bad += other & is_open
        self.above += own & ~other & is_open
        self.below += ~own & other & is_open
        self.rounds += is_open

    def decide(self, rule: StopRule, kind: NDArray[np.int8], last: bool) -> NDArray[np.int8]:
        claims: list[tuple[int, Array]] = [(1, self.log_e)]
        if rule.clean_bound is not None:
            claims.append((2, _log_below(self.rounds - self.bad, self.bad, rule.clean_bound)))
        if rule.equivalence_margin is not None:
            level = self.rounds - self.above - self.below
            sides = [
                _log_within(up, level, down, rule.equivalence_margin)
                for up, down in ((self.above, self.below), (self.below, self.above))
            ]
            both: Array = np.minimum(sides[0], sides[1])
            claims.append((3, both))
        decided = kind.copy()
        for index, log_e in claims:
            # A closed e value is never above the plain one: most matrices need no closure yet.
            near = np.flatnonzero(np.any((decided == 0) & (log_e >= -math.log(rule.alpha)), axis=1))
            reached = np.zeros(kind.shape, dtype=bool)
            reached[near] = e_holm_rows(np.exp(np.minimum(log_e[near], _LOG_CAP))) >= 1 / rule.alpha
            if index == 2 and rule.clean_bound is not None and not last:
                reached &= self.baseline_bad <= rule.clean_bound * self.rounds
            decided = np.where((decided == 0) & reached, np.int8(index), decided)
        return decided


def _average(log_wealth: list[Array]) -> Array:
    """Logarithm of the average wealth over all stakes, entry by entry."""
    largest = np.maximum.reduce(log_wealth)
    total = sum(weight * np.exp(wealth - largest) for weight, wealth in zip(WEIGHTS, log_wealth, strict=True))
    values: Array = np.asarray(largest + np.log(total), dtype=np.float64)
    return values


def _stake_lost(times: Array, stake: float) -> Array:
    """Logarithm of (1 - stake)^times; a stake of everything that never lost is still there."""
    if stake < 1:
        return times * math.log1p(-stake)
    lost: Array = np.where(times > 0, -np.inf, 0.0)
    return lost


def _log_below(clean: Array, bad: Array, bound: float) -> Array:
    """Log e value against a rate of at least `bound`."""
    return _average([clean * math.log1p(c * bound / (1 - bound)) + _stake_lost(bad, c) for c in FRACTIONS])


def _log_within(up: Array, level: Array, down: Array, margin: float) -> Array:
    """Log e value against a mean difference of at least `margin`, from rounds of difference 1, 0 and -1."""
    room = 1 - margin
    return _average(
        [
            _stake_lost(up, c) + level * math.log1p(c * margin / room) + down * math.log1p(c * (1 + margin) / room)
            for c in FRACTIONS
        ]
    )
