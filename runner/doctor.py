"""What an interpreter, its build and this machine can do, found out by running the embedded model.

An axis is called live only if its two levels were run and the library did something different.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import psutil
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as RichTable
from rich.text import Text

from ..matrix.arm import Arm, level_text
from ..matrix.effect import INERT, arm_effects
from ..matrix.outcome import Outcome
from ..matrix.settings import settings_from_mapping
from .builds import Build, find_build
from .errors import ExitCode
from .files import cache_folder
from .provenance import cpu_model, project_version
from .round import trial_request
from .tiny_models import tiny_model
from .trial import run_trial

__all__ = ["print_doctor"]

_AXES: dict[str, tuple[Any, Any]] = {
    "op_offload": (True, False),
    "offload_kqv": (True, False),
    "n_gpu_layers": (99, 0),
    "projector_device": ("gpu", "cpu"),
    "projector_warmup": (True, False),
    "warmup": (True, False),
    "process": ("fresh", "persistent"),
    "flash_attn": ("off", "on"),
    "n_threads": (1, 2),
    "n_ubatch": (512, 31),
    "kv_unified": (False, True),
    "swa_full": (False, True),
}
_TOKENS = 4
_SLOW_S = 15.0
"""An audio trial longer than this (software Vulkan, say) would make a doctor of many minutes."""


def print_doctor(python: str | None, console: Console) -> int:
    """Print the build, its devices and which axes are live; 0 if the embedded model runs, else 3."""
    build = find_build(python, {})
    console.print(Text(f"isomatrix {project_version()}, Python {sys.version.split()[0]}"))
    memory = psutil.virtual_memory().total / 2**30
    console.print(Text(f"machine: {cpu_model()}, {psutil.cpu_count()} CPUs, {memory:.0f} GiB"))
    console.print(Text(f"interpreter: {build.python} (Python {build.python_version})"), soft_wrap=True)
    console.print(Text(f"llama-cpp-python {build.library} in {build.package}"), soft_wrap=True)
    console.print(Text(f"cache: {cache_folder()}"), soft_wrap=True)
    media, baseline = _baseline(build)
    if baseline["outcome"] != Outcome.OK.value:
        console.print(
            Text(f"the embedded model does not run: {baseline['outcome']}: {baseline.get('error')}"),
            soft_wrap=True,
        )
        return ExitCode.UNUSABLE
    _print_library(baseline, console)
    if not media:
        console.print(Text("this build has no multimodal support, so the axes are tried on a text probe"))
    elif baseline["wall_s"] > _SLOW_S:
        media = False
        seconds = f"{baseline['wall_s']:.0f} s"
        console.print(Text(f"an audio trial takes {seconds} here, so the axes are tried on a text probe"))
    _print_axes(build, media, console)
    return ExitCode.OK


def _baseline(build: Build) -> tuple[bool, Mapping[str, Any]]:
    row = _try(build, True, {})
    return (True, row) if row["outcome"] == Outcome.OK.value else (False, _try(build, False, {}))


def _try(build: Build, media: bool, settings: Mapping[str, Any]) -> dict[str, Any]:
    arm = _arm(build, media, settings)
    row = run_trial(trial_request(arm, "doctor"))
    return {**row, "trial_id": arm.name, "arm": arm.name, "round": 0, "position": 0}


def _arm(build: Build, media: bool, settings: Mapping[str, Any]) -> Arm:
    chosen = settings_from_mapping({"n_ctx": 2048, "max_tokens": _TOKENS, **settings})
    name = ", ".join(f"{key}={level_text(value)}" for key, value in settings.items()) or "defaults"
    configuration = {
        "settings": chosen.as_mapping(),
        "probe": {
            "kind": "audio" if media else "text",
            "prompt": "What is said here, and by whom, and when was it said for the first time?",
            "requests": 2 if chosen.process == "persistent" else 1,
            "top_k_recorded": 1,
            "ignore_eos": True,
        },
        "load": {"kind": "none", "parameters": {}},
        "files": {
            "model": str(tiny_model("tiny")),
            "mmproj": str(tiny_model("tiny_projector")) if media else None,
            "media": str(tiny_model("tiny_audio")) if media else None,
            "python": build.python,
        },
        "limits": {"wall_s": 300.0, "stall_s": None, "memory_gb": None},
    }
    return Arm(name, "doctor", name, (), name, configuration)


def _print_library(row: Mapping[str, Any], console: Console) -> None:
    console.print(Text(f"llama.cpp: {row['build'] or 'this release does not tell its build'}"), soft_wrap=True)
    devices = json.loads(row["evidence"] or "{}").get("devices")
    if devices is None:
        console.print(Text("devices: this release cannot list them"))
        return
    for device in devices:
        console.print(Text(f"device: {device['name']} ({device['type']}): {device['description']}"), soft_wrap=True)


def _print_axes(build: Build, media: bool, console: Console) -> None:
    grid = RichTable("axis", "levels tried", "here", "because", box=box.SIMPLE_HEAD, pad_edge=False)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for name in progress.track(list(_AXES), description="trying the axes"):
            levels = _AXES[name]
            here, because = _liveness(build, media, name, levels)
            grid.add_row(*map(Text, (name, " / ".join(map(level_text, levels)), here, because)))
    if console.is_terminal:
        console.print(grid)
    else:
        for cells in zip(*(column.cells for column in grid.columns), strict=True):
            console.file.write("\t".join(str(cell) for cell in cells) + "\n")


def _liveness(build: Build, media: bool, name: str, levels: tuple[Any, Any]) -> tuple[str, str]:
    if name.startswith("projector_") and not media:
        return "not tried", "a text probe loads no projector"
    rows = [_try(build, media, {name: level}) for level in levels]
    for row in rows:
        if row["outcome"] == Outcome.REFUSED.value:
            return "refused", str(row["error"])
        if row["outcome"] != Outcome.OK.value:
            return "fails", f"{row['arm']}: {row['outcome']}: {row['error']}"
    effect = arm_effects(rows, rows[0]["arm"])[rows[1]["arm"]]
    if effect.effect == INERT:
        unused = effect.reason.partition("nothing in these trials uses")[1:]
        return INERT, "the same logits bit for bit, and the same evidence" + (
            f"; {''.join(unused)}" if all(unused) else ""
        )
    words = {"proven": "live", "contradicted": "not live"}
    return words.get(effect.effect or "", "unknown"), effect.reason
