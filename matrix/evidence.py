"""Facts about what the library did, parsed from the stored native log and the worker's evidence.

Parsing happens when rows are read, never when they are written, so a better parser needs no new run. The
formats are those of llama.cpp from early 2024 (llama-cpp-python 0.2) to the newest release known here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["Applied", "Buffer", "NativeFacts", "TrialFacts", "native_facts", "trial_facts"]


@dataclass(frozen=True, order=True)
class Buffer:
    """One buffer of tensors: what it holds, where it is, and its size in MiB as printed."""

    kind: str  # model, kv, output, compute, or projector compute
    device: str
    mib: float

    @property
    def on_host(self) -> bool:
        """Whether it lies in the memory of the CPU (pinned memory of a device's host counts as host)."""
        return self.device.startswith(("CPU", "AMX")) or self.device.endswith("_Host")


@dataclass(frozen=True)
class NativeFacts:
    """What the native log shows. `None` or empty means that no line said so."""

    offloaded: tuple[int, int] | None = None  # layers on the device, of how many (output layer counted)
    buffers: tuple[Buffer, ...] = ()  # sorted; equal lines of several contexts once
    cache_types: tuple[str, str] | None = None  # of K and V
    graph_nodes: tuple[int, ...] = ()  # prompt batch, then single token where they differ
    graph_splits: tuple[int, ...] = ()
    flash_attention: str | None = None  # enabled, disabled or auto: what the context was asked for
    flash_attention_resolved: str | None = None  # what auto became
    projector_backend: str | None = None
    projector_flash_attention: str | None = None
    projector_splits: int | None = None
    devices: tuple[str, ...] = ()  # as the backends list them
    build: str | None = None

    def of_kind(self, kind: str) -> tuple[Buffer, ...]:
        """The buffers of one kind."""
        return tuple(buffer for buffer in self.buffers if buffer.kind == kind)


@dataclass
class _Found:
    """What has been read so far."""

    values: dict[str, Any] = field(default_factory=dict)
    buffers: dict[Buffer, None] = field(default_factory=dict)
    devices: dict[str, None] = field(default_factory=dict)


def _numbers(text: str) -> tuple[int, ...]:
    """`24 / 2`, `24 (with bs=256), 2 (with bs=1)` or `24`, without the batch sizes."""
    return tuple(int(number) for number in re.findall(r"(?<!bs=)\b\d+", text))


def _buffer(found: _Found, match: re.Match[str]) -> None:
    function, device, kind, size = match.groups()
    kind = (kind or "model").lower()
    if function in ("alloc_compute_meta", "clip_model_loader", "reserve_compute_meta"):
        kind = f"projector {kind}"
    found.buffers[Buffer(kind, device, float(size))] = None


def _graph(found: _Found, match: re.Match[str]) -> None:
    found.values["graph_nodes"] = _numbers(match[1])
    found.values["graph_splits"] = _numbers(match[2])


def _projector_graph(found: _Found, match: re.Match[str]) -> None:
    found.values["projector_splits"] = int(match[1])


def _named(name: str, convert: Callable[[re.Match[str]], Any]) -> Callable[[_Found, re.Match[str]], None]:
    def keep(found: _Found, match: re.Match[str]) -> None:
        found.values[name] = convert(match)

    return keep


def _device(found: _Found, match: re.Match[str]) -> None:
    found.devices[" ".join(part for part in match.groups() if part)] = None


_SWITCH = {"0": "disabled", "1": "enabled", "-1": "auto"}

_Rule = tuple[str, re.Pattern[str], Callable[[_Found, "re.Match[str]"], None]]

_RULES: tuple[_Rule, ...] = (
    (
        "buffer size =",
        re.compile(r"(\w+):\s+(\S+)\s+(?:(model|KV|RS|output|compute) )?buffer size =\s*([\d.]+) MiB"),
        _buffer,
    ),
    (
        "offloaded ",
        re.compile(r"offloaded (\d+)/(\d+) layers to GPU"),
        _named("offloaded", lambda m: (int(m[1]), int(m[2]))),
    ),
    (
        "MiB, V (",
        re.compile(r"K \((\w+)\):\s*[\d.]+ MiB, V \((\w+)\)"),
        _named("cache_types", lambda m: (m[1], m[2])),
    ),
    ("graph", re.compile(r"graph(?: \([^)]*\))?: nodes = ([\d /]+), splits = ([\d /]+)"), _graph),
    ("graph splits = ", re.compile(r"graph splits = (\d+), nodes = \d+"), _projector_graph),
    (
        "graph splits = ",
        re.compile(r"graph splits = ((?:\d+(?: \(with bs=\d+\))?(?:, )?)+)$"),
        _named("graph_splits", lambda m: _numbers(m[1])),
    ),
    (
        "graph nodes ",
        re.compile(r"graph nodes\s+= (.+)"),
        _named("graph_nodes", lambda m: _numbers(m[1])),
    ),
    (
        "flash_attn",
        re.compile(r"flash_attn\s+= (enabled|disabled|auto|-?[01])\b"),
        _named("flash_attention", lambda m: _SWITCH.get(m[1], m[1])),
    ),
    (
        "Flash Attention ",
        re.compile(r"Flash Attention (?:(?:was auto|not supported), set to )?(enabled|disabled)"),
        _named("flash_attention_resolved", lambda m: m[1]),
    ),
    ("CLIP using ", re.compile(r"CLIP using (\S+) backend"), _named("projector_backend", lambda m: m[1])),
    (
        "flash attention is ",
        re.compile(r"flash attention is (enabled|disabled)"),
        _named("projector_flash_attention", lambda m: m[1]),
    ),
    ("using device ", re.compile(r"using device (\S+) \((.+?)\)(?: \(|\s+-)"), _device),
    ("Device ", re.compile(r"^\s*Device \d+: ([^,]+), compute capability ([\d.]+)"), _device),
    ("ggml_vulkan: ", re.compile(r"ggml_vulkan: \d+ = (.+?) \| "), _device),
    ("found device: ", re.compile(r"ggml_metal\w*: found device: (.+)"), _device),
    ("build: ", re.compile(r"^build: (\d+ \(\w+\))"), _named("build", lambda m: m[1])),
)


def native_facts(log: str | None) -> NativeFacts:
    """The facts of a native log. Where a line comes again (another context), the last one counts."""
    found = _Found()
    for line in (log or "").splitlines():
        if line.startswith(("llama_graph_n_input_tensors", "create_tensor", "print_info")):
            continue  # nine lines of ten at debug level
        for anchor, pattern, keep in _RULES:
            if anchor in line and (match := pattern.search(line)):
                keep(found, match)
    return NativeFacts(**found.values, buffers=tuple(sorted(found.buffers)), devices=tuple(found.devices))


@dataclass(frozen=True)
class Applied:
    """What became of one setting: `status` is default, applied, clamped, ignored or unavailable."""

    asked: Any
    applied: Any
    status: str


@dataclass(frozen=True)
class TrialFacts:
    """All evidence of one trial: the native log, what was read back, what became of each setting."""

    native: NativeFacts
    evidence: Mapping[str, Any]
    applied: Mapping[str, Applied]
    settings: Mapping[str, Any]

    def comparable(self) -> dict[str, Any]:
        """What two trials of one configuration must agree in: facts of what happened, nothing merely asked.

        Parameters that only echo what was asked are left out, because an arm differs in them by definition.
        """
        native = {f.name: getattr(self.native, f.name) for f in fields(NativeFacts) if f.name not in _ASKED}
        read = {name: value for name, value in self.evidence.items() if name not in _NOT_COMPARED}
        projector = self.evidence.get("projector") or {}
        kept = {f"projector.{name}": value for name, value in projector.items() if name not in _ECHOES}
        return {**native, **read, **kept}


_ASKED = frozenset({"flash_attention"})
_ECHOES = frozenset({"use_gpu", "warmup"})
_NOT_COMPARED = frozenset({"projector", "env_set"})


def _mapping(text: str | None) -> Mapping[str, Any]:
    values = json.loads(text) if text else {}
    return values if isinstance(values, dict) else {}


def trial_facts(row: Mapping[str, Any]) -> TrialFacts:
    """The evidence of a stored row; empty where the trial did not come so far."""
    applied = {
        name: Applied(entry.get("asked"), entry.get("applied"), entry.get("status", "default"))
        for name, entry in _mapping(row.get("applied")).items()
    }
    return TrialFacts(
        native=native_facts(row.get("native_log")),
        evidence=_mapping(row.get("evidence")),
        applied=applied,
        settings=_mapping(row.get("settings")),
    )
