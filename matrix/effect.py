"""Whether an arm did anything at all: proven, inert, contradicted by evidence, or unknown.

An arm whose setting the build refuses, changes or ignores says nothing about that setting, and an arm that
changes nothing cannot be a cure. Both look like any other row in a table of counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from .evidence import Applied, TrialFacts, trial_facts
from .outcome import Outcome
from .trials import Trials, trials_of

__all__ = [
    "CONTRADICTED",
    "INERT",
    "PROVEN",
    "UNKNOWN",
    "Effect",
    "agreeing_arms",
    "arm_effects",
    "clamped_settings",
    "equivalent_arms",
]

PROVEN = "proven"
INERT = "inert"
CONTRADICTED = "contradicted"
UNKNOWN = "unknown"

EXAMINED = 20
"""Trials of an arm whose native log is parsed; digests are compared in all of them."""

_COLUMNS = ("native_log", "evidence", "applied", "settings")


@dataclass(frozen=True)
class Effect:
    """What one arm did; `effect` is `None` for the baseline, which nothing is compared with."""

    effect: str | None
    reason: str


@dataclass(frozen=True, eq=False)
class _ArmView:
    """One arm's trials: digests of the ok ones, facts of some."""

    name: str
    outcomes: Counter[Outcome]
    digests: Counter[bytes]
    unmeasured: int  # ok trials without digests
    trials: Trials
    members: tuple[int, ...]  # the ok trials, or all if none is ok, in order of round and id

    @cached_property
    def facts(self) -> tuple[TrialFacts, ...]:
        """Facts of at most `EXAMINED` members, spread evenly."""
        step = max(1, -(-len(self.members) // EXAMINED))
        return tuple(
            trial_facts({name: self.trials.value(index, name) for name in _COLUMNS}) for index in self.members[::step]
        )

    @property
    def error(self) -> str | None:
        """The first failure that says something."""
        errors = (self.trials.value(index, "error") for index in self.members)
        return next((error for error in errors if error), None)

    @property
    def mode(self) -> bytes | None:
        """The most frequent digests; `None` if several are as frequent."""
        top = self.digests.most_common(2)
        return top[0][0] if top and (len(top) == 1 or top[0][1] > top[1][1]) else None

    @property
    def n_ok(self) -> int:
        """Ok trials."""
        return self.outcomes[Outcome.OK]


def _views(trials: Trials) -> dict[str, _ArmView]:
    members: dict[str, list[int]] = {}
    for index, arm in enumerate(trials.arms):
        members.setdefault(arm, []).append(index)
    order = list(zip(trials.values("round"), trials.values("trial_id"), strict=True))
    outcomes = trials.judged_outcomes if any(trials.values("verdict")) else trials.outcomes
    return {
        arm: _view(trials, arm, outcomes, sorted(indexes, key=lambda index: tuple(map(str, order[index]))))
        for arm, indexes in members.items()
    }


def _view(trials: Trials, arm: str, outcomes: Sequence[Outcome], indexes: Sequence[int]) -> _ArmView:
    ok = [index for index in indexes if outcomes[index] is Outcome.OK]
    keys = [trials.digest_key(index) for index in ok]
    return _ArmView(
        name=arm,
        outcomes=Counter(outcomes[index] for index in indexes),
        digests=Counter(key for key in keys if key is not None),
        unmeasured=sum(key is None for key in keys),
        trials=trials,
        members=tuple(ok or indexes),
    )


def arm_effects(source: pa.Table | Sequence[Mapping[str, Any]] | Trials, baseline_arm: str) -> dict[str, Effect]:
    """The effect of every arm against the baseline, by arm name.

    In this order: *contradicted* if the build refused the setting, applied another value, or if the log shows
    something else; *proven* if digests or evidence differ from the baseline's; *inert* if
    all ok trials are bitwise equal to the baseline's and the evidence is equal; else *unknown*.
    """
    views = _views(trials_of(source))
    baseline = views.get(baseline_arm)
    return {
        name: Effect(None, "the baseline: other arms are compared with it")
        if name == baseline_arm
        else _effect(view, baseline)
        for name, view in views.items()
    }


def _effect(view: _ArmView, baseline: _ArmView | None) -> Effect:
    contradiction = _contradiction(view, baseline)
    if contradiction is not None:
        return Effect(CONTRADICTED, contradiction)
    if view.n_ok == 0:
        return Effect(UNKNOWN, f"none of the arm's {sum(view.outcomes.values())} trials is ok")
    if baseline is None or baseline.n_ok == 0:
        return Effect(UNKNOWN, "the baseline has no ok trial to compare with")
    return _by_digests(view, baseline)


def _by_digests(view: _ArmView, baseline: _ArmView) -> Effect:
    difference = _evidence_difference(view, baseline)
    ours, theirs = view.mode, baseline.mode
    if ours is not None and theirs is not None and ours != theirs:
        if ours not in baseline.digests and theirs not in view.digests:
            also = f"; {difference}" if difference else ""
            return Effect(PROVEN, f"its logits digests differ from the baseline's{also}")
        if difference is None:
            return Effect(UNKNOWN, "its most frequent logits digests were seen in the other arm as well")
    if difference is not None:
        return Effect(PROVEN, difference)
    if view.unmeasured or baseline.unmeasured:
        return Effect(UNKNOWN, "logits digests were not recorded in every ok trial")
    if len(baseline.digests) == 1 and view.digests.keys() == baseline.digests.keys():
        examined = f"; evidence equal{_examined(view)}"
        unused = f"; nothing in these trials uses {names}" if (names := _unused(view, baseline)) else ""
        return Effect(INERT, f"all {view.n_ok} ok trials bitwise equal to the baseline's{examined}{unused}")
    return Effect(UNKNOWN, _unstable(view, baseline))


def _unused(view: _ArmView, baseline: _ArmView) -> str:
    """Names of the arm's settings that the worker found no use for, such as offloading without a device."""
    usual = baseline.facts[0].settings if baseline.facts else {}
    names = [
        name
        for facts in view.facts
        for name in _moved(facts.settings, usual)
        if (applied := facts.applied.get(name)) is not None and applied.status == "ignored"
    ]
    return ", ".join(dict.fromkeys(names))


def _examined(view: _ArmView) -> str:
    return "" if len(view.facts) == view.n_ok else f" in the {len(view.facts)} trials examined"


def _unstable(view: _ArmView, baseline: _ArmView) -> str:
    arm = baseline if len(baseline.digests) > 1 else view
    who = "the baseline" if arm is baseline else "the arm"
    found = f"{len(arm.digests)} different digest sequences in {arm.n_ok} ok trials"
    return f"{who} has {found}, so a difference proves nothing"


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " + ".join(_shown(part) for part in value) or "nothing"
    if hasattr(value, "mib"):
        return f"{value.kind} buffer {value.mib:g} MiB on {value.device}"
    return str(value)


def _steady(facts: Sequence[TrialFacts]) -> dict[str, Any]:
    """The facts that all examined trials agree in."""
    seen = [one.comparable() for one in facts]
    if not seen:
        return {}
    return {name: value for name, value in seen[0].items() if all(name in o and o[name] == value for o in seen)}


def _evidence_difference(view: _ArmView, baseline: _ArmView) -> str | None:
    """A fact that is steady in both arms and differs, in words; `None` if there is none."""
    if (carried_out := _carried_out(view, baseline)) is not None:
        return carried_out
    ours, theirs = _steady(view.facts), _steady(baseline.facts)
    differing = [name for name in ours if name in theirs and ours[name] != theirs[name]]
    if not differing:
        return None
    name = differing[0]
    mine, other = ours[name], theirs[name]
    if name == "buffers":
        mine, other = (tuple(b for b in mine if b not in other), tuple(b for b in other if b not in mine))
    more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
    return f"{name.replace('_', ' ')}: {_shown(mine)}, the baseline's {_shown(other)}{more}"


def _carried_out(view: _ArmView, baseline: _ArmView) -> str | None:
    """What the runner itself did otherwise than in the baseline: load beside the trial, requests in the process."""
    for name, words in (("load", "load"), ("n_requests", "requests in one process")):
        ours, theirs = ({arm.trials.value(index, name) for index in arm.members} for arm in (view, baseline))
        if len(ours) == len(theirs) == 1 and ours != theirs and None not in ours | theirs:
            return f"{words}: {ours.pop()}, the baseline's {theirs.pop()}"
    return None


def _contradiction(view: _ArmView, baseline: _ArmView | None) -> str | None:
    if view.outcomes and set(view.outcomes) == {Outcome.REFUSED}:
        return f"the build refused it: {view.error}" if view.error else "the build refused it"
    usual = baseline.facts[0].settings if baseline is not None and baseline.facts else {}
    for facts in view.facts:
        moved = _moved(facts.settings, usual)
        for name, asked in moved.items():
            found = _wrongly_applied(name, facts.applied.get(name)) or _log_contradicts(name, asked, facts)
            if found is not None:
                return found
    return None


def _moved(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the arm sets otherwise than the baseline; those left to the build are no claim."""
    return {
        name: value
        for name, value in settings.items()
        if value is not None and value != {} and value != usual.get(name)
    }


def _wrongly_applied(name: str, applied: Applied | None) -> str | None:
    if applied is None or applied.status in ("default", "applied", "ignored"):
        return None
    if applied.status == "clamped":
        return f"{name}: asked for {applied.asked}, the build applied {applied.applied}"
    return f"{name}: this build has no such setting"


def _log_contradicts(name: str, asked: Any, facts: TrialFacts) -> str | None:
    check = _CHECKS.get(name)
    shown = None if check is None else check(asked, facts)
    return None if shown is None else f"{name}: asked for {_asked_text(asked)}, but {shown}"


def _asked_text(asked: Any) -> str:
    return str(asked).lower() if isinstance(asked, bool) else str(asked)


def _layers(asked: int, facts: TrialFacts) -> str | None:
    if facts.native.offloaded is None:
        no_device = asked != 0 and facts.evidence.get("supports_gpu_offload") is False
        return "this build cannot offload layers" if no_device else None
    seen, total = facts.native.offloaded
    expected = total if asked < 0 else min(asked, total)
    return None if seen == expected else f"the log says: offloaded {seen}/{total} layers"


def _kv_place(asked: bool, facts: TrialFacts) -> str | None:
    buffers = facts.native.of_kind("kv")
    device = [buffer for buffer in buffers if not buffer.on_host]
    if not asked and device:
        return f"the log shows a KV buffer on {device[0].device}"
    layers = facts.native.offloaded
    if asked and buffers and not device and layers is not None and layers[0] == layers[1] > 0:
        return f"the log shows the KV buffer on {buffers[0].device}"
    return None


def _cache_type(which: int) -> Any:
    def check(asked: str, facts: TrialFacts) -> str | None:
        types = facts.native.cache_types
        if types is None or types[which] == asked:
            return None
        return f"the log shows a cache of type {types[which]}"

    return check


def _flash(asked: str | bool, facts: TrialFacts) -> str | None:
    wanted = {True: "on", False: "off"}.get(asked, asked) if isinstance(asked, bool) else asked
    seen = facts.native.flash_attention_resolved or facts.native.flash_attention
    expected = {"on": "enabled", "off": "disabled"}.get(str(wanted))
    return None if expected is None or seen in (None, expected) else f"the log says that it is {seen}"


def _projector(asked: str, facts: TrialFacts) -> str | None:
    backend = facts.native.projector_backend
    if backend is None or (backend == "CPU") == (asked == "cpu"):
        return None
    return f"the log says that the projector runs on {backend}"


def _environment(asked: Mapping[str, str | None], facts: TrialFacts) -> str | None:
    changed = facts.evidence.get("env_set") or {}
    for name, value in asked.items():
        if name in changed and changed[name][1] != value:
            return f"the backend itself set {name} to {changed[name][1]}"
    return None


_CHECKS: dict[str, Any] = {
    "n_gpu_layers": _layers,
    "offload_kqv": _kv_place,
    "type_k": _cache_type(0),
    "type_v": _cache_type(1),
    "flash_attn": _flash,
    "projector_device": _projector,
    "env": _environment,
}


def clamped_settings(source: pa.Table | Sequence[Mapping[str, Any]] | Trials, arm: str) -> list[str]:
    """Settings of an arm that the build applied otherwise than asked, in words."""
    view = _views(trials_of(source)).get(arm)
    found = [
        words
        for facts in (view.facts if view is not None else ())
        for name, applied in facts.applied.items()
        if applied.status == "clamped" and (words := _wrongly_applied(name, applied)) is not None
    ]
    return list(dict.fromkeys(found))


def agreeing_arms(source: pa.Table | Sequence[Mapping[str, Any]] | Trials, baseline_arm: str) -> list[tuple[str, ...]]:
    """Groups of two or more arms with one sequence of token ids in all ok trials, other than the baseline's.

    Arms that rescue a wrong baseline by different means agree in tokens although their logits differ in noise.
    """
    trials = trials_of(source)
    keys: dict[str, set[bytes | None]] = {}
    for index, arm in enumerate(trials.arms):
        if trials.judged_outcomes[index] is Outcome.OK:
            keys.setdefault(arm, set()).add(trials.ids_key(index))
    groups: dict[bytes | None, list[str]] = {}
    for arm, found in keys.items():
        if arm != baseline_arm and len(found) == 1 and not found & keys.get(baseline_arm, set()):
            groups.setdefault(next(iter(found)), []).append(arm)
    return sorted(tuple(sorted(names)) for names in groups.values() if len(names) > 1)


def equivalent_arms(
    source: pa.Table | Sequence[Mapping[str, Any]] | Trials, baseline_arm: str
) -> list[tuple[str, ...]]:
    """Groups of two or more arms with one digest sequence in all ok trials, other than the baseline's.

    Settings that reach the same code path show up here, and a break in such a group is a finding.
    """
    views = _views(trials_of(source))
    usual = views[baseline_arm].digests if baseline_arm in views else Counter[bytes]()
    groups: dict[bytes, list[str]] = {}
    for name, view in views.items():
        if name != baseline_arm and len(view.digests) == 1 and not view.unmeasured:
            key = next(iter(view.digests))
            if key not in usual:
                groups.setdefault(key, []).append(name)
    return sorted(tuple(sorted(names)) for names in groups.values() if len(names) > 1)
