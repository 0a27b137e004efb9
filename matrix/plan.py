"""The plan: which arms, in which rounds, in which order, under which trial ids.

A plan is plain data that is stored beside the rows. Resuming is *plan minus rows*; the ids are computed the
same way from a plan and from a stored result.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .arm import Arm

__all__ = ["PLAN_VERSION", "TRIAL_ID_VERSION", "Plan", "PlanError", "PlannedTrial"]

PLAN_VERSION = 1
TRIAL_ID_VERSION = 1

_NEVER_IN_ID = frozenset({"files", "limits"})
"""Parts of a configuration that cannot change a result: where a file lies (what is in it does, and its
SHA-256 is elsewhere in the configuration), and how long a trial may take."""


class PlanError(ValueError):
    """A stored plan cannot be read, or does not fit the one asked for."""


@dataclass(frozen=True)
class PlannedTrial:
    """One trial of the plan: one arm in one round."""

    trial_id: str
    arm: str
    round: int
    position: int


@dataclass(frozen=True)
class Plan:
    """Arms, rounds, order and contrasts of one experiment.

    `stop`, `reference` and `thresholds` are kept as plain data: how rounds end, what counts as right, and which
    limits of the judges are not the usual ones. `rounds` is the most rounds that will be run.
    """

    seed: int
    rounds: int
    arms: tuple[Arm, ...]
    stop: Mapping[str, Any]
    reference: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    thresholds: Mapping[str, Any] = field(default_factory=dict)
    version: int = PLAN_VERSION

    def __post_init__(self) -> None:
        """Refuse a plan without arms or rounds, or with two arms of one name."""
        names = [arm.name for arm in self.arms]
        if not names:
            raise PlanError("a plan needs at least one arm")
        if len(set(names)) != len(names):
            raise PlanError(f"two arms have one name: {', '.join(sorted(n for n in names if names.count(n) > 1))}")
        if self.rounds < 1:
            raise PlanError(f"stop.rounds: {self.rounds} is below 1")

    @property
    def baseline(self) -> Arm:
        """The configuration under suspicion: the first arm."""
        return self.arms[0]

    def arm(self, name: str) -> Arm:
        """The arm of that name; `PlanError` if there is none."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise PlanError(f"no arm '{name}' in this plan; arms are {', '.join(a.name for a in self.arms)}")

    def contrasts(self) -> list[tuple[str, str]]:
        """Declared contrasts as (arm, its reference arm), in the plan's order."""
        return [(arm.name, arm.reference) for arm in self.arms if arm.reference != arm.name and not arm.control]

    def trial_id(self, arm: Arm, round_index: int) -> str:
        """Readable prefix and a hash over everything that can change the trial's result.

        File paths and limits are left out; hashes of file contents are in. The algorithm has its own
        version, which is part of the hash.
        """
        content = json.dumps(
            [TRIAL_ID_VERSION, self.seed, arm.name, round_index, _identity(arm.configuration)], sort_keys=True
        )
        digest = hashlib.sha256(content.encode()).hexdigest()[:12]
        slug = re.sub(r"[^A-Za-z0-9.=_-]+", "-", arm.name).strip("-.")[:60]
        return f"r{round_index:04d}-{slug}-{digest}"

    def round_trials(self, round_index: int, open_arms: Collection[str] | None = None) -> list[PlannedTrial]:
        """The trials of one round in its random order.

        The order comes from a hash of seed, round and arm, so that it is the same on every machine and
        Python, and closing one arm never reorders the others.
        """
        arms = [arm for arm in self.arms if open_arms is None or arm.name in open_arms]
        arms.sort(key=lambda arm: hashlib.sha256(f"{self.seed}:{round_index}:{arm.name}".encode()).digest())
        return [
            PlannedTrial(self.trial_id(arm, round_index), arm.name, round_index, position)
            for position, arm in enumerate(arms)
        ]

    def as_json(self) -> str:
        """The plan as stored."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """A stored plan; `PlanError` if the text is no plan or comes from a newer version."""
        try:
            data = json.loads(text)
            if data["version"] > PLAN_VERSION:
                raise PlanError(f"plan version {data['version']} is newer than {PLAN_VERSION}; update isomatrix")
            arms = tuple(
                Arm(**{**arm, "changes": tuple((name, level) for name, level in arm["changes"])})
                for arm in data["arms"]
            )
            return cls(**{**data, "arms": arms, "notes": tuple(data["notes"])})
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise PlanError(f"not a plan: {error!r}") from error

    def differences(self, other: Plan) -> list[str]:
        """What makes two plans different experiments, in words; empty if one can resume the other.

        More or fewer rounds, and other thresholds, are the same experiment.
        """
        found = []
        mine, theirs = {arm.name: arm for arm in self.arms}, {arm.name: arm for arm in other.arms}
        if self.seed != other.seed:
            found.append(f"run.seed is {self.seed} here and {other.seed} there")
        found += [f"arm '{name}' is new" for name in mine if name not in theirs]
        found += [f"arm '{name}' is gone" for name in theirs if name not in mine]
        for name in mine.keys() & theirs.keys():
            ours, stored = _identity(mine[name].configuration), _identity(theirs[name].configuration)
            found += [f"arm '{name}': {path} differs" for path in _unequal_paths(ours, stored)]
        if _lasting(self.reference) != _lasting(other.reference):
            found.append("reference differs")
        return sorted(found)


def _identity(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without what cannot change a result."""
    return {key: value for key, value in configuration.items() if key not in _NEVER_IN_ID}


def _lasting(reference: Mapping[str, Any]) -> dict[str, Any]:
    """What of the reference cannot change within an experiment; how its noise is judged can."""
    return {key: value for key, value in reference.items() if key != "harmless"}


def _unequal_paths(ours: Any, theirs: Any, path: str = "") -> list[str]:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return [
            found
            for key in sorted(ours.keys() | theirs.keys())
            for found in _unequal_paths(ours.get(key), theirs.get(key), f"{path}.{key}" if path else str(key))
        ]
    return [] if ours == theirs else [path]
