"""Markers in the native log: what means a fault, what is suspicious, what confirms a setting.

The texts are those that llama.cpp and its backends print, collected from the sources and from public reports.
A marker is found by a plain substring (`anchor`), and confirmed by a pattern where that is not enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .outcome import Outcome

__all__ = [
    "MARKERS",
    "NOTABLE_PATTERN",
    "Marker",
    "MarkerHit",
    "Severity",
    "effective_outcome",
    "faults",
    "find_markers",
    "notable_markers",
]


class Severity(str, Enum):
    """What a marker says about its trial."""

    FAULT = "fault"  # the computation failed: the outcome is a backend error even if tokens came
    SUSPICIOUS = "suspicious"  # noted, and never decides by itself
    CONFIRMS = "confirms"  # shows which configuration was really in use


@dataclass(frozen=True)
class Marker:
    """One text to look for. `undone_by` is a later text that shows that the library recovered."""

    name: str
    severity: Severity
    anchor: str
    about: str
    pattern: str | None = None
    undone_by: str | None = None


@dataclass(frozen=True)
class MarkerHit:
    """Where a marker was found first: `position` in characters from 0, `line_number` from 1."""

    name: str
    severity: Severity
    position: int
    line_number: int
    line: str
    count: int

    def as_data(self) -> dict[str, Any]:
        """Plain data for the record."""
        return {
            "marker": self.name,
            "severity": self.severity.value,
            "line": self.line_number,
            "text": self.line,
            "count": self.count,
        }


_RETRY = "retrying without pipeline parallelism"


def _faults(about: str, *anchors: str, undone_by: str | None = None) -> list[Marker]:
    return [Marker(anchor.strip(" :'("), Severity.FAULT, anchor, about, undone_by=undone_by) for anchor in anchors]


def _suspicious(about: str, *anchors: str) -> list[Marker]:
    return [Marker(anchor, Severity.SUSPICIOUS, anchor, about) for anchor in anchors]


def _confirms(about: str, *anchors: str) -> list[Marker]:
    return [Marker(anchor, Severity.CONFIRMS, anchor, about) for anchor in anchors]


_FAULT_PATTERNS = [
    Marker(
        "command buffer failed",
        Severity.FAULT,
        "command buffer ",
        "Metal: the GPU ended a command buffer with an error",
        r"command buffer \d+ failed with status \d",
    ),
    Marker(
        "assertion failed",
        Severity.FAULT,
        "GGML_ASSERT(",
        "an assertion ended the process",
        r"GGML_ASSERT\(.*\) failed",
    ),
    Marker(
        "fatal error",
        Severity.FAULT,
        "fatal error",
        "ggml ended the process",
        r"\.(?:c|cpp|m|mm|cu|cuh|h|metal):\d+: fatal error",
    ),
    Marker("found nan", Severity.FAULT, "Oops(ggml_compute_forward_", "a check found NaN", r"found nan"),
    Marker("perplexity nan", Severity.FAULT, "[1]nan", "perplexity printed NaN", r"\[1\]nan,"),
    Marker(
        "invalid token",
        Severity.FAULT,
        "invalid token[",
        "bad input from the host program",
        r"invalid token\[\d+\] =",
    ),
    Marker("invalid seq_id", Severity.FAULT, "invalid seq_id[", "bad input from the host program"),
    Marker("empty batch", Severity.FAULT, ": n_tokens == 0", "bad input from the host program"),
    Marker(
        "allocation failed",
        Severity.FAULT,
        "failed to allocate ",
        "a buffer could not be allocated",
        r"failed to allocate .*buffer",
        _RETRY,
    ),
    Marker(
        "K cache type",
        Severity.FAULT,
        "K cache type ",
        "the configuration is not possible",
        r"K cache type \S+ with block size \d+ does not divide",
    ),
    Marker(
        "V cache type",
        Severity.FAULT,
        "V cache ",
        "the configuration is not possible",
        r"V cache (?:quantization requires|type \S+ with block size \d+ does not divide)",
    ),
    Marker(
        "encode slice",
        Severity.FAULT,
        "failed to encode ",
        "the projector failed",
        r"failed to encode \S+ slice",
    ),
    Marker(
        "expected output tokens",
        Severity.FAULT,
        "expected output ",
        "the projector failed",
        r"expected output \d+ tokens, got \d+",
    ),
]

MARKERS: tuple[Marker, ...] = (
    *_FAULT_PATTERNS,
    *_faults(
        "Metal: the backend refuses to go on after a fault",
        "backend is in error state from a previous command buffer failure",
    ),
    *_faults(
        "Metal: why the GPU ended a command buffer",
        "kIOGPUCommandBufferCallbackErrorOutOfMemory",
        "Insufficient Memory (00000008",
        "kIOGPUCommandBufferCallbackErrorImpactingInteractivity",
        "kIOGPUCommandBufferCallbackErrorHang",
        "Caused GPU Hang Error",
        "kIOGPUCommandBufferCallbackErrorInnocentVictim",
        "SubmissionsIgnored (00000004",
        "Ignored (for causing prior/excessive GPU errors)",
    ),
    *_faults(
        "Metal: a tensor, an operation or a kernel is missing",
        "failed to find buffer for tensor",
        "unsupported op '",
        "failed to compile pipeline: base =",
        "failed to create pipeline state",
    ),
    *_faults(
        "CUDA: the runtime reported an error",
        "CUDA error: ",
        "an illegal memory access was encountered",
        "cudaErrorGraphExecUpdateFailure",
    ),
    *_faults("CUDA: out of memory", "cudaMalloc failed:", undone_by=_RETRY),
    *_faults(
        "Vulkan: the device was lost or a call failed",
        "ErrorDeviceLost",
        "vk::DeviceLostError",
        "vk::Queue::submit",
        "ggml_vulkan: Error: Shared memory size too small for matrix multiplication",
        "ggml_vulkan: Error: Missing op:",
    ),
    *_faults(
        "Vulkan: out of memory",
        "ErrorOutOfDeviceMemory",
        "ErrorOutOfHostMemory",
        "Requested buffer size exceeds device buffer size limit",
        undone_by=_RETRY,
    ),
    *_faults("ROCm: the runtime reported an error", "HSA_STATUS_ERROR_EXCEPTION"),
    *_faults("ggml ended the process", "ggml_print_backtrace"),
    *_faults("a check found NaN", "encountered NaN - aborting"),
    *_faults(
        "a graph could not be computed",
        "failed to compute graph, compute status:",
        "ggml_backend_sched_graph_compute_async failed with error",
        "compute failed while preparing batch of size",
    ),
    *_faults(
        "a batch could not be evaluated",
        "failed to find a memory slot for batch of size",
        "failed to find KV cache slot",
        "failed to decode, ret =",
        "failed to encode, ret =",
        "llama_decode returned -",
        "failed to decode prompt batch, res =",
        "failed to initialize batch",
        "invalid logits id ",
        "could not reserve space for batch with",
    ),
    *_faults(
        "memory for tensors could not be had",
        "not enough space in the context's memory pool",
        "not enough space in the buffer",
        undone_by=_RETRY,
    ),
    *_faults(
        "the context could not be set up",
        "failed to reserve graph after the memory update",
        "failed to compute K-shift",
    ),
    *_faults(
        "a stored state could not be restored",
        "error loading state:",
        "did not read all of the session file data",
        "mismatched key type",
        "mismatched value row size",
        "not enough cells in kv cache to restore state",
        "failed to find available cells in kv cache",
    ),
    *_faults("the projector failed", "failed to eval chunk", "Unable to preprocess audio"),
    *_suspicious(
        "memory pressure",
        "current allocated size is greater than the recommended max working set size",
        "hipMallocManaged unsupported",
    ),
    *_suspicious(
        "positions or batch flags from the host program are odd",
        "positions are not continuous",
        "positions are decreasing (not allowed)",
        "non-consecutive token position",
        "embeddings required but some input tokens were not marked as outputs",
    ),
    *_suspicious("another graph than asked for", _RETRY),
    *_suspicious("flash attention runs elsewhere than its layer", "but the Flash Attention tensor"),
    *_suspicious("a cached prefix was reused", "need to evaluate at least 1 token", "n_past was set to"),
    *_confirms(
        "flash attention was resolved by the build",
        "Flash Attention was auto, set to",
        "Flash Attention not supported, set to disabled",
    ),
    *_confirms(
        "an environment variable took effect",
        "graph reuse disabled",
        "attention rotation force disabled",
    ),
    *_confirms(
        "where layers, buffers and graphs are",
        "layers to GPU",
        "KV buffer size =",
        "graph splits =",
        "CPU_REPACK model buffer size",
        "AMX model buffer size",
        "use residency sets",
        "tensor API disabled for pre-M5",
        "CUDA Graph id",
    ),
)

_NOTABLE = tuple(marker for marker in MARKERS if marker.severity is not Severity.CONFIRMS)

NOTABLE_PATTERN = "|".join(sorted({re.escape(marker.anchor) for marker in _NOTABLE}))
"""Matches every log that holds the anchor of a fault or suspicious marker (and some that hold no marker)."""


def _hit(marker: Marker, log: str) -> MarkerHit | None:
    position = log.find(marker.anchor)
    first, count = -1, 0
    line = ""
    while position >= 0:
        start = log.rfind("\n", 0, position) + 1
        end = log.find("\n", position)
        text = log[start : len(log) if end < 0 else end]
        if marker.pattern is None or re.search(marker.pattern, text):
            count += 1
            if first < 0:
                first, line = position, text
        position = log.find(marker.anchor, max(end, position + len(marker.anchor)))
    if first < 0 or (marker.undone_by is not None and log.find(marker.undone_by, first) >= 0):
        return None
    return MarkerHit(marker.name, marker.severity, first, log.count("\n", 0, first) + 1, line.strip()[:300], count)


def find_markers(log: str | None, markers: Iterable[Marker] = MARKERS) -> tuple[MarkerHit, ...]:
    """Every marker in a native log at its first place, in the order of their places."""
    if not log:
        return ()
    hits = [hit for marker in markers if (hit := _hit(marker, log)) is not None]
    return tuple(sorted(hits, key=lambda hit: (hit.position, hit.name)))


def notable_markers(log: str | None) -> tuple[MarkerHit, ...]:
    """The fault and suspicious markers of a native log."""
    return find_markers(log, _NOTABLE)


def faults(hits: Iterable[MarkerHit]) -> tuple[MarkerHit, ...]:
    """The hits that mean that the computation failed."""
    return tuple(hit for hit in hits if hit.severity is Severity.FAULT)


def effective_outcome(row: Mapping[str, Any]) -> Outcome:
    """The outcome of a row, with the native log taken into account.

    A process that ended well although its log reports a failed computation counts as a backend error. Every
    other outcome stays what the runner saw.
    """
    outcome = Outcome(row["outcome"])
    if outcome is Outcome.OK and faults(notable_markers(row.get("native_log"))):
        return Outcome.BACKEND_ERROR
    return outcome
