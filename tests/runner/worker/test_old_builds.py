"""The same worker under another build of the library.

Set `ISOMATRIX_OLD_PYTHON` to an interpreter with llama-cpp-python 0.3.7 (before `mtmd`, `op_offload` and the
flash-attention type) to run these.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

PYTHON = os.environ.get("ISOMATRIX_OLD_PYTHON", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="ISOMATRIX_OLD_PYTHON names no interpreter with an old build"),
]


def test_a_text_trial_runs_and_repeats_bit_for_bit(bench: Any, plain: Any) -> None:
    spec = bench.text(process="persistent", warmup=True, probe={"requests": 2})
    answer = bench.run(spec, python=(PYTHON,))
    assert answer.status == 0, answer.events[-1]
    one, two = answer.requests
    assert one["logits_digests"] == two["logits_digests"]
    assert (one["kv_cells_before"], two["kv_cells_before"]) == (0, 0)
    assert one["token_ids"] == plain.requests[0]["token_ids"]


@pytest.mark.parametrize("settings", [{"op_offload": True}, {"swa_full": True}, {"kv_unified": True}])
def test_a_setting_that_the_build_lacks_is_refused_with_its_version(bench: Any, settings: dict[str, Any]) -> None:
    answer = bench.run(bench.text(**settings), python=(PYTHON,))
    (name,) = settings
    error = answer.the("error")
    assert (answer.status, error["kind"], error["where"]) == (3, "refused", f"settings.{name}")
    assert answer.the("library")["library"] in error["message"]


def test_flash_attention_is_on_or_off_there(bench: Any) -> None:
    assert bench.run(bench.text(flash_attn="on"), python=(PYTHON,)).applied("flash_attn") == ("on", "applied")
    assert bench.run(bench.text(flash_attn="auto"), python=(PYTHON,)).status == 3


def test_audio_is_refused_without_a_multimodal_library(bench: Any) -> None:
    answer = bench.run(bench.audio(), python=(PYTHON,))
    assert (answer.status, answer.the("error")["where"]) == (3, "probe.kind")


def test_an_error_can_be_planted_in_a_node(bench: Any, plain: Any) -> None:
    spec = {**bench.text(), "plant": {"kind": "node_error", "node": "l_out-0", "size": 1}}
    answer = bench.run(spec, python=(PYTHON,))
    told = [event for event in answer.events if event["event"] == "plant"][-1]
    assert told["nodes"] == {"l_out-0": 12}
    assert answer.requests[0]["token_ids"] != plain.requests[0]["token_ids"]
