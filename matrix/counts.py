"""Counts per arm: one row of `arms.parquet` each."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from .effect import Effect, arm_effects, equivalent_arms
from .outcome import Outcome, Verdict
from .schema import arms_schema
from .statistics.bounds import rate_bounds
from .trials import Trials, trials_of

__all__ = ["ArmLabel", "count_arms"]

_UNKNOWN = Effect("unknown", "the arm has no trials yet")


@dataclass(frozen=True)
class ArmLabel:
    """What is known of an arm before it has trials."""

    arm: str
    axis: str | None = None
    level: str | None = None
    changes: str | None = None
    planted: str | None = None
    control: str | None = None


def count_arms(
    source: pa.Table | Sequence[Mapping[str, Any]],
    arms_in_order: Sequence[str | ArmLabel],
    baseline_arm: str | None = None,
    *,
    confidence: float = 0.95,
    always: bool = False,
) -> pa.Table:
    """One row per arm in the given order, from trials whose verdict columns are filled.

    The first arm is the baseline unless one is named. Arms that have trials but are not listed follow, by
    name, so that no trial is lost. `confidence` is the level of intervals and bounds: Clopper-Pearson, or, for a
    run that was looked at after every round, those that hold at every round (`always`). An arm without a judged
    trial has no rate. Raises `ValueError` for a trial without a verdict.
    """
    trials = trials_of(source)
    labels = [ArmLabel(arm) if isinstance(arm, str) else arm for arm in arms_in_order]
    members: dict[str, list[int]] = {label.arm: [] for label in labels}
    for index, arm in enumerate(trials.arms):
        members.setdefault(arm, []).append(index)
    listed = {label.arm for label in labels}
    labels += [ArmLabel(arm) for arm in sorted(members) if arm not in listed]
    baseline = baseline_arm if baseline_arm is not None else (labels[0].arm if labels else "")
    columns = _Columns(trials)
    effects = arm_effects(trials, baseline)
    equals = _equals(trials, baseline)
    rows = [
        {
            **_described(trials, label, members[label.arm]),
            **columns.counted(members[label.arm], confidence, always=always),
            "effect": effects.get(label.arm, _UNKNOWN).effect,
            "effect_reason": effects.get(label.arm, _UNKNOWN).reason,
            "equivalent_to": equals.get(label.arm),
        }
        for label in labels
    ]
    return pa.Table.from_pylist(rows, schema=arms_schema())


def _described(trials: Trials, label: ArmLabel, members: Sequence[int]) -> dict[str, Any]:
    """Axis, level and changes: from the label, else from the trials."""
    told = {"axis": label.axis, "level": label.level, "changes": label.changes}
    first = members[0] if members else None
    return {
        "arm": label.arm,
        **{
            name: trials.value(first, name) if value is None and first is not None else value
            for name, value in told.items()
        },
        "planted": label.planted,
        "control": label.control,
    }


def _equals(trials: Trials, baseline: str) -> dict[str, str]:
    return {
        name: ", ".join(other for other in group if other != name)
        for group in equivalent_arms(trials, baseline)
        for name in group
    }


class _Columns:
    """The columns that counting needs, read once."""

    def __init__(self, trials: Trials) -> None:
        self._trials = trials
        self._verdicts = _verdicts(trials)
        self._outcomes = trials.judged_outcomes
        self._positions = trials.values("first_divergent_position")
        self._wall = trials.values("wall_s")
        self._corrupt = trials.values("corrupt")
        self._noises = {name: trials.values(name) for name in ("noise", "noise_nmse", "noise_kl")}

    def counted(self, members: Sequence[int], confidence: float, *, always: bool) -> dict[str, Any]:
        """Everything that is a count of an arm's trials."""
        verdicts = Counter(self._verdicts[index] for index in members)
        failed = verdicts[Verdict.FAILED]
        judged = len(members) - failed - verdicts[Verdict.UNJUDGED]
        corrupt = [index for index in members if self._corrupt[index]]
        ok = [index for index in members if self._outcomes[index] is Outcome.OK]
        positions = [self._positions[index] for index in corrupt if self._positions[index] is not None]
        wall = [self._wall[index] for index in ok if self._wall[index] is not None]
        outcomes = Counter(self._outcomes[index].value for index in members)
        return {
            "n": judged,
            "n_corrupt": len(corrupt),
            "n_failed": failed,
            **_rates(len(corrupt), judged, failed, len(members), confidence, always),
            "n_identical": verdicts[Verdict.IDENTICAL],
            "n_drift": verdicts[Verdict.DRIFT],
            "n_divergent": verdicts[Verdict.DIVERGENT],
            "n_garbage": verdicts[Verdict.GARBAGE],
            "n_unjudged": verdicts[Verdict.UNJUDGED],
            "outcomes": json.dumps(dict(sorted(outcomes.items()))),
            **self._instability(ok),
            "first_divergent_position": min(positions) if positions else None,
            **self._noise(ok),
            "median_wall_s": statistics.median(wall) if wall else None,
        }

    def _noise(self, ok: Sequence[int]) -> dict[str, float | None]:
        """The largest noise of the trials that are not corrupt."""
        sound = [index for index in ok if not self._corrupt[index]]
        return {
            name: max((values[index] for index in sound if values[index] is not None), default=None)
            for name, values in self._noises.items()
        }

    def _instability(self, ok: Sequence[int]) -> dict[str, int | None]:
        """How far the arm's ok trials disagree among themselves; needs no reference."""
        digests = Counter(key for index in ok if (key := self._trials.digest_key(index)) is not None)
        ids = {key for index in ok if (key := self._trials.ids_key(index)) is not None}
        differ = [flag for index in ok if (flag := self._trials.requests_differ(index)) is not None]
        most = max(digests.values(), default=0)
        return {
            "n_distinct_digests": len(digests) if digests else None,
            "n_distinct_tokens": len(ids) if ids else None,
            "n_off_mode": digests.total() - most if digests else None,
            "n_requests_differ": sum(differ) if differ else None,
        }


def _verdicts(trials: Trials) -> list[Verdict]:
    verdicts = []
    for index, value in enumerate(trials.values("verdict")):
        if value is None:
            raise ValueError(f"verdict: trial {trials.value(index, 'trial_id')} has none; judge the rows first")
        verdicts.append(Verdict(value))
    return verdicts


def _rates(corrupt: int, judged: int, failed: int, trials: int, confidence: float, always: bool) -> dict[str, Any]:
    rates: dict[str, Any] = {"confidence": confidence, "always": always}
    if judged:
        ends = rate_bounds(corrupt, judged, confidence, always=always)
        rates |= {"rate": corrupt / judged, "rate_low": ends.low, "rate_high": ends.high}
        rates |= {"rate_below": ends.below, "rate_above": ends.above}
    if trials:
        ends = rate_bounds(failed, trials, confidence, always=always)
        rates |= {"failed_rate": failed / trials, "failed_rate_low": ends.low, "failed_rate_high": ends.high}
    return rates
