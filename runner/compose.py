"""From Hydra's configuration and the words of the command line to a plan.

The only module besides the sweeper that knows Hydra's grammar. Values never travel through override text:
the levels of settings are merged as data; only choices of config groups, which are plain names, are handed
to Hydra as overrides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..matrix.arm import BASELINE, SEVERAL, Arm, Axis, AxisError, Draft, draft_arms, level_text, merge_equal
from ..matrix.controls import control_arms
from ..matrix.plan import Plan, PlanError
from ..matrix.plant import PlantError, mark_planted, plant_from_mapping
from ..matrix.settings import SettingError, Settings, closest, setting_table, settings_from_mapping
from ..matrix.statistics.rule import StopRuleError, stop_rule_from_mapping
from ..matrix.thresholds import ThresholdError, thresholds_from_mapping
from .builds import find_build
from .config_schema import node_fields
from .errors import UserError
from .files import sha256_of
from .load import LoadError, LoadSpec, NoLoad, make_load
from .models import media_file, model_files
from .reference_choice import SAFE, check_result, plan_reference, safe_changes

__all__ = ["Request", "build_plan", "check_setting_name", "hydra_word", "parse_arguments", "quoted"]

_GROUPS = ("load", "model", "plant", "probe")
_EXPERIMENT = ("reference", "controls", "thresholds", "experiment")
_NO_AXIS = ("run", "stop", "plan", "axes", "arms", "cross", "hydra", *_EXPERIMENT)
_OPEN_MAPPINGS = ("settings.env.", "arms.", "axes.", "load.", "plant.", "thresholds.")
_TEXTS = ("probe.prompt", "reference.arm", "run.name")
_NAMES = ("reference.harmless",)
_PATHS = (
    *("model.path", "model.mmproj", "probe.audio", "probe.image", "run.results", "run.python"),
    *("reference.ids", "reference.result"),
)


@dataclass(frozen=True)
class Request:
    """The words of the command line, taken apart: what holds for every arm, and what moves."""

    fixed: tuple[str, ...]
    axes: tuple[Axis, ...]
    axes_group_chosen: bool


def hydra_word(word: str) -> str:
    """A word of the command line as Hydra's grammar wants it.

    A new key of an open mapping needs no plus sign from the user (`settings.env.X=1`). A prompt is text as it
    stands, commas and all, unless it starts with a quote: then it is in Hydra's own notation, and can be a
    list of prompts; so is the name of an arm, which has equals signs. The name of an existing file is taken as it is,
    too.
    """
    key, equals, value = word.partition("=")
    if key in _NAMES and not {"'", '"'} & set(value):
        return f"{key}=[{','.join(quoted(name.strip()) for name in value.strip('[]').split(','))}]"
    if equals and ((key in _TEXTS and not value.startswith(("'", '"'))) or (key in _PATHS and Path(value).exists())):
        return f"{key}={quoted(value)}"
    return f"++{word}" if word.startswith(_OPEN_MAPPINGS) else word


def quoted(text: str) -> str:
    """Text as a quoted value of Hydra's override grammar, where a backslash escapes only before a quote."""
    escaped = re.sub(r"(\\+)(?='|$)", r"\1\1", text).replace("'", r"\'")
    return f"'{escaped}'"


def parse_arguments(arguments: Sequence[str]) -> Request:
    """Split overrides into fixed ones and swept axes.

    Raises `UserError` for an unknown setting or something that cannot be an axis.
    """
    overrides = OverridesParser.create().parse_overrides([hydra_word(argument) for argument in arguments])
    fixed, axes = [], []
    for override in overrides:
        name = override.key_or_group
        check_setting_name(name)
        if override.is_sweep_override():
            axes.append(_axis(_axis_name(name), _levels(override)))
        else:
            fixed.append(str(override.input_line))
    chosen = any(override.key_or_group in ("axes", "experiment") for override in overrides)
    return Request(tuple(fixed), tuple(axes), chosen)


def _axis(name: str, levels: Sequence[Any]) -> Axis:
    try:
        return Axis(name, tuple(levels))
    except AxisError as error:
        raise UserError(str(error)) from error


def check_setting_name(path: str) -> None:
    """`UserError` if `settings.X`, `probe.X` and so on name nothing: Hydra would only say how its nodes are called."""
    root, _, rest = path.partition(".")
    name, known = rest.split(".")[0], node_fields().get(root, [])
    if rest and known and name not in known:
        what = "setting" if root == "settings" else "word"
        hint = closest(name, known) or f"; {root} has {', '.join(known)}"
        raise UserError(f"unknown {what} '{path}'{hint}")


def _axis_name(path: str) -> str:
    root = path.split(".")[0]
    if root in _NO_AXIS and path != "run.python":
        raise UserError(f"{path}: {root} describes the experiment, so it cannot be an axis; give it one value")
    return path.removeprefix("settings.")


def _levels(override: Override) -> list[Any]:
    return [_plain(level) for level in override.sweep_iterator(transformer=lambda element: element)]


