"""When a run may stop: the parameters of a design, declared before the first trial and stored in the plan."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["StopRule", "StopRuleError", "stop_rule_from_mapping"]

KINDS = ("sequential", "fixed")


class StopRuleError(ValueError):
    """A field of the stop rule is unknown, or its value is of the wrong type or out of range."""


@dataclass(frozen=True)
class StopRule:
    """`sequential`: look after every round, at most `rounds` of them. `fixed`: exactly `rounds`, one look.

    Each of the three claims (differs, clean below the bound, equivalent) is wrong for any arm of the declared
    family with a probability of at most `alpha`. None switches a limit or a claim off.
    """

    kind: str = "sequential"
    rounds: int = 40
    alpha: float = 0.05
    min_rounds: int = 3  # no decision before so many rounds (sequential)
    clean_bound: float | None = 0.15  # rate, 0..1: an arm shown to be below it is closed as clean below it
    equivalence_margin: float | None = 0.15  # rate difference, 0..1, taken as no difference
    max_trials: int | None = None  # trials of all arms together, failed ones included
    max_wall_s: float | None = None  # wall time of all trials together, s
    give_up_after: int | None = 5  # failed trials of an arm that has no judged trial at all

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise StopRuleError(f"stop.kind: {self.kind!r} is not one of {', '.join(KINDS)}")
        _number("alpha", self.alpha, 0, 1)
        for name in ("clean_bound", "equivalence_margin"):
            if getattr(self, name) is not None:
                _number(name, getattr(self, name), 0, 1)
        if self.max_wall_s is not None:
            _number("max_wall_s", self.max_wall_s, 0, float("inf"))
        for name in ("rounds", "min_rounds", "max_trials", "give_up_after"):
            value = getattr(self, name)
            if value is None and name in ("max_trials", "give_up_after"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise StopRuleError(f"stop.{name}: {value!r} is not a whole number of at least 1")


def _number(name: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low < value < high:
        raise StopRuleError(f"stop.{name}: {value!r} does not lie strictly between {low:g} and {high:g}")


def stop_rule_from_mapping(values: Mapping[str, Any]) -> StopRule:
    """A rule from plain data (a node of `conf/stop`). Raises `StopRuleError` that names the field."""
    known = [field.name for field in dataclasses.fields(StopRule)]
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean stop.{near[0]}?" if near else f"; known: {', '.join(known)}"
            raise StopRuleError(f"unknown field stop.{name}{hint}")
    return StopRule(**values)
