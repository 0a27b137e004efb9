"""Every setting of a trial: asked, applied, and what became of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .sampling import Sampler
from .spec import Spec

__all__ = ["DEFAULT_MAX_TOKENS", "applied_settings"]

DEFAULT_MAX_TOKENS = 32
OFFLOADING = frozenset({"n_gpu_layers", "split_mode", "main_gpu", "tensor_split", "offload_kqv", "op_offload"})
"""Settings that reach nothing on a machine, or a build, whose only device is the CPU."""

_PROJECTOR = frozenset({"projector_device", "projector_warmup"})
_SAMPLED_ONLY = frozenset({"top_p", "top_k", "seed"})


def _without_effect(spec: Spec, native: Mapping[str, Any], accelerator: bool) -> frozenset[str]:
    """Settings that nothing in this trial uses."""
    ignored = frozenset() if accelerator else OFFLOADING
    if spec.probe.kind == "text":
        ignored |= _PROJECTOR
    if not spec.settings["temperature"]:
        ignored |= _SAMPLED_ONLY
    if native["split_mode"] == "layer":
        ignored |= {"main_gpu"}
    elif native["split_mode"] == "none":
        ignored |= {"tensor_split"}
    return ignored


def _of_the_run(spec: Spec, sampler: Sampler) -> dict[str, Any]:
    """Settings that the worker itself carries out, with its own defaults."""
    settings = spec.settings
    defaults = {
        "warmup": False,
        "process": "fresh",
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "max_tokens": DEFAULT_MAX_TOKENS,
    }
    done = {name: default if settings[name] is None else settings[name] for name, default in defaults.items()}
    return {**done, "seed": sampler.seed, "env": {name: os.environ.get(name) for name in settings["env"]}}


def _status(asked: Any, applied: Any, ignored: bool) -> str:
    if asked is None or asked == {}:
        return "default"
    if ignored:
        return "ignored"
    return "applied" if asked == applied else "clamped"


def applied_settings(
    spec: Spec,
    native: Mapping[str, Any],
    projector: Mapping[str, Any] | None,
    sampler: Sampler,
    accelerator: bool,
) -> dict[str, dict[str, Any]]:
    """`{setting: {asked, applied, status}}` for every setting.

    `native` and `projector` are what the library's parameter blocks and the context hold; `accelerator` says
    whether there is any device besides the CPU.
    """
    held = {**native, **(projector or dict.fromkeys(_PROJECTOR)), **_of_the_run(spec, sampler)}
    ignored = _without_effect(spec, native, accelerator)
    return {
        name: {
            "asked": asked,
            "applied": held[name],
            "status": _status(_as_held(asked), held[name], name in ignored),
        }
        for name, asked in spec.settings.items()
    }


def _as_held(asked: Any) -> Any:
    """Shares of a split are float32 in the library; compare them as they come back."""
    return [round(share, 6) for share in asked] if isinstance(asked, list) else asked
