"""Quality of the embedded models: variety, margins, noise of harmless settings, reaction to the prompt and the sound.

Run from the repository's root: `PYTHONPATH=. python benchmarks/tiny_quality.py`. Prints the tables of
`docs/tiny-models.md`; needs about a minute on two idle cores.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.greedy import AudioSession, Generated, Session  # imports llama_cpp, which has to come before NumPy

import numpy as np  # isort: skip

from isomatrix.runner.tiny_audio import Sound, write_wav
from isomatrix.runner.tiny_models import tiny_model

PROMPTS = (
    "The quick brown fox jumps over the lazy dog, and then it",
    "And so my fellow Americans, ask not what your country can do for you,",
    "Once upon a time there was a king",
)
LISTEN = "<__media__>Transcribe the following audio."
COUNT = 48
ARMS: dict[str, dict[str, Any]] = {
    "again": {},
    "two threads": {"n_threads": 2, "n_threads_batch": 2},
    "n_ubatch 7": {"n_ubatch": 7},
    "n_ubatch 1": {"n_ubatch": 1},
    "flash attention off": {"flash_attn_type": 0},
    "K cache f32": {"type_k": 0},
    "K cache bf16": {"type_k": 30},
    "K cache q8_0": {"type_k": 8},
    "K cache q4_0": {"type_k": 2},
}
"""Changes of context parameters; numbers are those of ggml's and llama.cpp's enumerations."""

Ask = Callable[[dict[str, Any]], list[Generated]]


def first_difference(left: Generated, right: Generated) -> int:
    """First position with another token, or the number of positions."""
    pairs = zip(left.ids, right.ids, strict=True)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), len(left.ids))


def text(name: str) -> Ask:
    """Answers of one text model to all prompts."""

    def ask(context: dict[str, Any]) -> list[Generated]:
        with Session(tiny_model(name), **context) as session:
            return [session.generate(prompt, COUNT) for prompt in PROMPTS]

    return ask


def audio(name: str, other: Path) -> Ask:
    """Answers of one text model to the embedded recording and to another one."""

    def ask(context: dict[str, Any]) -> list[Generated]:
        with AudioSession(tiny_model(name), tiny_model("tiny_projector"), **context) as session:
            return [session.listen(sound, LISTEN, COUNT) for sound in (tiny_model("tiny_audio"), other)]

    return ask


def describe(title: str, ask: Ask) -> list[Generated]:
    """Print one row of the first table."""
    answers = ask({})
    margins = np.concatenate([answer.margins for answer in answers])
    distinct = ", ".join(str(len(set(answer.ids))) for answer in answers)
    figures = " | ".join(f"{value:.3f}" for value in np.quantile(margins, [0, 0.05, 0.25, 0.5, 0.75]))
    print(f"| {title} | {distinct} | {figures} | {sum(1 in answer.ids for answer in answers)} |")
    return answers


def compare(title: str, plain: list[Generated], ask: Ask) -> None:
    """Print the rows of the second table: every arm against the plain answers."""
    for arm, context in ARMS.items():
        noise, flips, equal = 0.0, [], 0
        for a, b in zip(plain, ask(context), strict=True):
            place = first_difference(a, b)
            shared = slice(0, min(place + 1, COUNT))
            noise = max(noise, float(np.abs(a.logits[shared] - b.logits[shared]).max()))
            equal += a.digest == b.digest
            if place < COUNT:
                flips.append(f"{a.margins[place]:.3f}")
        print(f"| {title} | {arm} | {equal}/{len(plain)} | {noise:.4f} | {', '.join(flips) or 'none'} |", flush=True)


def main() -> None:
    """Both tables."""
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "other.wav"
        write_wav(other, Sound(2))
        asks = {name: text(name) for name in ("tiny", "tiny_f32", "tiny_q8_0", "tiny_moe")}
        asks |= {f"{name} with audio": audio(name, other) for name in ("tiny", "tiny_moe")}
        print(
            "| model | distinct tokens of 48 | least margin | 5 % | 25 % | median | 75 % | answers with an end token |"
        )
        print("|---|---|---|---|---|---|---|---|")
        plain = {title: describe(title, ask) for title, ask in asks.items()}
        print("\n| model | change | bitwise equal | largest logit difference | margin where tokens part |")
        print("|---|---|---|---|---|")
        for title, ask in asks.items():
            compare(title, plain[title], ask)
        heard = plain["tiny with audio"]
        print(
            f"\nAnother recording: tokens part at position {first_difference(*heard)}, "
            f"first logits differ by up to {np.abs(heard[0].logits[0] - heard[1].logits[0]).max():.2f}"
        )


if __name__ == "__main__":
    main()
