"""Wrong input: one sentence that names the field, and the exit value of its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from isomatrix.runner.tiny_weights import ProjectorShape, write_projector

Change = Callable[[dict[str, Any]], Any]


def _set(section: str, name: str, value: Any) -> Change:
    def change(spec: dict[str, Any]) -> None:
        spec[section][name] = value

    return change


@pytest.mark.parametrize(
    ("change", "where", "words"),
    [
        (lambda spec: spec.update(spec_version=2), "spec_version", "version 1, not 2"),
        (lambda spec: spec.update(setings={}), "setings", "did you mean 'settings'"),
        (lambda spec: spec.pop("settings"), "settings", "must be an object"),
        (_set("settings", "n_gpu_layer", 1), "settings.n_gpu_layer", "did you mean 'n_gpu_layers'"),
        (_set("settings", "n_ctx", "many"), "settings.n_ctx", "not of type int"),
        (_set("settings", "n_ctx", True), "settings.n_ctx", "not of type int"),
        (_set("settings", "process", "forked"), "settings.process", "not one of fresh, persistent"),
        (_set("probe", "kind", "video"), "probe.kind", "not one of text"),
        (_set("probe", "prompt", ""), "probe.prompt", "is empty"),
        (_set("probe", "prompt", "\ud800"), "probe.prompt", "Unicode"),
        (_set("probe", "prompt", "word " * 2000), "probe.prompt", "more than the context of 512"),
        (_set("probe", "kind", "audio"), "model.mmproj", "needs a projector"),
        (_set("model", "path", "/no/such.gguf"), "model.path", "no file /no/such.gguf"),
        (_set("model", "mmproj", "/no/such.gguf"), "model.mmproj", "no file /no/such.gguf"),
    ],
)
def test_a_wrong_spec_is_told_by_field(bench: Any, change: Change, where: str, words: str) -> None:
    spec = bench.text()
    change(spec)
    answer = bench.run(spec)
    error = answer.the("error")
    assert (answer.status, error["kind"], error["where"]) == (2, "bad_input", where)
    assert error["message"].startswith(where)
    assert words in error["message"]
    assert "\n" not in error["message"]


def test_a_spec_that_is_no_json_is_told(bench: Any) -> None:
    answer = bench.run("{")
    assert (answer.status, answer.the("error")["where"]) == (2, "spec")


def test_a_long_prompt_is_told_with_its_length(bench: Any) -> None:
    message = bench.run(bench.text("and " * 700)).the("error")["message"]
    assert any(word.isdigit() and int(word) >= 700 for word in message.split())


@pytest.mark.parametrize("content", [b"", b"this is no sound at all", b"RIFF\0\0\0\0WAVEfmt "])
def test_a_wav_that_is_none_is_told(bench: Any, content: bytes) -> None:
    media = bench.folder / "speech.wav"
    media.write_bytes(content)
    answer = bench.run(bench.audio(media))
    error = answer.the("error")
    assert (answer.status, error["kind"], error["where"]) == (2, "bad_input", "probe.media")
    assert str(media) in error["message"]


def test_audio_longer_than_the_context_is_told(bench: Any) -> None:
    error = bench.run(bench.audio(n_ctx=256)).the("error")
    assert error["where"] == "probe.prompt"
    assert "more than the context of 256" in error["message"]


def test_media_of_another_kind_is_told(bench: Any) -> None:
    spec = bench.audio()
    spec["probe"]["kind"] = "image"
    assert bench.run(spec).the("error")["where"] == "probe.media"


def test_a_truncated_model_is_a_load_failure_in_the_library_s_words(bench: Any, files: Any) -> None:
    cut = bench.folder / "cut.gguf"
    cut.write_bytes(files.model.read_bytes()[:300_000])
    spec = bench.text()
    spec["model"]["path"] = str(cut)
    answer = bench.run(spec)
    assert (answer.status, answer.the("error")["kind"]) == (4, "load_failure")
    assert "file bounds" in answer.the("error")["message"]


def test_a_projector_of_another_width_is_a_load_failure_with_both_widths(bench: Any) -> None:
    narrow = bench.folder / "narrow.gguf"
    write_projector(narrow, ProjectorShape(seed=1, n_embd_text=96), "narrow")
    spec = bench.audio()
    spec["model"]["mmproj"] = str(narrow)
    answer = bench.run(spec)
    error = answer.the("error")
    assert (answer.status, error["kind"], error["where"]) == (4, "load_failure", "model.mmproj")
    assert "128" in error["message"]
    assert "96" in error["message"]
