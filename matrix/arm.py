"""Axes, levels and arms: one axis moves at a time around a baseline.

An *axis* is named by the path of what it moves, with `settings.` left out: `op_offload`, `env.GGML_X`,
`load`, `probe.prompt`. Its first level is the baseline's. An arm is written as its difference from the
baseline.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "BASELINE",
    "SEVERAL",
    "Arm",
    "Axis",
    "AxisError",
    "Draft",
    "Merge",
    "draft_arms",
    "level_text",
    "merge_equal",
]

BASELINE = "baseline"
SEVERAL = "several"


class AxisError(ValueError):
    """An axis, a level or a named arm does not make sense."""


@dataclass(frozen=True)
class Axis:
    """One variable of the configuration and its levels; the first level is the baseline's."""

    name: str
    levels: tuple[Any, ...]

    def __post_init__(self) -> None:
        """Refuse an axis without levels and a level that is listed twice."""
        if not self.levels:
            raise AxisError(f"axis {self.name}: no levels; give at least one, the first is the baseline's")
        texts = [level_text(level) for level in self.levels]
        for text in texts:
            if texts.count(text) > 1:
                raise AxisError(f"axis {self.name}: level {text} is listed twice")


def level_text(level: Any, axis: str = "") -> str:
    """A level as written in tables: `true`, text as it is, anything else as JSON.

    No level is `unset` for an environment variable, which then is not there, and `default` for a setting,
    which then has the build's own default.
    """
    if level is None:
        return "unset" if axis.startswith("env.") else "default"
    return level if isinstance(level, str) else json.dumps(level, ensure_ascii=False)


@dataclass(frozen=True)
class Draft:
    """An arm before its configuration is resolved: its name and what it changes."""

    name: str
    changes: tuple[tuple[str, Any], ...]
    reference: str = BASELINE


@dataclass(frozen=True)
class Arm:
    """A named set of levels with its resolved configuration.

    `configuration` is plain JSON data and holds everything that a trial needs: `settings`, `model`, `probe`,
    `load`, `build` and `plant` can change its result; `files` (paths) and `limits` cannot. `reference` names
    the arm of its declared contrast; a `control` (positive or negative) has none.
    """

    name: str
    axis: str
    level: str
    changes: tuple[tuple[str, str], ...]
    reference: str
    configuration: Mapping[str, Any]
    control: str | None = None

    @property
    def changes_text(self) -> str:
        """All differences from the baseline, `name=value` joined by a comma; empty for the baseline."""
        return ", ".join(f"{name}={level}" for name, level in self.changes)


def draft_arms(axes: Sequence[Axis], named: Mapping[str, Mapping[str, Any]], cross: Sequence[str] = ()) -> list[Draft]:
    """The baseline, one arm per further level of each axis, then the named arms; crossed axes last.

    `named` maps an arm's name to its changes. Every arm is repeated at each further level of every axis
    named in `cross`; the contrast of such an arm is with the baseline *at that level*, so that a crossed
    axis never hides in a contrast. Never a product of the axes themselves.
    """
    by_name = {axis.name: axis for axis in axes}
    for name in cross:
        if name not in by_name:
            raise AxisError(f"cross: '{name}' is not an axis of this run; axes are {', '.join(by_name) or 'none'}")
    plain = [Draft(BASELINE, ())]
    plain += [
        Draft(f"{axis.name}={level_text(level, axis.name)}", ((axis.name, level),))
        for axis in axes
        if axis.name not in cross
        for level in axis.levels[1:]
    ]
    plain += [_named(name, changes, {draft.name for draft in plain}) for name, changes in named.items()]
    drafts = plain
    for name in cross:
        drafts = drafts + [_crossed(draft, name, level) for level in by_name[name].levels[1:] for draft in drafts]
    return drafts


def _named(name: str, changes: Mapping[str, Any], taken: set[str]) -> Draft:
    if name in taken:
        raise AxisError(f"arms.{name}: another arm has this name already")
    if not changes:
        raise AxisError(f"arms.{name}: an arm that changes nothing is the baseline again")
    return Draft(name, tuple(changes.items()))


def _crossed(draft: Draft, axis: str, level: Any) -> Draft:
    suffix = f"{axis}={level_text(level, axis)}"
    if draft.name == BASELINE:
        return Draft(suffix, ((axis, level),))
    reference = suffix if draft.reference == BASELINE else f"{draft.reference} & {suffix}"
    return Draft(f"{draft.name} & {suffix}", (*draft.changes, (axis, level)), reference)


@dataclass(frozen=True)
class Merge:
    """Two arms that resolved to one configuration; the second was left out."""

    kept: str
    left_out: str

    def __str__(self) -> str:
        """The message for the user."""
        return f"arm '{self.left_out}' is the same configuration as '{self.kept}' and was left out"


def merge_equal(arms: Iterable[Arm]) -> tuple[list[Arm], list[Merge]]:
    """Arms without those whose configuration another, earlier arm has already, and what was left out.

    The contrast of an arm whose reference was left out moves to the arm that was kept instead of it.
    """
    kept: dict[str, Arm] = {}
    merges: list[Merge] = []
    for arm in arms:
        key = json.dumps(arm.configuration, sort_keys=True)
        if key in kept:
            merges.append(Merge(kept[key].name, arm.name))
        else:
            kept[key] = arm
    moved = {merge.left_out: merge.kept for merge in merges}
    result = [
        Arm(a.name, a.axis, a.level, a.changes, moved.get(a.reference, a.reference), a.configuration)
        for a in kept.values()
    ]
    return result, merges
