"""Planted faults: what can be planted, and the mark that keeps a planted arm from being taken for a finding.

A plant is part of an arm's configuration, and so of its trials' ids. What each kind does is in the worker; here
is what may be asked of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from .arm import BASELINE, Arm, level_text
from .settings import SettingError, closest, setting_table, settings_from_mapping

__all__ = [
    "KINDS",
    "MARK",
    "NO_PLANT",
    "PlantError",
    "arm_label",
    "mark_planted",
    "plant_from_mapping",
    "plant_of",
    "plant_words",
]

NO_PLANT = "none"
MARK = "[planted]"
"""Stands in the name of every planted arm but the baseline, so that no table can lose it."""

_STAGES = ("load", "prompt", "generate")
_COMMON: dict[str, Any] = {"rate": 1.0, "when": {}, "seed": 1}
_AT_STAGE: dict[str, Any] = {"stage": "generate"}
KINDS: dict[str, dict[str, Any]] = {
    "flip_token": {"request": 0, "position": 0, "rank": 5},
    "node_error": {"node": "l_out-0", "op": None, "size": 1.0, "min_rows": 1, "occurrence": None, "part": "model"},
    "keep_kv": {},
    "abort": _AT_STAGE,
    "hang": _AT_STAGE,
    "allocate": _AT_STAGE,
    "stdout": _AT_STAGE,
}
"""Parameters of each kind with their defaults, beside `rate`, `when` and `seed`, which all have."""

_LOWEST = {"request": 0, "position": 0, "rank": 1, "min_rows": 1, "occurrence": 0, "seed": 0}
_CHOICES = {"stage": _STAGES, "part": ("model", "projector")}
_SIGNS = (">=", "<=", "!=", ">", "<")


class PlantError(ValueError):
    """A planted fault is unknown, or a parameter of it is unknown, of the wrong type or out of range."""


def plant_from_mapping(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """A plant with all its parameters as plain data; `None` for the kind `none`, which takes any parameters.

    Raises `PlantError` that names the field.
    """
    kind = values.get("kind", NO_PLANT)
    if kind == NO_PLANT:
        return None
    if kind not in KINDS:
        raise PlantError(f"plant.kind: {kind!r} is not one of {NO_PLANT}, {', '.join(KINDS)}")
    known = {**_COMMON, **KINDS[kind]}
    given = {name: value for name, value in values.items() if name != "kind"}
    for name in given:
        if name not in known:
            raise PlantError(f"plant.{name}: plant {kind} has no such parameter{closest(str(name), list(known))}")
    complete = {name: _checked(name, given.get(name, default), default) for name, default in known.items()}
    return {"kind": kind, **complete}


def _checked(name: str, value: Any, default: Any) -> Any:
    if name == "when":
        return _conditions(value)
    if value is None:
        return default
    if name in ("rate", "size"):
        return _number(name, value)
    if name in _LOWEST:
        if isinstance(value, bool) or not isinstance(value, int) or value < _LOWEST[name]:
            raise PlantError(f"plant.{name}: {value!r} is not a whole number of at least {_LOWEST[name]}")
        return value
    if not isinstance(value, str) or not value:
        raise PlantError(f"plant.{name}: {value!r} is no text")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise PlantError(f"plant.{name}: {value!r} is not one of {', '.join(_CHOICES[name])}")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PlantError(f"plant.{name}: {value!r} is not a number")
    if name == "rate" and not 0 <= value <= 1:
        raise PlantError(f"plant.rate: {value!r} is no probability; it lies between 0 and 1")
    return float(value)


def _conditions(when: Any) -> dict[str, Any]:
    """Conditions on settings: a value, or a comparison such as `>=2`; variables are written `env.NAME`."""
    if when is None:
        return {}
    if not isinstance(when, Mapping):
        raise PlantError(f"plant.when: {when!r} is not a mapping of settings to values, like {{n_threads: '>=2'}}")
    variables = when.get("env")
    nested = {f"env.{name}": wanted for name, wanted in variables.items()} if isinstance(variables, Mapping) else {}
    flat = {**{str(name): wanted for name, wanted in when.items() if not (nested and name == "env")}, **nested}
    return {name: _condition(name, wanted) for name, wanted in flat.items()}


def _condition(name: str, wanted: Any) -> Any:
    table = setting_table()
    is_variable = name.startswith("env.")
    if not is_variable and (name not in table or name == "env"):
        raise PlantError(f"plant.when.{name}: no such setting{closest(name, list(table))}")
    sign = next((sign for sign in _SIGNS if isinstance(wanted, str) and wanted.startswith(sign)), None)
    if sign is not None:
        try:
            float(wanted[len(sign) :])
        except ValueError:
            raise PlantError(f"plant.when.{name}: {wanted!r} compares with no number") from None
        if is_variable or table[name].kind not in ("int", "float"):
            raise PlantError(f"plant.when.{name}: is no number, so {wanted!r} cannot be told; give the value itself")
        return wanted
    try:
        if is_variable:
            variable = name.removeprefix("env.")
            return settings_from_mapping({"env": {variable: wanted}}).env[variable]
        return settings_from_mapping({name: wanted}).as_mapping()[name]
    except SettingError as error:
        raise PlantError(f"plant.when.{name}: {error}") from error


def plant_of(arm: Arm) -> Mapping[str, Any] | None:
    """What is planted in an arm; `None` for nothing."""
    plant: Mapping[str, Any] | None = arm.configuration.get("plant")
    return plant


def plant_words(plant: Mapping[str, Any]) -> str:
    """A plant in words: its kind, and every parameter that is not the default."""
    usual = {**_COMMON, **KINDS[plant["kind"]]}
    moved = {name: value for name, value in plant.items() if name in usual and value != usual[name]}
    conditions = [_condition_words(name, wanted) for name, wanted in moved.pop("when", {}).items()]
    shown = [f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in moved.items()]
    return ", ".join([plant["kind"], *shown, *([f"when {' and '.join(conditions)}"] if conditions else [])])


def _condition_words(name: str, wanted: Any) -> str:
    compares = isinstance(wanted, str) and wanted.startswith(_SIGNS)
    return f"{name}{wanted}" if compares else f"{name}={level_text(wanted, name)}"


def arm_label(arm: Arm) -> str:
    """The arm's name with `MARK`, whether or not the name has it."""
    return arm.name if plant_of(arm) is None or MARK in arm.name else f"{arm.name} {MARK}"


def mark_planted(arms: Sequence[Arm]) -> tuple[list[Arm], dict[str, str]]:
    """The arms with `MARK` in the name of every planted one, and the new name of each renamed arm.

    The baseline keeps its name, which other parts go by; tables mark it, and say so in their first line.
    """
    renamed = {arm.name: f"{arm.name} {MARK}" for arm in arms if plant_of(arm) is not None and arm.name != BASELINE}
    marked = [
        dataclasses.replace(
            arm,
            name=renamed.get(arm.name, arm.name),
            reference=renamed.get(arm.reference, arm.reference),
        )
        for arm in arms
    ]
    return marked, renamed
