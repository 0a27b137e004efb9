"""Signs of broken text, each measured by itself and always relative to the reference.

A base model or a tiny random one repeats itself without any fault, so a sign counts only if the reference
does not show it as well. The list follows what people reported: one token or glyph repeated, U+FFFD, mixed
scripts, special tokens, empty text, end of text first, a full budget, doubled words.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from .answer import Answer
from .thresholds import Thresholds

__all__ = ["LOOPS", "Sign", "TextSigns", "broken", "compare_signs", "observe", "observe_answer", "observe_reference"]

_SPECIAL = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|</?(?:s|pad|unk|bos|eos|mask|unused_?\d*|extra_id_\d+|reserved_\d+"
    r"|start_of_turn|end_of_turn|start_of_image|end_of_image|image_soft_token|audio_soft_token)>"
    r"|\[/?(?:control_\d+|multimodal|PAD|UNK|MASK|CLS|SEP|INST|IMG|AUDIO)\]"
)
_WORD = re.compile(r"\w+")
_RUN = re.compile(r"([^\s\ufffd])\1+")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_LONGEST_CYCLE = 8
_JAPANESE = frozenset({"HIRAGANA", "KATAKANA", "CJK"})


@dataclass(frozen=True)
class TextSigns:
    """What one answer shows, before any comparison."""

    n_tokens: int
    n_judged: int  # tokens that the run was looked for in: from the first differing one on
    longest_run: int  # tokens in the longest stretch that repeats with a period of 1 to 8 tokens
    run_period: int  # its period; 1 is one token repeated
    character_run: int  # longest run of one visible character
    replacement_share: float  # U+FFFD among characters
    scripts: tuple[tuple[str, int], ...]  # letters by script, most frequent first
    script_switches: int  # neighbouring letters, inside a word, of different scripts
    control_tokens: int  # special tokens written out, and control characters
    empty: bool
    ended_at_once: bool  # end of text before any token
    budget_exhausted: bool
    doubled_share: float  # words equal to the word before
    n_doubled: int


@dataclass(frozen=True)
class Sign:
    """One sign that the trial shows and the reference does not.

    A strong sign is enough for `garbage`; a weak one (`budget`, `foreign_script`) is not, because a fluent
    alternative can show it.
    """

    name: str
    strong: bool
    value: float
    reference: float
    sentence: str


def _repeating_stretch(ids: Sequence[int]) -> tuple[int, int]:
    """Length and period of the longest stretch that repeats at least three times."""
    best, best_period = min(len(ids), 1), 1
    array = np.asarray(ids)
    for period in range(1, min(_LONGEST_CYCLE, len(ids) // 3) + 1):
        if np.count_nonzero(array[period:] == array[:-period]) < 2 * period:
            continue
        stretch = 0
        for index in range(period, len(ids)):
            stretch = stretch + 1 if ids[index] == ids[index - period] else 0
            if stretch >= 2 * period and stretch + period > best:
                best, best_period = stretch + period, period
    return best, best_period


def _character_run(text: str) -> int:
    runs = (len(match[0]) for match in _RUN.finditer(text))
    return max(runs, default=1 if text.strip() else 0)


@lru_cache(maxsize=8192)
def _script(character: str) -> str | None:
    if not character.isalpha():
        return None
    word = unicodedata.name(character, "UNNAMED").split(" ", 1)[0].split("-", 1)[0]
    return "JAPANESE OR CHINESE" if word in _JAPANESE else word


def _scripts(text: str) -> tuple[Counter[str], int]:
    if text.isascii():
        letters = sum(map(str.isalpha, text))
        return Counter({"LATIN": letters} if letters else {}), 0
    counts: Counter[str] = Counter()
    switches = 0
    before: str | None = None
    for character in text:
        script = _script(character)
        if script is not None:
            counts[script] += 1
            if before is not None and script != before:
                switches += 1
        before = script
    return counts, switches


def _doubled(text: str) -> tuple[int, int]:
    words = [word.casefold() for word in _WORD.findall(text)]
    doubled = sum(1 for a, b in pairwise(words) if a == b and len(a) > 1 and not a.isdigit())
    return doubled, len(words)


def observe(token_ids: Sequence[int], text: str | None, stop_reason: str | None, since: int = 0) -> TextSigns:
    """Measure one answer. A `None` text shows no signs; repeats are looked for from token `since` on."""
    shown = text or ""
    blank = not _SPECIAL.sub("", shown).strip()
    length, period = _repeating_stretch(token_ids[since:])
    counts, switches = _scripts(shown)
    doubled, words = _doubled(shown)
    return TextSigns(
        n_tokens=len(token_ids),
        n_judged=max(len(token_ids) - since, 0),
        longest_run=length,
        run_period=period,
        character_run=_character_run(shown),
        replacement_share=shown.count("\ufffd") / len(shown) if shown else 0.0,
        scripts=tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        script_switches=switches,
        control_tokens=len(_SPECIAL.findall(shown)) + len(_CONTROL.findall(shown)),
        empty=text is not None and blank,
        ended_at_once=stop_reason == "eos" and len(token_ids) <= 1 and blank,
        budget_exhausted=stop_reason in ("max_tokens", "context_full"),
        doubled_share=doubled / words if words else 0.0,
        n_doubled=doubled,
    )


def observe_answer(answer: Answer, since: int = 0) -> TextSigns:
    """Measure a stored answer; repeats are looked for from token `since` on."""
    return observe(answer.token_ids.tolist(), answer.text, answer.stop_reason, since)


@lru_cache(maxsize=32)
def observe_reference(answer: Answer) -> TextSigns:
    """Measure an answer that many others are compared with, once."""
    return observe_answer(answer)


def compare_signs(trial: TextSigns, reference: TextSigns, thresholds: Thresholds) -> tuple[Sign, ...]:
    """The signs that the trial shows and the reference does not, in a fixed order."""
    found = (
        _run_sign(trial, reference, thresholds),
        _character_sign(trial, reference, thresholds),
        _replacement_sign(trial, reference, thresholds),
        _script_sign(trial, reference, thresholds),
        _control_sign(trial, reference, thresholds),
        _empty_sign(trial, reference),
        _ended_sign(trial, reference),
        _budget_sign(trial, reference),
        _doubled_sign(trial, reference, thresholds),
    )
    return tuple(sign for sign in found if sign is not None)


LOOPS = frozenset({"token_run", "character_run", "doubled_words", "empty_text", "ended_at_once"})
"""Signs that a model can show by itself once it has taken another way; they prove little after a benign flip."""


def broken(signs: Iterable[Sign]) -> bool:
    """Whether the signs are enough to call the text garbage: one strong sign."""
    return any(sign.strong for sign in signs)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _run_sign(trial: TextSigns, reference: TextSigns, thresholds: Thresholds) -> Sign | None:
    share, usual = (
        _share(trial.longest_run, trial.n_judged),
        _share(reference.longest_run, reference.n_judged),
    )
    nothing_else = trial.n_judged == trial.n_tokens >= 4 and share == 1
    repeats = trial.longest_run >= thresholds.run_tokens or nothing_else
    beyond = trial.longest_run >= thresholds.relative_factor * reference.longest_run and share > usual
    if not (repeats and beyond and share >= thresholds.cycle_share):
        return None
    what = "one token" if trial.run_period == 1 else f"a cycle of {trial.run_period} tokens"
    sentence = f"{what} repeated over {trial.longest_run} tokens (reference {reference.longest_run})"
    return Sign("token_run", True, trial.longest_run, reference.longest_run, sentence)


def _character_sign(trial: TextSigns, reference: TextSigns, thresholds: Thresholds) -> Sign | None:
    least = max(2 * thresholds.run_tokens, thresholds.relative_factor * reference.character_run)
    if trial.character_run < least:
        return None
    sentence = f"one character {trial.character_run} times in a row (reference {reference.character_run})"
    return Sign("character_run", True, trial.character_run, reference.character_run, sentence)


def _replacement_sign(trial: TextSigns, reference: TextSigns, thresholds: Thresholds) -> Sign | None:
    share, usual = trial.replacement_share, reference.replacement_share
    if share < thresholds.replacement_share or share < thresholds.relative_factor * usual:
        return None
    sentence = f"{share:.0%} of characters are U+FFFD (reference {usual:.0%})"
    return Sign("replacement_characters", True, share, usual, sentence)


def _script_sign(trial: TextSigns, reference: TextSigns, thresholds: Thresholds) -> Sign | None:
    """Several scripts that the reference does not use. One foreign script alone may be another language."""
    known = {script for script, _ in reference.scripts}
    letters = sum(count for _, count in trial.scripts)
    foreign = {script: count for script, count in trial.scripts if script not in known}
    share = _share(sum(foreign.values()), letters)
    if share < thresholds.foreign_share:
        return None
    mixed = len(trial.scripts) > 2 and len(foreign) > 1
    tangled = len(trial.scripts) > 1 and trial.script_switches >= max(
        3, thresholds.relative_factor * reference.script_switches
    )
    names = ", ".join(sorted(name.lower() for name in foreign))
    name = "mixed_scripts" if mixed or tangled else "foreign_script"
    sentence = f"{share:.0%} of letters in scripts that the reference does not use ({names})"
    return Sign(name, mixed or tangled, share, 0.0, sentence)


def _control_sign(trial: TextSigns, reference: TextSigns, thresholds: Thresholds) -> Sign | None:
    seen, usual = trial.control_tokens, reference.control_tokens
    if seen - usual < thresholds.control_tokens or seen < thresholds.relative_factor * usual:
        return None
    sentence = f"{seen} special tokens or control characters in the text (reference {usual})"
    return Sign("control_tokens", True, seen, usual, sentence)


def _empty_sign(trial: TextSigns, reference: TextSigns) -> Sign | None:
    if not trial.empty or reference.empty:
        return None
    return Sign("empty_text", True, 1, 0, f"no visible text in {trial.n_tokens} tokens")


def _ended_sign(trial: TextSigns, reference: TextSigns) -> Sign | None:
    if not trial.ended_at_once or reference.ended_at_once:
        return None
    return Sign("ended_at_once", True, 1, 0, "the first token ends the text")


def _budget_sign(trial: TextSigns, reference: TextSigns) -> Sign | None:
    if not trial.budget_exhausted or reference.budget_exhausted or trial.n_tokens <= reference.n_tokens:
        return None
    sentence = f"the whole budget of {trial.n_tokens} tokens used (the reference stops at {reference.n_tokens})"
    return Sign("budget", False, trial.n_tokens, reference.n_tokens, sentence)


def _doubled_sign(trial: TextSigns, reference: TextSigns, thresholds: Thresholds) -> Sign | None:
    share, usual = trial.doubled_share, reference.doubled_share
    if trial.n_doubled < 3 or share < thresholds.doubled_share or share < thresholds.relative_factor * usual:
        return None
    sentence = f"{share:.0%} of words repeat the word before (reference {usual:.0%})"
    return Sign("doubled_words", True, share, usual, sentence)
