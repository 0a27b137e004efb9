"""Facts are read out of native logs of every format that the supported releases print."""

from __future__ import annotations

import json

import pytest
from isomatrix.matrix.evidence import Buffer, native_facts, trial_facts

CPU_0_3_7 = """\
load_tensors: layer   0 assigned to device CPU
load_tensors: tensor 'token_embd.weight' (f16) (and 20 others) cannot be used with preferred buffer type CPU_AARCH64, using CPU instead
load_tensors:   CPU_Mapped model buffer size =     0.23 MiB
llama_init_from_model: n_ubatch      = 256
llama_init_from_model: flash_attn    = 1
llama_kv_cache_init: kv_size = 256, offload = 1, type_k = 'f16', type_v = 'f16', n_layer = 2, can_shift = 1
llama_kv_cache_init:        CPU KV buffer size =     0.12 MiB
llama_init_from_model: KV self size  =    0.12 MiB, K (f16):    0.06 MiB, V (f16):    0.06 MiB
llama_init_from_model:        CPU  output buffer size =     0.00 MiB
llama_init_from_model:        CPU compute buffer size =     0.57 MiB
llama_init_from_model: graph nodes  = 63
llama_init_from_model: graph splits = 1
"""  # noqa: E501

CPU_0_3_36 = """\
load_tensors:   CPU_Mapped model buffer size =     2.19 MiB
llama_context: n_ubatch              = 512
llama_context: flash_attn            = auto
llama_context:        CPU  output buffer size =     0.00 MiB
llama_kv_cache: layer   0: dev = CPU
llama_kv_cache:        CPU KV buffer size =     4.00 MiB
llama_kv_cache: size =    4.00 MiB (  2048 cells,   4 layers,  1/1 seqs), K (q8_0):    2.00 MiB, V (f16):    2.00 MiB
sched_reserve: max_nodes = 1024
resolve_fused_ops: Flash Attention enabled
llama_graph_n_input_tensors: input tensor 'out_ids' [i32, ne = { 1, 1, 1, 1 }] is used by node 'node_65' (GET_ROWS)
sched_reserve:        CPU compute buffer size =     5.26 MiB
sched_reserve: graph: nodes = 130, splits = 1, input objects = 4, input tensors = 6
clip_ctx: CLIP using CPU backend
reserve_compute_meta:        CPU compute buffer size =     3.66 MiB
reserve_compute_meta: graph splits = 1, nodes = 90
warmup: flash attention is enabled
~llama_context:        CPU compute buffer size is   5.2600 MiB, matches expectation of   5.2600 MiB
"""

VULKAN_0_3_36 = """\
ggml_vulkan: Found 1 Vulkan devices:
ggml_vulkan: 0 = llvmpipe (LLVM 15.0.6, 256 bits) (llvmpipe) | uma: 0 | fp16: 1 | warp size: 8 | matrix cores: none
llama_prepare_model_devices: using device Vulkan0 (llvmpipe (LLVM 15.0.6, 256 bits)) (unknown id) - 2048 MiB free
load_tensors: offloading output layer to GPU
load_tensors: offloading 0 repeating layers to GPU
load_tensors: offloaded 1/3 layers to GPU
load_tensors:   CPU_Mapped model buffer size =     0.23 MiB
load_tensors:      Vulkan0 model buffer size =     0.04 MiB
llama_context: flash_attn            = enabled
llama_context: Vulkan_Host  output buffer size =     0.00 MiB
llama_kv_cache:        CPU KV buffer size =     0.12 MiB
llama_kv_cache: size =    0.12 MiB (   256 cells,   2 layers,  1/1 seqs), K (f16):    0.06 MiB, V (f16):    0.06 MiB
sched_reserve:    Vulkan0 compute buffer size =     0.63 MiB
sched_reserve: Vulkan_Host compute buffer size =     0.32 MiB
sched_reserve: graph (pp bs=256, tg bs=1): nodes = 68 / 68, splits = 24 / 2, input objects = 4 / 4
"""

