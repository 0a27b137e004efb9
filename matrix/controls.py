"""Controls of a run: a planted fault of known rate that must be found, and the baseline under a second name.

A failed control means that the harness is wrong, so that the whole result counts for nothing. Controls are not
part of the declared family of contrasts: they take no share of alpha, decide about no setting, and run along
until the last arm is decided. Their own levels are below, so that a control itself rarely cries wolf.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa

from .arm import BASELINE, Arm
from .outcome import Outcome, Verdict
from .plant import MARK, PlantError, plant_from_mapping, plant_of
from .statistics.contrast import boschloo, smallest_p
from .statistics.interval import clopper_pearson
from .statistics.words import counts_words, percent
from .trials import Trials, trials_of

__all__ = ["LEVEL", "NEGATIVE", "POSITIVE", "Control", "Status", "control_arms", "judge_controls"]

POSITIVE = "positive"
NEGATIVE = "negative"
_AXIS = "control"

LEVEL = 0.99
"""Confidence level of each control: one that is in order fails in at most one result of a hundred, looked at
once, when the run is over."""


class Status(str, Enum):
    """What a control says."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_YET = "not yet"


@dataclass(frozen=True)
class Control:
    """What one control says after `n` judged trials, and why."""

    arm: str
    kind: str
    status: Status
    n: int
    reason: str

    def __str__(self) -> str:
        """The sentence for tables."""
        return f"{self.kind.capitalize()} control {self.status.value}: {self.reason}"


def control_arms(baseline: Arm, rate: float) -> list[Arm]:
    """The two control arms of a baseline; `rate` (above 0, at most 1) is that of the positive control's fault.

    Raises `PlantError` for an impossible rate, and for a baseline with a fault of its own, on which no
    control can rest.
    """
    if plant_of(baseline) is not None:
        raise PlantError("controls: the baseline has a planted fault itself, so no control can rest on it")
    if not 0 < rate <= 1:
        raise PlantError(f"controls.rate: {rate!r} is no probability above 0")
    plant = plant_from_mapping({"kind": "flip_token", "rate": rate})
    planted = {**baseline.configuration, "plant": plant}
    changes = (("plant", "flip_token"), ("plant.rate", f"{rate:g}"))
    return [
        Arm(f"positive control {MARK}", _AXIS, POSITIVE, changes, BASELINE, planted, POSITIVE),
        Arm("negative control", _AXIS, NEGATIVE, (), BASELINE, baseline.configuration, NEGATIVE),
    ]


def judge_controls(arms: Sequence[Arm], source: pa.Table | Sequence[Mapping[str, Any]] | Trials) -> tuple[Control, ...]:
    """What the controls among `arms` say, from trials whose verdicts are filled."""
    if all(arm.control is None for arm in arms):
        return ()
    seen = _Seen(trials_of(source))
    judges = {POSITIVE: _positive, NEGATIVE: _negative}
    return tuple(judges[arm.control](arm, arms[0], seen) for arm in arms if arm.control is not None)


class _Seen:
    """The columns that controls are judged by."""

    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        self._verdicts = trials.values("verdict")
        self.corrupt = trials.values("corrupt")
        self.fired = trials.values("plant_fired")

    def members(self, arm: str) -> list[int]:
        """All trials of an arm."""
        return [index for index, name in enumerate(self.trials.arms) if name == arm]

    def judged(self, arm: str) -> list[int]:
        """The trials of an arm that have a verdict from a comparison."""
        no_comparison = (Verdict.FAILED.value, Verdict.UNJUDGED.value)
        return [index for index in self.members(arm) if self._verdicts[index] not in no_comparison]

    def failed(self, arm: str) -> int:
        """Failed trials of an arm."""
        return sum(self._verdicts[index] == Verdict.FAILED.value for index in self.members(arm))

    def digests(self, arm: str) -> list[bytes]:
        """Digests of an arm's ok trials."""
        ok = (i for i in self.members(arm) if self.trials.judged_outcomes[i] is Outcome.OK)
        return [key for i in ok if (key := self.trials.digest_key(i)) is not None]


