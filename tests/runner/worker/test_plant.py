"""Planted faults in real worker processes: each strikes where it should, and nowhere else."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from isomatrix.matrix import plant as asked
from isomatrix.runner.worker.plant import Armed, first_unmet
from isomatrix.runner.worker.plant_kinds import KINDS
from scipy.stats import binomtest

PROMPT_TOKENS = 17


def planted(bench: Any, kind: str, *, requests: int = 1, trial_id: str = "test", **parameters: Any) -> Any:
    process = "persistent" if requests > 1 else "fresh"
    spec = bench.text(probe={"requests": requests}, process=process)
    return bench.run({**spec, "trial_id": trial_id, "plant": {"kind": kind, **parameters}})


def report(answer: Any) -> dict[str, Any]:
    """What the worker says of the fault at the end."""
    return [event for event in answer.events if event["event"] == "plant"][-1]


def ids(answer: Any, request: int = 0) -> list[int]:
    tokens: list[int] = answer.requests[request]["token_ids"]
    return tokens


def digests(answer: Any, request: int = 0) -> list[str]:
    found: list[str] = answer.requests[request]["logits_digests"]
    return found


def test_runner_and_worker_know_the_same_kinds_and_parameters():
    assert {name: kind.parameters for name, kind in KINDS.items()} == asked.KINDS


def test_nothing_is_planted_without_a_word_about_it(plain: Any):
    assert "plant" not in plain.order


def test_a_flipped_token_leaves_the_logits_before_it_as_they_are(bench: Any, plain: Any):
    answer = planted(bench, "flip_token", position=3)
    told = report(answer)
    assert ids(answer)[:3] == ids(plain)[:3]
    assert (ids(plain)[3], ids(answer)[3]) == (told["sampled"], told["given"])
    assert told["sampled"] != told["given"]
    assert digests(answer)[:4] == digests(plain)[:4]
    assert digests(answer)[4:] != digests(plain)[4:]


def test_only_the_asked_request_is_flipped(bench: Any, plain: Any):
    answer = planted(bench, "flip_token", requests=2, request=1)
    assert ids(answer, 0) == ids(plain)
    assert ids(answer, 1)[0] != ids(plain)[0]


def test_a_flip_beyond_the_answer_is_told_as_not_fired(bench: Any):
    told = report(planted(bench, "flip_token", position=99))
    assert (told["fired"], told["note"]) == (False, "no token at position 99 of request 0")


def test_watching_a_node_without_changing_it_leaves_every_bit_alone(bench: Any, plain: Any):
    answer = planted(bench, "node_error", node="ffn_out-1", size=0)
    assert (report(answer)["hits"], digests(answer)) == (12, digests(plain))


def test_an_early_error_of_the_nodes_own_size_changes_the_answer(bench: Any, plain: Any):
    answer = planted(bench, "node_error", node="l_out-0", size=1)
    assert report(answer)["nodes"] == {"l_out-0": 12}
    assert ids(answer) != ids(plain)


def test_a_small_late_error_changes_logits_at_its_place_and_no_token(bench: Any, plain: Any):
    answer = planted(bench, "node_error", node="result_norm", size=1e-3, occurrence=4)
    changed = [ours != theirs for ours, theirs in zip(digests(answer), digests(plain), strict=True)]
    assert changed == [position == 4 for position in range(12)]
    assert ids(answer) == ids(plain)
    assert report(answer)["nodes"] == {"result_norm": 1}


def test_an_error_for_large_batches_hits_the_prompt_alone(bench: Any):
    told = report(planted(bench, "node_error", node="ffn_out-*", min_rows=PROMPT_TOKENS))
    # the last layer computes one row only: nothing but the last token's logits is asked for
    assert told["nodes"] == {"ffn_out-0": 1, "ffn_out-1": 1, "ffn_out-2": 1}
    told = report(planted(bench, "node_error", node="ffn_out-*", min_rows=PROMPT_TOKENS + 1))
    assert (told["fired"], told["note"]) == (False, "node 'ffn_out-*' never had 18 rows; 17 at most")


def test_an_operation_tells_nodes_of_one_name_apart_and_views_are_passed_over(bench: Any):
    assert report(planted(bench, "node_error", node="Kcur-0"))["hits"] == 24  # the product, and its rotation
    assert report(planted(bench, "node_error", node="Kcur-0", op="ROPE"))["hits"] == 12


def test_a_pattern_that_fits_no_node_is_told_with_the_nearest_names(bench: Any, plain: Any):
    answer = planted(bench, "node_error", node="result_nrm")
    told = report(answer)
    assert told["fired"] is False
    assert told["note"].startswith("no node is called 'result_nrm'")
    assert "result_norm" in told["note"]
    assert digests(answer) == digests(plain)


def test_a_node_of_another_type_is_bad_input(bench: Any):
    answer = planted(bench, "node_error", node="cache_k_l0*", op="SET_ROWS")
    assert answer.status == 2
    assert answer.the("error")["message"].startswith("plant.node: node 'cache_k_l0 (view)' holds f16")


def test_an_error_in_the_projector_changes_its_output(bench: Any):
    spec = bench.audio()
    clean = bench.run(spec)
    answer = bench.run({**spec, "plant": {"kind": "node_error", "part": "projector", "node": "ffn_out-0"}})
    assert report(answer)["nodes"] == {"ffn_out-0": 1}
    assert answer.requests[0]["projector_digest"] != clean.requests[0]["projector_digest"]


def test_kept_cells_change_every_request_but_the_first(bench: Any, plain: Any):
    answer = planted(bench, "keep_kv", requests=3)
    assert digests(answer, 0) == digests(plain)
    assert [request["kv_cells_before"] for request in answer.requests] == [0, 28, 56]
    assert len({tuple(digests(answer, request)) for request in range(3)}) == 3
    assert answer.requests[1]["n_prompt_tokens"] == PROMPT_TOKENS
    assert report(answer)["requests"] == 2


def test_kept_cells_that_leave_no_room_are_a_backend_error_and_no_mistake_of_the_user(bench: Any):
    spec = bench.text(probe={"requests": 12}, process="persistent", n_ctx=256)
    answer = bench.run({**spec, "plant": {"kind": "keep_kv"}})
    assert answer.status == 5
    assert "no room for 17 tokens" in answer.the("error")["message"]


def test_a_fresh_process_has_nothing_to_keep_and_says_so(bench: Any):
    told = report(planted(bench, "keep_kv"))
    assert told["fired"] is False
    assert "process=persistent" in told["note"]


@pytest.mark.parametrize(("stage", "last"), [("load", "loaded"), ("prompt", "loaded"), ("generate", "progress")])
def test_an_abort_comes_at_its_stage_and_is_told_before(bench: Any, stage: str, last: str):
    answer = planted(bench, "abort", stage=stage)
    assert answer.status == -signal.SIGABRT
    assert [event["event"] for event in answer.events][-2:] == [last, "plant"]
    assert (report(answer)["fired"], report(answer)["stage"]) == (True, stage)


def test_rubbish_on_stdout_does_not_touch_the_answer(bench: Any, plain: Any):
    answer = planted(bench, "stdout")
    assert b"planted rubbish" in answer.stdout
    assert (answer.status, digests(answer)) == (0, digests(plain))


def test_a_fault_that_is_not_drawn_leaves_every_bit_alone_and_says_why(bench: Any, plain: Any):
    answer = planted(bench, "node_error", rate=0)
    assert digests(answer) == digests(plain)
    assert report(answer)["note"].startswith("not drawn")


def test_a_condition_looks_at_what_was_applied(bench: Any):
    told = report(planted(bench, "flip_token", when={"n_threads": ">=2"}))
    assert (told["fired"], told["note"]) == (False, "when: n_threads is 1, not '>=2'")
    assert report(planted(bench, "flip_token", when={"n_threads": 1, "n_ubatch": ">=32"}))["fired"] is True


@pytest.mark.parametrize(
    ("plant", "sentence"),
    [
        ({"kind": "flip"}, "plant.kind: 'flip' is not one of none, flip_token"),
        ({}, "plant.kind: is not set"),
        ({"kind": "abort", "node": "x"}, "plant.node: plant abort has no such parameter"),
        ({"kind": "abort", "nodes": "x"}, "plant.nodes: no such name"),
        ({"kind": "abort", "rate": "often"}, "plant.rate: 'often' is not of type"),
        ({"kind": "abort", "stage": "later"}, "plant.stage: 'later' is not one of"),
        ({"kind": "abort", "when": {"threads": 1}}, "plant.when.threads: no such setting"),
        ({"kind": "abort", "when": {"n_threads": ">=x"}}, "plant.when.n_threads: '>=x' compares with no number"),
        ({"kind": "node_error", "part": "projector"}, "plant.part: a text probe loads no projector"),
    ],
)
def test_a_wrong_plant_is_bad_input_with_its_field(bench: Any, plant: dict[str, Any], sentence: str):
    answer = bench.run({**bench.text(), "plant": plant})
    assert answer.status == 2
    assert sentence in answer.the("error")["message"]


def armed(rate: float, trial_id: str, seed: int = 1) -> bool:
    return Armed({"kind": "abort", "seed": seed, "rate": rate, "when": {}}, trial_id, lambda **_: None).drawn


@pytest.mark.parametrize("rate", [1.0, 0.5, 0.2, 0.0])
def test_draws_have_the_asked_rate_over_trials(rate: float):
    fired = sum(armed(rate, f"r{number:04d}-arm-{number * 7919:012x}") for number in range(2000))
    assert binomtest(fired, 2000, rate).pvalue > 1e-3 if 0 < rate < 1 else fired == 2000 * rate


def test_a_trial_draws_the_same_again_and_another_seed_draws_others():
    names = [f"trial-{number}" for number in range(64)]
    draws = [armed(0.5, name) for name in names]
    assert draws == [armed(0.5, name) for name in names]
    assert draws != [armed(0.5, name, seed=2) for name in names]


@pytest.mark.parametrize(
    ("name", "wanted", "value", "holds"),
    [
        ("n_threads", ">=2", 2, True),
        ("n_threads", ">2", 2, False),
        ("n_threads", "<=2", 3, False),
        ("n_threads", "<3", 2, True),
        ("n_threads", "!=2", 2, False),
        ("n_threads", ">=2", None, False),
        ("n_threads", None, None, True),
        ("n_gpu_layers", ">=12", -1, True),
        ("n_gpu_layers", -1, -1, True),
        ("n_gpu_layers", "<12", -1, False),
        ("flash_attn", "on", "on", True),
        ("op_offload", True, False, False),
        ("env.GGML_X", "1", {"GGML_X": "1"}, True),
        ("env.GGML_X", None, {}, True),
    ],
)
def test_conditions_compare(name: str, wanted: Any, value: Any, holds: bool):
    applied = {name.split(".")[0]: {"applied": value}}
    assert (first_unmet({name: wanted}, applied) is None) is holds
