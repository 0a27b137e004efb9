"""An arm that did nothing, or not what it says, must not look like a result."""

from __future__ import annotations

import json
from typing import Any

import pytest
from isomatrix.matrix.effect import agreeing_arms, arm_effects, clamped_settings, equivalent_arms

IDS = [1, 2, 3]
LOG = "load_tensors: offloaded 0/3 layers to GPU\nllama_kv_cache:  CPU KV buffer size = 4.00 MiB\n"


def trial(build: Any, arm: str, number: int, shift: float = 0.0, ids: Any = IDS, **fields: Any) -> dict[str, Any]:
    settings = fields.pop("settings", {})
    applied = fields.pop("applied", {name: (value, value, "applied") for name, value in settings.items()})
    row: dict[str, Any] = build.row(
        arm,
        *[build.request(ids, shift=shift)] * fields.pop("requests", 1),
        number=number,
        settings=json.dumps({"temperature": 0, **settings}),
        applied=json.dumps({n: {"asked": a, "applied": b, "status": status} for n, (a, b, status) in applied.items()}),
        **{"native_log": LOG, "evidence": "{}", **fields},
    )
    return row


def arm(build: Any, name: str, shifts: Any = (0.0, 0.0), **fields: Any) -> list[dict[str, Any]]:
    return [trial(build, name, number, shift, **fields) for number, shift in enumerate(shifts)]


def effect(build: Any, *rows: list[dict[str, Any]]) -> Any:
    return arm_effects([row for group in rows for row in group], "baseline")["arm"]


def test_other_digests_prove_an_effect(build: Any) -> None:
    found = effect(build, arm(build, "baseline"), arm(build, "arm", (0.1, 0.1), settings={"op_offload": False}))
    assert found.effect == "proven"
    assert "digests differ" in found.reason


def test_equal_digests_and_evidence_are_inert(build: Any) -> None:
    found = effect(build, arm(build, "baseline"), arm(build, "arm", settings={"op_offload": False}))
    assert found.effect == "inert"
    assert "bitwise equal" in found.reason


def test_what_the_runner_itself_carried_out_is_no_inert_setting(build: Any) -> None:
    # equal answers under load, or of several requests in one process, are evidence; of a setting they may be none
    found = effect(build, arm(build, "baseline"), arm(build, "arm", requests=3))
    assert (found.effect, found.reason) == ("proven", "requests in one process: 3, the baseline's 1")
    found = effect(build, arm(build, "baseline", load="none"), arm(build, "arm", load="cpu"))
    assert (found.effect, found.reason) == ("proven", "load: cpu, the baseline's none")


def test_other_evidence_proves_an_effect_although_digests_are_equal(build: Any) -> None:
    log = LOG.replace("CPU KV", "CUDA0 KV")
    found = effect(build, arm(build, "baseline"), arm(build, "arm", native_log=log))
    assert found.effect == "proven"
    assert "CUDA0" in found.reason


@pytest.mark.parametrize(
    ("applied", "words"),
    [
        ({"n_ubatch": (4096, 512, "clamped")}, "asked for 4096, the build applied 512"),
        ({"n_ubatch": (4096, None, "unavailable")}, "no such setting"),
    ],
)
def test_a_setting_that_was_not_applied_is_contradicted(build: Any, applied: Any, words: str) -> None:
    rows = arm(build, "arm", (0.1, 0.1), settings={"n_ubatch": 4096}, applied=applied)
    found = effect(build, arm(build, "baseline"), rows)
    assert found.effect == "contradicted"
    assert words in found.reason


def test_a_setting_that_nothing_uses_is_inert_and_says_so(build: Any) -> None:
    rows = arm(build, "arm", settings={"op_offload": False}, applied={"op_offload": (False, False, "ignored")})
    found = effect(build, arm(build, "baseline"), rows)
    assert found.effect == "inert"
    assert "nothing in these trials uses op_offload" in found.reason


def test_clamped_settings_of_an_arm_are_told_in_words(build: Any) -> None:
    rows = arm(build, "baseline", settings={"n_ctx": 1}, applied={"n_ctx": (1, 256, "clamped")})
    assert clamped_settings(rows, "baseline") == ["n_ctx: asked for 1, the build applied 256"]


def test_a_setting_of_the_baseline_that_has_no_use_is_no_contradiction(build: Any) -> None:
    seed = {"settings": {"seed": 1}, "applied": {"seed": (1, 1, "ignored")}}
    assert effect(build, arm(build, "baseline", **seed), arm(build, "arm", (0.1, 0.1), **seed)).effect == "proven"