CUDA_2025 = """\
ggml_cuda_init: found 1 CUDA devices:
  Device 0: NVIDIA GeForce RTX 4080, compute capability 8.9, VMM: yes
llm_load_tensors: offloaded 31/31 layers to GPU
llm_load_tensors:        CPU buffer size =   297.00 MiB
llm_load_tensors:      CUDA0 buffer size =  7317.71 MiB
llama_kv_cache_init:      CUDA0 KV buffer size =   180.00 MiB
llama_new_context_with_model: KV self size  =  180.00 MiB, K (f16):   90.00 MiB, V (f16):   90.00 MiB
llama_context: Flash Attention was auto, set to disabled
llama_new_context_with_model:  CUDA_Host compute buffer size =     8.01 MiB
llama_new_context_with_model: graph nodes  = 1030 (with bs=512), 998 (with bs=1)
llama_new_context_with_model: graph splits = 24 (with bs=512), 2 (with bs=1)
build: 4453 (a1b2c3d) with gcc for x86_64
"""


def test_an_old_cpu_log() -> None:
    facts = native_facts(CPU_0_3_7)
    assert facts.of_kind("kv") == (Buffer("kv", "CPU", 0.12),)
    assert facts.of_kind("model") == (Buffer("model", "CPU_Mapped", 0.23),)
    assert facts.of_kind("compute") == (Buffer("compute", "CPU", 0.57),)
    assert (facts.graph_nodes, facts.graph_splits) == ((63,), (1,))
    assert facts.flash_attention == "enabled"
    assert facts.cache_types == ("f16", "f16")
    assert facts.offloaded is None


def test_a_new_cpu_log_with_a_projector() -> None:
    facts = native_facts(CPU_0_3_36)
    assert facts.cache_types == ("q8_0", "f16")
    assert (facts.flash_attention, facts.flash_attention_resolved) == ("auto", "enabled")
    assert (facts.graph_nodes, facts.graph_splits) == ((130,), (1,))
    assert facts.projector_backend == "CPU"
    assert facts.projector_flash_attention == "enabled"
    assert facts.projector_splits == 1
    assert facts.of_kind("compute") == (Buffer("compute", "CPU", 5.26),)
    assert facts.of_kind("projector compute") == (Buffer("projector compute", "CPU", 3.66),)


def test_a_log_with_a_device() -> None:
    facts = native_facts(VULKAN_0_3_36)
    assert facts.offloaded == (1, 3)
    assert (facts.graph_nodes, facts.graph_splits) == ((68, 68), (24, 2))
    assert any("llvmpipe" in device for device in facts.devices)
    assert "Vulkan0 llvmpipe (LLVM 15.0.6, 256 bits)" in facts.devices
    assert [buffer.on_host for buffer in facts.of_kind("compute")] == [False, True]


def test_a_log_with_batch_sizes_in_brackets() -> None:
    facts = native_facts(CUDA_2025)
    assert facts.offloaded == (31, 31)
    assert (facts.graph_nodes, facts.graph_splits) == ((1030, 998), (24, 2))
    assert facts.devices == ("NVIDIA GeForce RTX 4080 8.9",)
    assert facts.flash_attention_resolved == "disabled"
    assert facts.build == "4453 (a1b2c3d)"
    assert Buffer("model", "CUDA0", 7317.71) in facts.buffers


@pytest.mark.parametrize("log", [None, "", "\n", "graph splits = \nbuffer size =\noffloaded x/y layers\n"])
def test_a_log_that_says_nothing_gives_no_facts(log: str | None) -> None:
    assert native_facts(log) == native_facts("")


def test_what_was_merely_asked_is_not_compared() -> None:
    def facts(**projector: object) -> dict[str, object]:
        evidence = {"n_ubatch": 512, "projector": {"audio_sample_rate": 16000, **projector}, "env_set": {}}
        return trial_facts({"native_log": CPU_0_3_36, "evidence": json.dumps(evidence)}).comparable()

    assert facts(warmup=True, use_gpu=False) == facts(warmup=False, use_gpu=True)
    assert facts()["n_ubatch"] == 512


def test_a_row_that_did_not_come_so_far_has_empty_facts() -> None:
    facts = trial_facts({"native_log": None, "evidence": None, "applied": None, "settings": None})
    assert (facts.evidence, facts.applied, facts.settings) == ({}, {}, {})
