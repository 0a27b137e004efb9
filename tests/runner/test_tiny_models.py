"""The embedded models: same bytes everywhere, safe on disk, and of a quality that makes trials meaningful.

Figures behind the bounds are in docs/tiny-models.md.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import wave
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.greedy import AudioSession, Generated, Session  # imports llama_cpp, which has to come before NumPy

import gguf  # isort: skip
import numpy as np  # isort: skip

from isomatrix.runner import tiny_models
from isomatrix.runner.tiny_audio import Sound, write_wav
from isomatrix.runner.tiny_models import TINY_FILES, TinyModelError, TinyModelWarning, tiny_model

from tests.olmo_model import CLAMP, write_olmo_model

PROMPTS = (
    "The quick brown fox jumps over the lazy dog, and then it",
    "And so my fellow Americans, ask not what your country can do for you,",
    "Once upon a time there was a king",
)
LISTEN = "<__media__>Transcribe the following audio."
COUNT = 48


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def answers(cache: Path) -> Callable[..., list[Generated]]:
    """Greedy answers to all prompts, kept by model and context settings."""
    known: dict[tuple[Path, tuple[tuple[str, int], ...]], list[Generated]] = {}

    def answer(model: Path | str, **context: int) -> list[Generated]:
        path = tiny_model(model, cache) if isinstance(model, str) else model
        key = (path, tuple(sorted(context.items())))
        if key not in known:
            with Session(path, **context) as session:
                known[key] = [session.generate(prompt, COUNT) for prompt in PROMPTS]
        return known[key]

    return answer


def first_difference(left: Generated, right: Generated) -> int:
    pairs = zip(left.ids, right.ids, strict=True)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), len(left.ids))


# Files


@pytest.mark.parametrize("name", TINY_FILES)
def test_bytes_are_the_published_ones(name: str, cache: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = tiny_model(name, cache)
    assert not [warning for warning in recwarn if warning.category is TinyModelWarning]
    assert path.stem.split("-")[1] == hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def test_a_good_file_is_not_written_again(tmp_path: Path) -> None:
    path = tiny_model("tiny_audio", tmp_path)
    os.utime(path, ns=(1, 1))
    assert tiny_model("tiny_audio", tmp_path) == path
    assert path.stat().st_mtime_ns == 1


@pytest.mark.parametrize("harm", [lambda raw: raw[:1000], lambda raw: raw[:-1] + b"\x7f", lambda raw: b""])
def test_a_truncated_or_altered_file_is_replaced(harm: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tiny_model("tiny_audio", tmp_path)
    good = path.read_bytes()
    path.write_bytes(harm(good))
    assert tiny_model("tiny_audio", tmp_path).read_bytes() == good
    assert list(tmp_path.iterdir()) == [path]


def test_processes_that_ask_at_once_all_get_the_whole_file(tmp_path: Path) -> None:
    code = (
        "import hashlib, sys; from pathlib import Path; from isomatrix.runner.tiny_models import tiny_model; "
        "print(hashlib.sha256(tiny_model('tiny_projector', Path(sys.argv[1])).read_bytes()).hexdigest())"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    digests = {process.communicate(timeout=60)[0].strip() for process in processes}
    (path,) = tmp_path.iterdir()
    assert digests == {hashlib.sha256(path.read_bytes()).hexdigest()}


def test_a_folder_that_cannot_be_made_is_named_with_the_way_out(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(TinyModelError, match=rf"{blocker / 'below'} .*ISOMATRIX_CACHE"):
        tiny_model("tiny_audio", blocker / "below")


def test_an_interrupted_writer_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    recipe = tiny_models._Recipe(".wav", "0" * 64, interrupted)
    monkeypatch.setitem(tiny_models._RECIPES, "tiny_audio", recipe)
    with pytest.raises(KeyboardInterrupt):
        tiny_model("tiny_audio", tmp_path)
    assert not list(tmp_path.iterdir())


def test_other_bytes_than_elsewhere_are_said_aloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny_models._Recipe(".wav", "0" * 64, lambda path: write_wav(path, Sound(3)))
    monkeypatch.setitem(tiny_models._RECIPES, "tiny_audio", recipe)
    with pytest.warns(TinyModelWarning, match=r"tiny_audio.*numpy .*, gguf "):
        assert tiny_model("tiny_audio", tmp_path).stat().st_size > 1000


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(TinyModelError, match=r"tiny_mo'.*tiny_moe"):
        tiny_model("tiny_mo", tmp_path)


def test_the_default_folder_is_the_one_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOMATRIX_CACHE", str(tmp_path / "mine"))
    assert tiny_model("tiny_audio").parent == tmp_path / "mine"


def test_the_recording_changes_its_spectrum(cache: Path) -> None:
    with wave.open(str(tiny_model("tiny_audio", cache))) as file:
        assert (file.getframerate(), file.getsampwidth(), file.getnchannels()) == (16_000, 2, 1)
        signal = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(float)
    assert 3 < len(signal) / 16_000 < 8
    assert 3_000 < np.abs(signal).max() < 32_767, "loud and not clipped"
    frames = signal[: len(signal) // 1_600 * 1_600].reshape(-1, 1_600)
    power = np.abs(np.fft.rfft(frames * np.hanning(1_600))) ** 2 + 1.0
    centroid = (power @ np.arange(power.shape[1])) / power.sum(axis=1) * 10.0
    assert np.quantile(centroid, 0.9) > 3 * np.quantile(centroid, 0.1)


# Text models


def test_ordinary_text_goes_in_and_comes_out_unchanged(cache: Path) -> None:
    texts = (*PROMPTS, "  two  spaces\n\ttab, 12345 + 67.8% 'quoted' -- naïve café 日本語 🙂", "")
    with Session(tiny_model("tiny", cache)) as session:
        for text in texts:
            assert session.text(session.tokenize(text, special=False)) == text
        plain = session.tokenize(PROMPTS[1], special=False)
        assert len(plain) < len(PROMPTS[1]) / 2, "learned tokens are used"
        assert session.tokenize(PROMPTS[1]) == [0, *plain], "the start token is added"
        assert session.tokenize("<|audio_bos|><|audio_eos|>", special=False) == [2, 3]


@pytest.mark.parametrize("name", ["tiny", "tiny_f32", "tiny_q8_0", "tiny_moe"])
def test_text_is_varied_printable_and_not_ended(name: str, answers: Callable[..., list[Generated]]) -> None:
    for answer in answers(name):
        assert len(set(answer.ids)) >= 34
        assert len(set(answer.ids[-16:])) >= 8, "no short cycle at the end"
        assert 1 not in answer.ids, "no end token"
        assert min(answer.ids) >= 4 + 0x20, "no control token and no control byte"
        assert not set(answer.ids) & set(range(4 + 0x7F, 4 + 0x100)), "no broken UTF-8"
    starts = {tuple(answer.ids[:8]) for answer in answers(name)}
    assert len(starts) == len(PROMPTS)


@pytest.mark.parametrize("name", ["tiny", "tiny_moe"])
def test_repeats_agree_bit_for_bit_and_margins_are_clear(
    name: str, answers: Callable[..., list[Generated]], cache: Path
) -> None:
    with Session(tiny_model(name, cache)) as session:
        again = [session.generate(prompt, COUNT) for prompt in PROMPTS]
    assert [answer.digest for answer in again] == [answer.digest for answer in answers(name)]
    margins = np.concatenate([answer.margins for answer in again])
    assert np.median(margins) > 0.5
    assert np.mean(margins > 0.1) > 0.8


@pytest.mark.parametrize("settings", [{"n_ubatch": 1}, {"flash_attn_type": 0}, {"n_threads_batch": 2}])
def test_harmless_settings_keep_the_tokens(settings: dict[str, int], answers: Callable[..., list[Generated]]) -> None:
    for plain, other in zip(answers("tiny"), answers("tiny", **settings), strict=True):
        assert plain.ids == other.ids
        assert np.abs(plain.logits - other.logits).max() < 0.1


@pytest.mark.parametrize("name", ["tiny", "tiny_moe"])
def test_a_coarse_key_cache_changes_logits_at_once(name: str, answers: Callable[..., list[Generated]]) -> None:
    for plain, coarse in zip(answers(name), answers(name, type_k=gguf.GGMLQuantizationType.Q4_0), strict=True):
        assert np.abs(plain.logits[0] - coarse.logits[0]).max() > 0.05
        assert first_difference(plain, coarse) < COUNT


@pytest.mark.parametrize("layer", range(4))
def test_one_wrong_weight_row_in_any_layer_changes_tokens(
    layer: int, answers: Callable[..., list[Generated]], cache: Path, tmp_path: Path
) -> None:
    harmed = tmp_path / "harmed.gguf"
    harmed.write_bytes(tiny_model("tiny", cache).read_bytes())
    reader = gguf.GGUFReader(harmed, "r+")
    tensor = next(tensor for tensor in reader.tensors if tensor.name == f"blk.{layer}.attn_v.weight")
    tensor.data[5] *= -8
    reader.data.flush()
    plain, wrong = answers("tiny"), answers(harmed)
    changes = [np.abs(a.logits[0] - b.logits[0]).max() for a, b in zip(plain, wrong, strict=True)]
    assert min(changes) > 0.1
    assert any(first_difference(a, b) < COUNT for a, b in zip(plain, wrong, strict=True))


def test_one_word_of_the_prompt_changes_everything(answers: Callable[..., list[Generated]], cache: Path) -> None:
    with Session(tiny_model("tiny", cache)) as session:
        other = session.generate(PROMPTS[0].replace("The quick", "A quick"), COUNT)
    plain = answers("tiny")[0]
    assert np.abs(plain.logits[0] - other.logits[0]).max() > 0.5
    assert first_difference(plain, other) < 8


def test_a_long_prompt_fits(cache: Path) -> None:
    with Session(tiny_model("tiny", cache), n_ctx=4096) as session:
        answer = session.generate("a b " * 900, 8)
    assert answer.n_prompt > 1_800
    assert np.isfinite(answer.logits).all()


# Audio


@pytest.fixture(scope="module")
def heard(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Generated]:
    """Answers to the embedded recording twice, to another recording, and with projector warm-up."""
    model, projector, audio = (tiny_model(name, cache) for name in ("tiny", "tiny_projector", "tiny_audio"))
    other = tmp_path_factory.mktemp("audio") / "other.wav"
    write_wav(other, Sound(2))
    with AudioSession(model, projector) as session:
        answers = {
            "first": session.listen(audio, LISTEN, COUNT),
            "other": session.listen(other, LISTEN, COUNT),
            "again": session.listen(audio, LISTEN, COUNT),
        }
    with AudioSession(model, projector, warmup=True) as session:
        answers["warm"] = session.listen(audio, LISTEN, COUNT)
    return answers


def test_audio_takes_one_window_and_two_marks(heard: dict[str, Generated]) -> None:
    assert 750 + 2 < heard["first"].n_prompt < 780, "markers are single tokens"


def test_audio_repeats_bit_for_bit_fresh_and_warmed_up(heard: dict[str, Generated]) -> None:
    assert heard["first"].digest == heard["again"].digest == heard["warm"].digest


def test_audio_text_is_varied_and_not_ended(heard: dict[str, Generated]) -> None:
    answer = heard["first"]
    assert len(set(answer.ids)) >= 28
    assert len(set(answer.ids[-16:])) >= 8
    assert 1 not in answer.ids
    assert np.median(answer.margins) > 0.5


def test_another_recording_gives_other_tokens(heard: dict[str, Generated]) -> None:
    assert np.abs(heard["first"].logits[0] - heard["other"].logits[0]).max() > 0.5
    assert first_difference(heard["first"], heard["other"]) < 4


def test_the_expert_model_listens_too(cache: Path) -> None:
    paths = (tiny_model(name, cache) for name in ("tiny_moe", "tiny_projector"))
    with AudioSession(*paths) as session:
        answer = session.listen(tiny_model("tiny_audio", cache), LISTEN, 24)
    assert len(set(answer.ids)) >= 16


# The OLMo model of a historic fault


def test_the_olmo_clamp_bites_and_threads_agree_in_this_release(tmp_path: Path) -> None:
    path = tmp_path / "olmo.gguf"
    write_olmo_model(path)
    open_path = tmp_path / "open.gguf"
    write_olmo_model(open_path, clamp=1e6)
    with Session(path) as session, Session(open_path) as unclamped:
        reference = session.generate(PROMPTS[1], 16)
        assert reference.ids != unclamped.generate(PROMPTS[1], 16).ids, f"a clamp at {CLAMP} changes the answer"
    assert reference.n_prompt >= 12
    for settings in ({"n_threads": 4, "n_threads_batch": 4}, {"n_threads": 4, "n_threads_batch": 4, "n_ubatch": 1}):
        with Session(path, **settings) as session:
            assert session.generate(PROMPTS[1], 16).ids == reference.ids


OLD_PYTHON = os.environ.get("ISOMATRIX_OLD_PYTHON", "")


@pytest.mark.slow
@pytest.mark.skipif(not OLD_PYTHON, reason="ISOMATRIX_OLD_PYTHON names no interpreter with llama-cpp-python 0.3.7")
def test_release_0_3_7_answers_wrongly_with_several_batch_threads(tmp_path: Path) -> None:
    path = tmp_path / "olmo.gguf"
    write_olmo_model(path)

    def ids(*settings: str) -> str:
        script = Path(__file__).parents[1] / "greedy.py"
        command = [OLD_PYTHON, str(script), str(path), PROMPTS[1], "16", *settings]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout

    one_thread = ids("n_threads=1", "n_threads_batch=1")
    assert '"0.3.7"' in one_thread
    assert ids("n_threads=4", "n_threads_batch=4", "n_ubatch=1") == one_thread
    assert ids("n_threads=4", "n_threads_batch=4") != one_thread
