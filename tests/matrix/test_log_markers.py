"""Markers are found where they stand, faults outrank an ok exit, and ordinary logs hold none."""

from __future__ import annotations

import pytest
from isomatrix.matrix.log_markers import (
    MARKERS,
    Severity,
    effective_outcome,
    faults,
    find_markers,
    notable_markers,
)
from isomatrix.matrix.outcome import Outcome

METAL = (
    "llama_context: n_ctx = 4096\n"
    "ggml_metal_synchronize: error: command buffer 0 failed with status 5\n"
    "error: Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)\n"
    "ggml_metal_synchronize: error: command buffer 1 failed with status 5\n"
)

ORDINARY = """\
load_tensors: tensor 'token_embd.weight' (f16) (and 20 others) cannot be used with preferred buffer type CPU_REPACK, using CPU instead
llama_context: n_ctx_seq (256) < n_ctx_train (4096) -- the full capacity of the model will not be utilized
ggml_vulkan: Warning: Device type is CPU. This is probably not the device you want.
llama_kv_cache:        CPU KV buffer size =     0.12 MiB
llama_kv_cache: attn_rot_k = 0, n_embd_head_k_all = 16
load: special_eos_id is not in special_eog_ids - the tokenizer config may be incorrect
resolve_fused_ops: Flash Attention enabled
init_audio: audio input is in experimental stage and may have reduced quality:
sched_reserve: reserve took 12.11 ms, sched copies = 1
"""  # noqa: E501


def test_a_fault_is_found_with_its_place_and_count() -> None:
    hits = faults(find_markers(METAL))
    assert [hit.name for hit in hits] == [
        "command buffer failed",
        "kIOGPUCommandBufferCallbackErrorImpactingInteractivity",
    ]
    assert (hits[0].line_number, hits[0].count) == (2, 2)
    assert METAL[hits[0].position :].startswith("command buffer 0")
    assert hits[0].line.endswith("status 5")


def test_an_ordinary_log_holds_no_fault_and_nothing_suspicious() -> None:
    assert notable_markers(ORDINARY) == ()


@pytest.mark.parametrize(
    "line",
    [
        "ggml_metal_synchronize: error: command buffer 3 failed with status 5",
        "CUDA error: an illegal memory access was encountered",
        "  current device: 0, in function f at /src/ggml-cuda.cu:107\n/src/ggml-cuda.cu:107: fatal error",
        "/src/ggml.c:123: GGML_ASSERT(cur_p->size > 0) failed",
        "terminate called after throwing an instance of 'vk::DeviceLostError'",
        "decode: failed to find a memory slot for batch of size 512",
        "process_ubatch: failed to compute graph, compute status: -1",
        "alloc: failed to allocate CUDA0 buffer of size 1073741824",
        "Oops(ggml_compute_forward_sum_rows_f32, ffn_moe): found nan for i1 = 0",
        "llama_init: V cache quantization requires flash_attn",
        "K cache type q4_0 with block size 32 does not divide n_embd_head_k=80",
        "mtmd: failed to encode audio slice",
        "common_debug_cb_eval: encountered NaN - aborting",
    ],
)
def test_reported_fault_lines_are_faults(line: str) -> None:
    assert faults(find_markers(f"before\n{line}\nafter\n"))


@pytest.mark.parametrize(
    "line",
    ["no fatal error was seen", "V cache of 3 MiB", "K cache type f16", "command buffer pool size 8", "GGML_ASSERT(x)"],
)
def test_words_of_a_marker_in_another_line_are_no_fault(line: str) -> None:
    assert not faults(find_markers(line))


def test_an_allocation_that_was_repeated_with_success_is_no_fault() -> None:
    failed = "cudaMalloc failed: out of memory\nfailed to allocate CUDA0 buffer of size 9\n"
    retried = failed + "llama_context: compute buffer allocation failed, retrying without pipeline parallelism\n"
    assert faults(find_markers(failed))
    hits = notable_markers(retried)
    assert not faults(hits)
    assert [hit.severity for hit in hits] == [Severity.SUSPICIOUS]


def test_a_fault_makes_an_ok_trial_a_backend_error_and_leaves_other_outcomes_alone() -> None:
    assert effective_outcome({"outcome": "ok", "native_log": METAL}) is Outcome.BACKEND_ERROR
    assert effective_outcome({"outcome": "ok", "native_log": ORDINARY}) is Outcome.OK
    assert effective_outcome({"outcome": "timeout", "native_log": METAL}) is Outcome.TIMEOUT


def test_a_suspicious_line_does_not_decide() -> None:
    log = "init: sequence 0 positions are not continuous\n"
    assert effective_outcome({"outcome": "ok", "native_log": log}) is Outcome.OK
    assert [hit.severity for hit in notable_markers(log)] == [Severity.SUSPICIOUS]


def test_every_marker_has_its_own_name_and_says_what_it_means() -> None:
    names = [marker.name for marker in MARKERS]
    assert len(set(names)) == len(names)
    assert all(marker.about and marker.anchor for marker in MARKERS)
