"""The settings that an arm can hold: names, kinds, allowed values and what each one reaches.

`None` always means "not set": the build's own default applies and is read back by the worker.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = [
    "CACHE_TYPES",
    "PROCESS_MODELS",
    "Scope",
    "Setting",
    "SettingError",
    "Settings",
    "closest",
    "setting_table",
    "settings_from_mapping",
]

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
"""KV cache types that llama.cpp accepts, by their ggml names."""

PROCESS_MODELS = ("fresh", "persistent")
"""`fresh`: one request in one process. `persistent`: several requests, memory cleared in between."""


class Scope(str, Enum):
    """The part of a trial that a setting reaches."""

    MODEL = "model"
    CONTEXT = "context"
    PROJECTOR = "projector"
    RUN = "run"
    SAMPLING = "sampling"
    ENVIRONMENT = "environment"


class SettingError(ValueError):
    """A setting is unknown, or its value is of the wrong type or out of range."""


def _setting(scope: Scope, about: str, *, choices: tuple[str, ...] = (), low: float = -math.inf) -> Any:
    return field(default=None, metadata={"scope": scope, "about": about, "choices": choices, "low": low})


_ON_OFF_AUTO = ("on", "off", "auto")


@dataclass(frozen=True)
class Settings:
    """One configuration of a trial, every field optional. `None` leaves the build's default alone."""

    n_gpu_layers: int | None = _setting(Scope.MODEL, "layers kept on the device; -1 means all", low=-1)
    split_mode: str | None = _setting(
        Scope.MODEL, "how a model is split over devices", choices=("none", "layer", "row")
    )
    main_gpu: int | None = _setting(Scope.MODEL, "device for the whole model when split_mode is none", low=0)
    tensor_split: list[float] | None = _setting(Scope.MODEL, "share of the model per device", low=0)
    use_mmap: bool | None = _setting(Scope.MODEL, "map the model file instead of reading it")
    n_ctx: int | None = _setting(Scope.CONTEXT, "context size, tokens", low=1)
    n_batch: int | None = _setting(Scope.CONTEXT, "largest logical batch, tokens", low=1)
    n_ubatch: int | None = _setting(Scope.CONTEXT, "largest physical batch (ubatch), tokens", low=1)
    n_threads: int | None = _setting(Scope.CONTEXT, "threads for single-token decoding", low=1)
    n_threads_batch: int | None = _setting(Scope.CONTEXT, "threads for prompt batches", low=1)
    flash_attn: bool | str | None = _setting(Scope.CONTEXT, "flash attention", choices=_ON_OFF_AUTO)
    type_k: str | None = _setting(Scope.CONTEXT, "type of the K cache", choices=CACHE_TYPES)
    type_v: str | None = _setting(Scope.CONTEXT, "type of the V cache", choices=CACHE_TYPES)
    offload_kqv: bool | None = _setting(Scope.CONTEXT, "KV cache and KQV operations on the device")
    op_offload: bool | None = _setting(Scope.CONTEXT, "send host tensor operations to the device")
    swa_full: bool | None = _setting(Scope.CONTEXT, "full-size cache for sliding-window attention")
    kv_unified: bool | None = _setting(Scope.CONTEXT, "one KV buffer for all sequences")
    projector_device: str | None = _setting(
        Scope.PROJECTOR, "where the multimodal projector runs", choices=("cpu", "gpu")
    )
    projector_warmup: bool | None = _setting(Scope.PROJECTOR, "one encode with empty input at load")
    warmup: bool | None = _setting(Scope.RUN, "one decode before the first request, then memory cleared")
    process: str | None = _setting(
        Scope.RUN, "process model: requests per process and what they share", choices=PROCESS_MODELS
    )
    temperature: float | None = _setting(Scope.SAMPLING, "0 means greedy", low=0)
    top_p: float | None = _setting(Scope.SAMPLING, "nucleus share", low=0)
    top_k: int | None = _setting(Scope.SAMPLING, "candidates kept; 0 means all", low=0)
    seed: int | None = _setting(Scope.SAMPLING, "seed of the sampler", low=0)
    max_tokens: int | None = _setting(Scope.SAMPLING, "most tokens to generate", low=1)
    env: dict[str, str | None] = field(
        default_factory=dict,
        metadata={
            "scope": Scope.ENVIRONMENT,
            "about": "environment variables of the worker; null unsets one",
            "choices": (),
            "low": -math.inf,
        },
    )

    def as_mapping(self) -> dict[str, Any]:
        """All fields as plain data, in declaration order."""
        return dataclasses.asdict(self)

    def changed(self, **values: Any) -> Settings:
        """A copy with some fields changed and checked."""
        return settings_from_mapping({**self.as_mapping(), **values})


