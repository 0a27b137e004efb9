"""Planted faults: something made wrong on purpose, to see whether the judges find it.

This module has what every plant shares, and the plant that does nothing; the kinds are only imported where a
spec asks for one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from .failure import bad_input
from .rows import digest
from .spec import SETTING_KINDS

__all__ = ["Armed", "Plant", "first_unmet", "make_plant"]


class Plant:
    """No fault. The kinds override what they make wrong; the order of calls is the order below."""

    def attach(self, engine: Any, projector: Any) -> None:
        """Before anything is loaded."""

    def loaded(self, applied: Mapping[str, Mapping[str, Any]], engine: Any, sampler: Any) -> None:
        """After the `loaded` event; `applied` is what became of each setting."""

    def keeps_memory(self, request: int) -> bool:
        """Whether the memory of the request before is kept for this one."""
        return False

    def before_prompt(self, request: int) -> None:
        """Right before the prompt of a request is evaluated."""

    def before_tokens(self, request: int) -> None:
        """Between the prompt's evaluation and the first token of a request."""

    def finish(self) -> None:
        """After the last request, before anything is freed."""


class Armed(Plant):
    """A fault that may fire: what all kinds share.

    Whether it fires is drawn from the seed and the trial's id, so that a replay draws the same; then every
    condition in `when` must hold for the settings as applied. `tell` sends the event `plant`: when the fault
    first strikes, and again at the end.
    """

    parameters: ClassVar[dict[str, Any]] = {}

    def __init__(self, values: Mapping[str, Any], trial_id: str, tell: Callable[..., None]) -> None:
        self.values = values
        self.hits = 0
        self._tell = tell
        drawn = (int(digest(f"{values['seed']}:{trial_id}".encode()), 16) >> 11) / 2**53  # 0 <= drawn < 1, exact
        self._unmet: str | None = None
        if drawn >= values["rate"]:
            self._unmet = f"not drawn: {drawn:.4f} is not below the rate {values['rate']:g}"
        self.drawn = self._unmet is None

    @property
    def active(self) -> bool:
        """Whether the fault is to strike; final once everything is loaded."""
        return self._unmet is None

    def loaded(self, applied: Mapping[str, Mapping[str, Any]], engine: Any, sampler: Any) -> None:
        """Check the conditions, and say so if the fault will not strike."""
        self._unmet = self._unmet or first_unmet(self.values["when"], applied)
        if self.active:
            self.armed(engine, sampler)
        else:
            self.tell(note=self._unmet)

    def armed(self, engine: Any, sampler: Any) -> None:
        """The fault is to strike: prepare it."""

    def struck(self, **details: Any) -> None:
        """Count a hit; the first one is told at once, because the process may not live to tell the others."""
        self.hits += 1
        if self.hits == 1:
            self.tell(**details)

    def tell(self, **details: Any) -> None:
        """Send what is known now."""
        self._tell(kind=self.values["kind"], fired=self.hits > 0, hits=self.hits, **details)

    def finish(self) -> None:
        """Tell the final count, and why there was no hit where one was due."""
        if self.active:
            self.tell(**(self.final() if self.hits else {"note": self.missed()}))

    def final(self) -> dict[str, Any]:
        """What was hit, at the end."""
        return {}

    def missed(self) -> str:
        """Why an active fault did not strike."""
        return "the trial never came to the place of the fault"


def first_unmet(when: Mapping[str, Any], applied: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The first condition that does not hold, in words, or null if all hold.

    A condition is a value that must be equal, or a text such as `>=2`, `<512` or `!=1`. `env.NAME` reads a
    variable. A count of -1 layers means all of them, which is more than any number.
    """
    for name, wanted in when.items():
        entry = applied["env"] if name.startswith("env.") else applied[name]
        value = entry["applied"]
        if name.startswith("env."):
            value = (value or {}).get(name[len("env.") :])
        if name == "n_gpu_layers" and value == -1:
            value = float("inf")
            wanted = float("inf") if wanted == -1 else wanted
        if not _holds(wanted, value):
            return f"when: {name} is {value!r}, not {wanted!r}"
    return None


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


def _sign(wanted: Any) -> str:
    """The comparison that a condition starts with, or an empty text for equality."""
    if not isinstance(wanted, str):
        return ""
    return next((sign for sign in _COMPARISONS if wanted.startswith(sign)), "")


def _holds(wanted: Any, value: Any) -> bool:
    sign = _sign(wanted)
    if not sign:
        return bool(wanted == value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and _COMPARISONS[sign](float(value), float(wanted[len(sign) :]))


def make_plant(values: Mapping[str, Any] | None, trial_id: str, tell: Callable[..., None]) -> Plant:
    """The plant of a spec; nothing is planted without one.

    Raises `WorkerFailure` of kind `bad_input` for a kind, a parameter or a condition that does not exist.
    """
    if values is None or values["kind"] == "none":
        return Plant()
    from .plant_kinds import KINDS

    kind = KINDS.get(values["kind"])
    if kind is None:
        raise bad_input("plant.kind", f"{values['kind']!r} is not one of none, {', '.join(KINDS)}")
    complete = {"rate": 1.0, "when": {}, "seed": 1, **kind.parameters}
    given = {name: value for name, value in values.items() if value is not None}
    for name in given:
        if name != "kind" and name not in complete:
            raise bad_input(f"plant.{name}", f"plant {values['kind']} has no such parameter")
    complete.update(given)
    _check_conditions(complete["when"])
    return kind(complete, trial_id, tell)


def _check_conditions(when: Mapping[str, Any]) -> None:
    for name, wanted in when.items():
        if not name.startswith("env.") and (name not in SETTING_KINDS or name == "env"):
            raise bad_input(f"plant.when.{name}", "no such setting; variables are written env.NAME")
        sign = _sign(wanted)
        try:
            float(wanted[len(sign) :] if sign else 0)
        except ValueError:
            raise bad_input(f"plant.when.{name}", f"{wanted!r} compares with no number") from None