def test_a_refused_arm_is_contradicted(build: Any) -> None:
    rows = [build.row("arm", outcome="refused", error="settings.op_offload: this build has no such setting")]
    found = effect(build, arm(build, "baseline"), rows)
    assert found.effect == "contradicted"
    assert "no such setting" in found.reason


@pytest.mark.parametrize(
    ("settings", "log", "words"),
    [
        ({"n_gpu_layers": 99}, "load_tensors: offloaded 0/3 layers to GPU\n", "offloaded 0/3"),
        ({"offload_kqv": False}, "llama_kv_cache:   CUDA0 KV buffer size = 4.00 MiB\n", "CUDA0"),
        ({"projector_device": "gpu"}, "clip_ctx: CLIP using CPU backend\n", "runs on CPU"),
        ({"flash_attn": "on"}, "llama_context: flash_attn    = disabled\n", "disabled"),
        ({"type_k": "q8_0"}, "size = 4 MiB, K (f16): 2.00 MiB, V (f16): 2.00 MiB\n", "type f16"),
    ],
)
def test_a_log_that_shows_something_else_contradicts(build: Any, settings: Any, log: str, words: str) -> None:
    rows = arm(build, "arm", (0.1, 0.1), settings=settings, native_log=log)
    found = effect(build, arm(build, "baseline"), rows)
    assert found.effect == "contradicted"
    assert words in found.reason


@pytest.mark.parametrize(
    ("settings", "log"),
    [
        ({"n_gpu_layers": 99}, "load_tensors: offloaded 3/3 layers to GPU\n"),
        ({"n_gpu_layers": -1}, "load_tensors: offloaded 3/3 layers to GPU\n"),
        ({"n_gpu_layers": 2}, "load_tensors: offloaded 2/3 layers to GPU\n"),
        ({"offload_kqv": True}, "offloaded 1/3 layers to GPU\nx:   CPU KV buffer size = 4.00 MiB\n"),
        ({"flash_attn": "auto"}, "llama_context: flash_attn    = disabled\n"),
    ],
)
def test_a_log_that_agrees_does_not_contradict(build: Any, settings: Any, log: str) -> None:
    rows = arm(build, "arm", (0.1, 0.1), settings=settings, native_log=log)
    assert effect(build, arm(build, "baseline"), rows).effect == "proven"


def test_a_variable_that_the_backend_sets_itself_contradicts(build: Any) -> None:
    name = "AGX_RELAX_CDM_CTXSTORE_TIMEOUT"
    evidence = json.dumps({"env_set": {name: ["0", "1"]}})
    rows = arm(build, "arm", settings={"env": {name: "0"}}, evidence=evidence)
    found = effect(build, arm(build, "baseline"), rows)
    assert found.effect == "contradicted"
    assert "backend itself set" in found.reason


def test_an_unstable_baseline_proves_nothing(build: Any) -> None:
    found = effect(build, arm(build, "baseline", (0.0, 0.1, 0.2)), arm(build, "arm", (0.3, 0.3)))
    assert found.effect == "unknown"
    assert "3 different digest sequences" in found.reason


def test_digests_that_the_baseline_shows_as_well_prove_nothing(build: Any) -> None:
    found = effect(build, arm(build, "baseline", (0.0, 0.0, 0.1)), arm(build, "arm", (0.1, 0.1)))
    assert found.effect == "unknown"


def test_an_arm_without_an_ok_trial_is_unknown(build: Any) -> None:
    found = effect(build, arm(build, "baseline"), arm(build, "arm", outcome="crash"))
    assert found.effect == "unknown"


def test_the_baseline_has_no_effect(build: Any) -> None:
    assert arm_effects(arm(build, "baseline"), "baseline")["baseline"].effect is None


def test_arms_with_equal_digests_unlike_the_baseline_are_equivalent(build: Any) -> None:
    rows = [
        *arm(build, "baseline"),
        *arm(build, "op_offload=false", (0.1, 0.1)),
        *arm(build, "n_ubatch=31", (0.1, 0.1)),
        *arm(build, "inert"),
        *arm(build, "other", (0.2, 0.2)),
        *arm(build, "unstable", (0.1, 0.3)),
    ]
    assert equivalent_arms(rows, "baseline") == [("n_ubatch=31", "op_offload=false")]


def test_rescue_arms_that_reach_one_answer_by_other_kernels_agree(build: Any) -> None:
    rows = [
        *arm(build, "baseline", ids=[7, 8, 9]),
        *arm(build, "n_threads=1", (0.0, 0.0)),
        *arm(build, "n_ubatch=1", (0.001, 0.001)),
    ]
    assert equivalent_arms(rows, "baseline") == []
    assert agreeing_arms(rows, "baseline") == [("n_threads=1", "n_ubatch=1")]
