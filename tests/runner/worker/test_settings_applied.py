"""Every setting is applied, or the answer says what became of it."""

from __future__ import annotations

from typing import Any

import pytest

CPU_ONLY = "needs a build and a machine whose only device is the CPU"


def _is_cpu_only(answer: Any) -> bool:
    return all(device["type"] == "cpu" for device in answer.the("library")["devices"])


def test_unset_settings_are_defaults_that_were_read_back(bench: Any, plain: Any) -> None:
    applied = plain.the("loaded")["applied"]
    unset = {name for name, entry in applied.items() if entry["asked"] is None}
    assert {applied[name]["status"] for name in unset} == {"default"}
    assert applied["n_ctx"]["applied"] == plain.the("loaded")["evidence"]["n_ctx"] > 0
    assert applied["type_k"]["applied"] == "f16"
    assert applied["max_tokens"] == {"asked": 12, "applied": 12, "status": "applied"}


@pytest.mark.parametrize(
    ("setting", "level"),
    [
        ("n_threads", 2),
        ("n_threads_batch", 2),
        ("n_ubatch", 16),
        ("use_mmap", False),
        ("flash_attn", "on"),
        ("flash_attn", "off"),
        ("type_k", "q8_0"),
        ("type_k", "bf16"),
        ("type_v", "f32"),
        ("swa_full", False),
        ("kv_unified", True),
        ("temperature", 0.5),
    ],
)
def test_a_level_that_the_build_has_is_applied(bench: Any, setting: str, level: Any) -> None:
    answer = bench.run(bench.text(max_tokens=2, **{setting: level}))
    assert answer.status == 0, answer.events[-1]
    assert answer.applied(setting) == (level, "applied")


def test_flash_attention_takes_yes_and_no(bench: Any) -> None:
    assert bench.run(bench.text(flash_attn=True, max_tokens=1)).applied("flash_attn") == ("on", "applied")


def test_a_context_that_the_library_rounds_up_is_clamped(bench: Any) -> None:
    answer = bench.run(bench.text(n_ctx=300, max_tokens=1))
    rounded, status = answer.applied("n_ctx")
    assert rounded > 300
    assert status == "clamped"


def test_a_batch_larger_than_the_context_is_clamped(bench: Any) -> None:
    assert bench.run(bench.text(n_ctx=512, n_batch=4096, max_tokens=1)).applied("n_batch") == (512, "clamped")


def test_settings_that_nothing_uses_are_ignored_and_not_applied(bench: Any) -> None:
    answer = bench.run(bench.text(projector_warmup=True, projector_device="cpu", top_k=5, max_tokens=1))
    for setting in ("projector_warmup", "projector_device", "top_k"):
        assert answer.applied(setting)[1] == "ignored"


def test_offloading_without_a_device_is_ignored(bench: Any) -> None:
    answer = bench.run(bench.text(n_gpu_layers=2, offload_kqv=False, op_offload=False, max_tokens=1))
    if not _is_cpu_only(answer):
        pytest.skip(CPU_ONLY)
    for setting in ("n_gpu_layers", "offload_kqv", "op_offload"):
        assert answer.applied(setting)[1] == "ignored"


def test_a_projector_on_a_device_that_is_not_there_is_clamped_to_the_cpu(bench: Any) -> None:
    answer = bench.run(bench.audio(projector_device="gpu", max_tokens=1))
    if not _is_cpu_only(answer):
        pytest.skip(CPU_ONLY)
    assert answer.applied("projector_device") == ("cpu", "clamped")


def test_the_environment_is_compared_with_what_was_asked(bench: Any) -> None:
    spec = bench.text(env={"ISOMATRIX_TEST_SET": "1", "ISOMATRIX_TEST_GONE": None}, max_tokens=1)
    good = bench.run(spec, environment={"ISOMATRIX_TEST_SET": "1"})
    assert good.applied("env")[1] == "applied"
    assert bench.run(spec).applied("env") == (
        {"ISOMATRIX_TEST_SET": None, "ISOMATRIX_TEST_GONE": None},
        "clamped",
    )


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"split_mode": "diagonal"}, "settings.split_mode"),
        ({"type_k": "q6_k"}, "settings.type_k"),
        ({"flash_attn": "perhaps"}, "settings.flash_attn"),
        ({"tensor_split": [1.0] * 200}, "settings.tensor_split"),
    ],
)
def test_a_level_that_the_build_does_not_know_is_refused_by_name(
    bench: Any, settings: dict[str, Any], where: str
) -> None:
    answer = bench.run(bench.text(**settings))
    error = answer.the("error")
    assert (answer.status, error["kind"], error["where"]) == (3, "refused", where)
    assert answer.the("library")["library"] in error["message"]
    assert answer.order == ["started", "library", "error"]  # before anything was loaded


def test_settings_that_make_no_context_are_a_load_failure_in_the_library_s_words(bench: Any) -> None:
    answer = bench.run(bench.text(type_v="q8_0", flash_attn="off"))
    assert (answer.status, answer.the("error")["kind"]) == (4, "load_failure")
    assert "flash_attn" in answer.the("error")["message"]


def test_evidence_describes_the_model(plain: Any) -> None:
    evidence = plain.the("loaded")["evidence"]
    assert (evidence["architecture"], evidence["n_vocab"], evidence["n_embd"]) == ("llama", 640, 128)
    assert evidence["projector"] is None