def _positive(arm: Arm, _baseline: Arm, seen: _Seen) -> Control:
    """Every fault that fired must be found, and they must fire at the asked rate.

    Counted are faults found, and not corrupt trials: a baseline that is corrupt by itself, the usual suspect,
    is corrupt as well where no fault fired.
    """
    plant = plant_of(arm)
    rate = float(plant["rate"]) if plant is not None else 0.0
    judged = seen.judged(arm.name)
    n = len(judged)

    def control(status: Status, reason: str) -> Control:
        return Control(arm.name, POSITIVE, status, n, reason)

    if not n:
        failed = seen.failed(arm.name)
        return control(Status.NOT_YET, f"no judged trial{f', {failed} failed' if failed else ''}")
    untold = sum(seen.fired[index] is None for index in judged)
    if untold:
        return control(Status.FAILED, f"in {untold} of {n} trials the worker did not say whether the fault fired")
    fired = [index for index in judged if seen.fired[index]]
    found = sum(seen.corrupt[index] is True for index in fired)
    missed = len(fired) - found
    if missed:
        return control(Status.FAILED, f"{missed} of {len(fired)} planted faults were judged as clean")
    interval = clopper_pearson(found, n, LEVEL)
    ends = f"{percent(LEVEL)} interval {percent(interval.low)} to {percent(interval.high)}"
    if not interval.low <= rate <= interval.high:
        reason = f"faults found in {counts_words(found, n)} trials; the {ends} does not hold the rate {percent(rate)}"
        return control(Status.FAILED, reason)
    if not found:
        return control(Status.NOT_YET, f"no fault has fired in {n} trials so far")
    return control(
        Status.PASSED,
        f"all {found} planted faults found in {n} trials; the {ends} holds the rate {percent(rate)}",
    )


def _negative(arm: Arm, baseline: Arm, seen: _Seen) -> Control:
    """Corruption, failures and off-mode digests must not differ from the baseline's.

    Three exact tests (Boschloo, two-sided), which share the level.
    """
    ours, theirs = seen.judged(arm.name), seen.judged(baseline.name)
    n = len(ours)
    limit = (1 - LEVEL) / 3
    if not ours or not theirs or smallest_p(n, len(theirs)) > limit:
        reason = f"{n} and {len(theirs)} judged trials are too few to show any difference"
        return Control(arm.name, NEGATIVE, Status.NOT_YET, n, reason)
    found = []
    for what, table in _tables(arm, baseline, seen).items():
        bad, runs, other_bad, other_runs = table
        if runs and other_runs and (p := boschloo(*table).two_sided) <= limit:
            own, other = counts_words(bad, runs), counts_words(other_bad, other_runs)
            found.append(f"{what}: {own} against the baseline's {other} (p = {p:.2g})")
    if found:
        reason = f"the same configuration under two names differs: {'; '.join(found)}"
        return Control(arm.name, NEGATIVE, Status.FAILED, n, reason)
    reason = (
        f"no difference between {n} trials and {len(theirs)} of the baseline (exact tests, {1 - LEVEL:.0%} together)"
    )
    return Control(arm.name, NEGATIVE, Status.PASSED, n, reason)


def _tables(arm: Arm, baseline: Arm, seen: _Seen) -> dict[str, tuple[int, int, int, int]]:
    """Bad and all trials of the arm, bad and all trials of the baseline, for each of the three tests."""
    names = (arm.name, baseline.name)
    corrupt = [(sum(seen.corrupt[i] is True for i in seen.judged(name)), len(seen.judged(name))) for name in names]
    failed = [(seen.failed(name), len(seen.members(name))) for name in names]
    digests = [seen.digests(name) for name in names]
    pooled = Counter(key for keys in digests for key in keys)
    theirs = Counter(digests[1])
    usual = min(pooled, key=lambda key: (-pooled[key], -theirs[key], key), default=b"")
    off = [(sum(key != usual for key in keys), len(keys)) for keys in digests]
    return {
        name: (*pair[0], *pair[1])
        for name, pair in {"corrupt": corrupt, "failed": failed, "other logits than the usual ones": off}.items()
    }