@dataclass(frozen=True)
class Setting:
    """What is known of one setting, for help texts, documentation and checks."""

    name: str
    scope: Scope
    about: str
    choices: tuple[str, ...]
    low: float
    kind: str


_KINDS: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "list of float": (list, tuple),
    "on, off or auto": (bool, str),
    "mapping": (dict,),
}


def _kind(annotation: str) -> str:
    inner = annotation.removesuffix(" | None")
    if inner == "bool | str":
        return "on, off or auto"
    if inner.startswith("list"):
        return "list of float"
    return "mapping" if inner.startswith("dict") else inner


def setting_table() -> dict[str, Setting]:
    """Every setting by name, in declaration order."""
    return {
        f.name: Setting(
            name=f.name,
            scope=f.metadata["scope"],
            about=f.metadata["about"],
            choices=f.metadata["choices"],
            low=f.metadata["low"],
            kind=_kind(str(f.type)),
        )
        for f in dataclasses.fields(Settings)
    }


def closest(word: str, words: list[str]) -> str:
    """`. Did you mean 'x'?` for the nearest of `words`, or an empty text."""
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f". Did you mean '{near[0]}'?" if near else ""


def _checked(setting: Setting, value: Any) -> Any:
    if value is None:
        return None
    where = f"settings.{setting.name}"
    kinds = _KINDS[setting.kind]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise SettingError(f"{where}: {value!r} is not of type {setting.kind}")
    if setting.kind == "on, off or auto" and isinstance(value, bool):
        value = "on" if value else "off"
    if setting.choices and value not in setting.choices:
        raise SettingError(f"{where}: {value!r} is not one of {', '.join(setting.choices)}")
    if setting.kind == "list of float":
        value = [float(_checked_number(where, share, setting.low)) for share in value]
    elif setting.kind in ("int", "float"):
        value = _checked_number(where, value, setting.low)
    return float(value) if setting.kind == "float" else value


def _checked_number(where: str, value: Any, low: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise SettingError(f"{where}: {value!r} is not a number")
    if value < low:
        raise SettingError(f"{where}: {value!r} is below {low:g}")
    return value


def _checked_env(env: Any) -> dict[str, str | None]:
    if not isinstance(env, Mapping):
        raise SettingError(f"settings.env: {env!r} is not a mapping of variable names")
    for name in env:
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise SettingError(f"settings.env: {name!r} is not the name of an environment variable")
    return {name: None if value is None else _env_text(name, value) for name, value in sorted(env.items())}


def _env_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (int, float, str)):
        return str(value)
    raise SettingError(f"settings.env.{name}: {value!r} is neither text nor a number")


def settings_from_mapping(values: Mapping[str, Any]) -> Settings:
    """Settings from plain data.

    Raises `SettingError`, naming the field and the nearest known one, for an unknown name, a wrong type or
    a value out of range.
    """
    table = setting_table()
    for name in values:
        if name not in table:
            raise SettingError(f"unknown setting '{name}'{closest(name, list(table))}")
    checked = {name: _checked(table[name], value) for name, value in values.items() if name != "env"}
    return Settings(**checked, env=_checked_env(values.get("env") or {}))