def _plain(level: Any) -> Any:
    if isinstance(level, QuotedString):
        return level.text
    return [_plain(item) for item in level] if isinstance(level, list) else level


def build_plan(loader: ConfigLoader, config: DictConfig, request: Request) -> tuple[DictConfig, Plan]:
    """The configuration without its axes moved, and the plan that follows from it.

    Raises `UserError` with one sentence for everything in it that does not make sense.
    """
    composer = _Composer(loader, config, request.fixed)
    base = composer.compose({})
    axes = list(request.axes)
    if request.axes_group_chosen or not axes:
        moved = {axis.name for axis in axes}
        axes += [axis for axis in _configured_axes(base.axes) if axis.name not in moved]
    named = {name: _changes(name, changes) for name, changes in _container(base.arms).items()}
    if base.reference.arm == SAFE and SAFE not in named:
        named[SAFE] = safe_changes(base)
    notes: list[str] = []
    axes = [axis for axis in axes if _reaches_something(axis, base, notes)]
    try:
        rule = stop_rule_from_mapping(_container(base.stop))
        drafts = draft_arms(axes, named, list(base.cross))
        start = {axis.name: axis.levels[0] for axis in axes}
        arms, merges = merge_equal(_arm(draft, start, composer) for draft in drafts)
        notes += [str(merge) for merge in merges]
        _check_load_used(base.load, arms)
        arms, renamed = mark_planted(arms)
        if base.controls.enabled:
            arms += control_arms(arms[0], base.controls.rate)
        plan = Plan(
            seed=base.run.seed,
            rounds=rule.rounds,
            arms=tuple(arms),
            stop=asdict(rule),
            reference=plan_reference(base.reference, {**{merge.left_out: merge.kept for merge in merges}, **renamed}),
            notes=tuple(notes),
            thresholds=_thresholds(base.thresholds),
        )
        for name in (plan.reference["arm"] or plan.baseline.name, *plan.reference["harmless"]):
            plan.arm(name)
        if base.reference.result is not None:
            check_result(plan, Path(base.reference.result))
    except (AxisError, PlanError, PlantError, StopRuleError, ThresholdError) as error:
        raise UserError(str(error)) from error
    return base, plan


def _container(node: Any) -> dict[str, Any]:
    plain = OmegaConf.to_container(node, resolve=True)
    if not isinstance(plain, dict):
        raise UserError(f"expected a mapping, got {plain!r}")
    return {str(key): value for key, value in plain.items()}


def _thresholds(node: Any) -> dict[str, Any]:
    """Thresholds that are not the usual ones; `ThresholdError` if one is unknown or makes no sense."""
    values = _container(node)
    thresholds_from_mapping(values)
    return values


def _configured_axes(node: Any) -> list[Axis]:
    axes = []
    for name, levels in _container(node).items():
        if not isinstance(levels, list):
            raise UserError(f"axes.{name}: {levels!r} is not a list of levels")
        axes.append(_axis(name.removeprefix("settings."), levels))
    return axes


def _changes(name: str, changes: Any) -> dict[str, Any]:
    if not isinstance(changes, dict):
        raise UserError(f"arms.{name}: {changes!r} is not a mapping of axis names to levels")
    return {str(axis).removeprefix("settings."): level for axis, level in changes.items()}


def _reaches_something(axis: Axis, base: DictConfig, notes: list[str]) -> bool:
    if axis.name.startswith("projector_") and base.probe.kind == "text":
        notes.append(f"axis {axis.name} left out: a text probe loads no projector")
        return False
    return True


class _Composer:
    """Composes the configuration of one set of changes; Hydra composes each choice of groups once."""

    def __init__(self, loader: ConfigLoader, config: DictConfig, fixed: Sequence[str]) -> None:
        self._loader = loader
        self._config = config
        self._fixed = tuple(fixed)
        self._known: dict[tuple[tuple[str, str], ...], DictConfig] = {}

    def compose(self, changes: Mapping[str, Any]) -> DictConfig:
        groups = tuple((name, self._choice(name, level)) for name, level in changes.items() if name in _GROUPS)
        if groups not in self._known:
            names = {name for name, _ in groups}
            fixed = [text for text in self._fixed if text.split("=")[0].lstrip("+") not in names]
            chosen = [f"{name}={choice}" for name, choice in groups]
            composed = self._loader.load_sweep_config(self._config, [*fixed, *chosen])
            # Hydra's own node is the larger part, and every arm takes a copy.
            self._known[groups] = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
        own: DictConfig = self._known[groups].copy()
        for name, level in changes.items():
            if name not in _GROUPS:
                _apply(own, name, level)
        return own

    def _choice(self, group: str, level: Any) -> str:
        choices = self._loader.get_group_options(group)
        if level not in choices:
            raise UserError(f"{group}: '{level_text(level)}' is not one of {', '.join(sorted(choices))}")
        return str(level)


