"""Audio through the projector."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import pytest


def _tone(path: Path, step: int) -> Path:
    samples = bytearray()
    for index in range(32_000):
        samples += (index * step % 8000 - 4000).to_bytes(2, "little", signed=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(bytes(samples))
    return path


@pytest.fixture
def short(bench: Any) -> Any:
    """Two seconds of a sawtooth."""
    return _tone(bench.folder / "tone.wav", 37)


def test_warm_up_and_process_model_leave_audio_results_bit_for_bit_equal(bench: Any, short: Any) -> None:
    digests = set()
    for settings in (
        {"projector_warmup": True},
        {"projector_warmup": False},
        {"projector_warmup": False, "process": "persistent", "warmup": True},
    ):
        spec = bench.audio(short, **settings)
        spec["probe"]["requests"] = 2
        answer = bench.run(spec)
        assert answer.status == 0, answer.events[-1]
        assert answer.applied("projector_warmup") == (settings["projector_warmup"], "applied")
        for request in answer.requests:
            digests.add((request["projector_digest"], request["prompt_digest"], *request["logits_digests"]))
    assert len(digests) == 1


def test_what_is_heard_changes_the_projector_s_output_and_the_answer(bench: Any, short: Any) -> None:
    (one,) = bench.run(bench.audio(short)).requests
    (other,) = bench.run(bench.audio(_tone(bench.folder / "other.wav", 91))).requests
    assert one["n_prompt_tokens"] == other["n_prompt_tokens"]
    assert one["projector_digest"] != other["projector_digest"]
    assert one["prompt_digest"] != other["prompt_digest"]


def test_a_prompt_may_place_the_media_itself(bench: Any, short: Any) -> None:
    spec = bench.audio(short)
    before = bench.run(spec).requests[0]
    spec["probe"]["prompt"] = "<__media__>" + spec["probe"]["prompt"]
    assert bench.run(spec).requests[0]["logits_digests"] == before["logits_digests"]
    spec["probe"]["prompt"] = "Listen: <__media__>" + spec["probe"]["prompt"].replace("<__media__>", "")
    after = bench.run(spec).requests[0]
    assert after["projector_digest"] == before["projector_digest"]
    assert after["prompt_digest"] != before["prompt_digest"]


def test_evidence_describes_the_projector(bench: Any, short: Any) -> None:
    evidence = bench.run(bench.audio(short, projector_device="cpu")).the("loaded")["evidence"]["projector"]
    assert evidence["audio_sample_rate"] == 16_000
    assert evidence["use_gpu"] is False


def test_audio_takes_no_part_in_a_text_trial(plain: Any) -> None:
    assert plain.requests[0]["projector_digest"] is None
