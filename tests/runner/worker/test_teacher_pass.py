"""The teacher-forced pass of real workers: bitwise for an identical arm, and what settings and faults do to it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Worker = Any  # tests/runner/worker/conftest.py: Bench
Spec = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A reference: its answer, and the file with its logits."""

    request: dict[str, Any]
    n_vocab: int
    file: Path

    def section(self) -> dict[str, Any]:
        """The spec's `teacher` section to compare with it."""
        return {"logits": str(self.file), "n_vocab": self.n_vocab, "token_ids": self.request["token_ids"]}


def _record(bench: Worker, spec: Spec) -> Recorded:
    file = bench.folder / "reference.f32"
    answer = bench.run({**spec, "teacher": {"record": str(file), "max_bytes": 10**9}})
    assert answer.status == 0, answer.log
    return Recorded(answer.requests[0], answer.the("loaded")["evidence"]["n_vocab"], file)


def _scored(bench: Worker, spec: Spec, reference: Recorded) -> Any:
    answer = bench.run({**spec, "teacher": reference.section()})
    assert answer.status == 0, answer.log
    return answer


@pytest.mark.parametrize("kind", ["text", "audio"])
def test_an_identical_arm_repeats_the_reference_bit_for_bit(bench: Worker, kind: str) -> None:
    spec = getattr(bench, kind)()
    reference = _record(bench, spec)
    answer = _scored(bench, spec, reference)
    found = answer.the("teacher")
    count = len(reference.request["token_ids"])
    assert found["teacher_digests"] == reference.request["logits_digests"] == answer.requests[0]["logits_digests"]
    assert found["teacher_kl"] == found["teacher_nmse"] == found["teacher_max_abs"] == [0.0] * count
    assert found["teacher_top1"] == [True] * count
    assert found["teacher_rank"] == [0] * count
    assert found["teacher_note"] is None
    assert answer.order[-3:] == ["request", "teacher", "done"]


def test_recorded_rows_are_those_of_the_digests_and_of_the_top_logits(bench: Worker) -> None:
    reference = _record(bench, bench.text())
    rows = np.fromfile(reference.file, dtype=np.float32).reshape(-1, reference.n_vocab)
    request = reference.request
    assert len(rows) == len(request["token_ids"])
    assert rows.argmax(axis=1).tolist() == request["token_ids"]
    assert rows.max(axis=1).tolist() == [top[0] for top in request["top_logits"]]


def test_another_cache_type_differs_a_little_at_every_position(bench: Worker) -> None:
    reference = _record(bench, bench.text())
    found = _scored(bench, bench.text(type_k="q8_0"), reference).the("teacher")
    assert all(0 < value < 0.01 for value in found["teacher_nmse"])
    assert all(0 < value < 0.05 for value in found["teacher_kl"])
    assert all(0 < value < 1 for value in found["teacher_max_abs"])
    assert set(found["teacher_digests"]).isdisjoint(reference.request["logits_digests"])


def test_threads_are_benign(bench: Worker) -> None:
    reference = _record(bench, bench.text(max_tokens=4))
    found = _scored(bench, bench.text(max_tokens=4, n_threads=2, n_threads_batch=2), reference).the("teacher")
    assert max(found["teacher_nmse"]) < 1e-4


def test_a_small_late_error_that_leaves_the_tokens_alone_is_seen_by_the_pass_alone(bench: Worker) -> None:
    reference = _record(bench, bench.text())
    spec = bench.text()
    spec["plant"] = {"kind": "node_error", "rate": 1.0, "seed": 1, "node": "l_out-3", "size": 0.03}
    answer = _scored(bench, spec, reference)
    assert answer.requests[0]["token_ids"] == reference.request["token_ids"]
    found = answer.the("teacher")
    assert min(found["teacher_nmse"]) > 5e-4
    assert found["teacher_top1"] == [True] * 12


def test_sampled_tokens_do_not_change_what_is_fed(bench: Worker) -> None:
    reference = _record(bench, bench.text())
    answer = _scored(bench, bench.text(temperature=1.5, seed=3), reference)
    assert answer.requests[0]["token_ids"] != reference.request["token_ids"]
    assert answer.the("teacher")["teacher_digests"] == reference.request["logits_digests"]


def test_a_persistent_process_is_scored_once_after_its_last_request(bench: Worker) -> None:
    reference = _record(bench, bench.text())
    answer = _scored(bench, bench.text(probe={"requests": 2}, process="persistent"), reference)
    assert answer.order[-4:] == ["request", "request", "teacher", "done"]
    assert answer.the("teacher")["teacher_digests"] == reference.request["logits_digests"]


def test_a_context_that_ends_early_shortens_the_pass_and_says_so(bench: Worker) -> None:
    endless = {"ignore_eos": True}
    reference = _record(bench, bench.text(max_tokens=300, n_ctx=512, probe=endless))
    answer = _scored(bench, bench.text(max_tokens=300, n_ctx=256, probe=endless), reference)
    (request,) = answer.requests
    found = answer.the("teacher")
    assert request["stop_reason"] == "context_full"
    assert len(found["teacher_kl"]) == request["n_generated"] < 300
    assert found["teacher_note"].endswith("of the reference's 300 positions fit into the context of 256")


def test_logits_of_another_vocabulary_are_no_reference(bench: Worker) -> None:
    tokens = [1, 2]
    file = bench.folder / "other.f32"
    np.zeros(2 * 100, dtype=np.float32).tofile(file)
    answer = bench.run({**bench.text(), "teacher": {"logits": str(file), "n_vocab": 100, "token_ids": tokens}})
    found = answer.the("teacher")
    assert found["teacher_kl"] == []
    assert "have 100 entries a row and this model 640" in found["teacher_note"]


@pytest.mark.parametrize(
    ("section", "where"),
    [
        ({}, "teacher"),
        ({"logits": "x", "record": "y"}, "teacher"),
        ({"logits": "nowhere", "n_vocab": 4, "token_ids": [1]}, "teacher.logits"),
        ({"logits": "nowhere", "n_vocab": 4, "token_ids": [4]}, "teacher.token_ids"),
        ({"logits": "nowhere", "n_vocab": 4, "token_ids": []}, "teacher.token_ids"),
        ({"logit": "nowhere"}, "teacher.logit"),
    ],
)
def test_a_section_that_makes_no_sense_is_refused_by_name(bench: Worker, section: Any, where: str) -> None:
    answer = bench.run({**bench.text(), "teacher": section})
    assert answer.status == 2
    assert answer.the("error")["where"] == where, json.dumps(answer.the("error"))