def _apply(config: DictConfig, axis: str, level: Any) -> None:
    root = axis.split(".")[0]
    path = f"settings.{axis}" if root == "env" or axis in setting_table() else axis
    if path == axis and root not in config:
        raise UserError(
            f"'{axis}' is no setting and no part of the configuration{closest(axis, list(setting_table()))}"
        )
    try:
        if path.startswith(_OPEN_MAPPINGS):
            node, _, key = path.rpartition(".")
            OmegaConf.update(config, node, {key: level}, merge=True, force_add=True)
        else:
            OmegaConf.update(config, path, level, merge=False)
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: {str(error).splitlines()[0]}") from error


def _arm(draft: Draft, start: Mapping[str, Any], composer: _Composer) -> Arm:
    composed = composer.compose({**start, **dict(draft.changes)})
    try:
        configuration = _configuration(composed)
    except (SettingError, UserError) as error:
        if draft.name == BASELINE:
            raise UserError(str(error)) from error
        raise UserError(f"arm '{draft.name}': {error}") from error
    # A level that a named arm shares with the baseline changes nothing, so it is no difference.
    changes = [(name, level) for name, level in draft.changes if name not in start or level != start[name]]
    texts = tuple((name, level_text(level, name)) for name, level in changes)
    if draft.name == BASELINE:
        return Arm(BASELINE, BASELINE, BASELINE, (), BASELINE, configuration)
    axis, level = texts[0] if len(texts) == 1 else (SEVERAL, SEVERAL)
    return Arm(draft.name, axis, level, texts, draft.reference, configuration)


def _configuration(composed: DictConfig) -> dict[str, Any]:
    """Everything that a trial needs, as plain JSON data with absolute paths."""
    settings = settings_from_mapping(_container(composed.settings))
    probe = composed.probe
    if probe.kind not in ("text", "audio", "image"):
        raise UserError(f"probe.kind: '{probe.kind}' is not one of text, audio, image")
    if not probe.prompt:
        raise UserError("probe.prompt: the prompt is empty")
    if probe.requests < 1:
        raise UserError(f"probe.requests: {probe.requests} is below 1")
    model = model_files(composed.model, with_projector=probe.kind != "text")
    media = media_file(probe, embedded=composed.model.kind in ("tiny", "tiny_moe") and not composed.model.path)
    build = find_build(composed.run.python, settings.env)
    limits = _limits(composed.run.limits)
    return {
        "settings": settings.as_mapping(),
        "model": model.identity(),
        "probe": _probe(probe, settings, media),
        "load": _load(composed.load),
        "build": {"library": build.library, "digest": build.digest, "python": build.python_version},
        "files": {
            "model": str(model.model),
            "mmproj": str(model.mmproj) if model.mmproj else None,
            "media": str(media) if media else None,
            "python": build.python,
        },
        "limits": limits,
        **_plant(composed.plant, limits),
    }


def _probe(probe: Any, settings: Settings, media: Path | None) -> dict[str, Any]:
    return {
        "kind": probe.kind,
        "prompt": probe.prompt,
        "media_sha256": sha256_of(media) if media else None,
        "requests": 1 if settings.process in (None, "fresh") else probe.requests,
        "top_k_recorded": probe.top_k_recorded,
        "ignore_eos": probe.ignore_eos,
        "teacher_forced": probe.teacher_forced,
    }


def _load(node: Any) -> dict[str, Any]:
    parameters = {name: value for name, value in _container(node).items() if name != "kind"}
    if node.kind == NoLoad.kind:
        parameters = {}  # `load=none,cpu load.processes=1`: they are meant for the other levels
    try:
        make_load(LoadSpec(node.kind, parameters))  # checks kind and parameters
    except LoadError as error:
        raise UserError(f"load: {error}") from error
    return {"kind": node.kind, "parameters": parameters}


def _check_load_used(node: Any, arms: Sequence[Arm]) -> None:
    names = [f"load.{name}" for name in node if name != "kind"]
    if names and all(arm.configuration["load"]["kind"] == NoLoad.kind for arm in arms):
        raise UserError(f"{', '.join(names)}: an idle machine has no such parameter; choose a load, such as load=cpu")


def _plant(node: Any, limits: Mapping[str, Any]) -> dict[str, Any]:
    """The planted fault as part of a configuration; nothing at all where none is planted."""
    try:
        plant = plant_from_mapping(_container(node))
    except PlantError as error:
        raise UserError(str(error)) from error
    if plant is None:
        return {}
    if plant["kind"] == "allocate" and limits["memory_gb"] is None:
        raise UserError("plant=allocate takes memory until a limit ends it; set run.limits.memory_gb, for example to 1")
    return {"plant": plant}


def _limits(node: Any) -> dict[str, Any]:
    for name in ("wall_s", "stall_s", "memory_gb"):
        value = node[name]
        if value is not None and value <= 0:
            raise UserError(f"run.limits.{name}: {value} is not above 0")
    return _container(node)
