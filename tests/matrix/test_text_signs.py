"""Broken text is recognised by what reporters saw, and never by what the reference does as well."""

from __future__ import annotations

import pytest
from isomatrix.matrix.text_signs import TextSigns, broken, compare_signs, observe
from isomatrix.matrix.thresholds import Thresholds

DEFAULTS = Thresholds()
GOOD = "The speaker asks his fellow citizens what they can do for their country."
REFERENCE = observe(list(range(40)), GOOD, "eos")


def names(trial: TextSigns, reference: TextSigns = REFERENCE) -> list[str]:
    return [sign.name for sign in compare_signs(trial, reference, DEFAULTS)]


def is_broken(trial: TextSigns, reference: TextSigns = REFERENCE) -> bool:
    return broken(compare_signs(trial, reference, DEFAULTS))


@pytest.mark.parametrize("character", ["G", "@", "8", "/", "=", "3", "電"])
def test_one_token_repeated_is_broken(character: str) -> None:
    trial = observe([31] * 128, character * 128, "max_tokens")
    assert {"token_run", "character_run", "budget"} <= set(names(trial))
    assert is_broken(trial)


def test_a_short_cycle_is_broken() -> None:
    trial = observe([15, 25] * 40, "0: " * 40, "max_tokens")
    assert "token_run" in names(trial)


def test_a_run_after_the_first_other_token_counts_although_it_is_a_small_part_of_the_answer() -> None:
    ids = [*range(100), *[7] * 20]
    assert "token_run" not in names(observe(ids, "x", "eos"))
    assert "token_run" in names(observe(ids, "x", "eos", since=100))


def test_a_model_that_repeats_itself_anyway_is_not_called_broken_for_it() -> None:
    looping = observe([5] * 32, "ababab" * 8, "max_tokens")
    other = observe([6] * 32, "cdcdcd" * 8, "max_tokens")
    assert names(other, looping) == []


def test_the_mixed_script_garbage_of_the_audio_report_is_broken() -> None:
    text = "迅 Bühne кон ترجمة\ufffd\ufffd สวัสดี blah\ufffd 한국 λόγος 行\ufffd" * 4
    trial = observe(list(range(128)), text, "max_tokens")
    assert {"replacement_characters", "mixed_scripts", "budget"} <= set(names(trial))
    assert is_broken(trial)


def test_a_fluent_alternative_is_not_broken() -> None:
    trial = observe(list(range(200, 260)), "A man says: ask not what your country can do for you.", "eos")
    assert names(trial) == []


def test_a_longer_fluent_alternative_shows_only_a_weak_sign() -> None:
    text = "The recording holds a famous speech. " + " ".join(f"Sentence number {n} goes on." for n in range(20))
    trial = observe(list(range(128)), text, "max_tokens")
    assert names(trial) == ["budget"]
    assert not is_broken(trial)


def test_an_answer_in_another_language_is_not_broken() -> None:
    trial = observe(list(range(60)), "说话者请他的同胞们问自己能为国家做些什么。", "eos")
    assert names(trial) == ["foreign_script"]
    assert not is_broken(trial)


def test_japanese_is_one_script() -> None:
    trial = observe(list(range(60)), "話し手はスピーチで市民に呼びかけています。", "eos")
    assert not is_broken(trial)


@pytest.mark.parametrize("token", ["<pad>", "[control_36]", "[multimodal]", "<unused12>", "<|endoftext|>", "\x03"])
def test_special_tokens_in_the_text_are_broken(token: str) -> None:
    trial = observe(list(range(20)), f"so {token} and {token} then {token} it {token}", "max_tokens")
    assert "control_tokens" in names(trial)
    assert is_broken(trial)


def test_the_end_token_of_a_whole_answer_is_no_sign() -> None:
    trial = observe(list(range(12)), "A fine answer, and then the end.<end_of_turn>", "eos")
    assert names(trial) == []


def test_special_tokens_that_the_reference_shows_are_no_sign() -> None:
    reference = observe(list(range(20)), "<pad> a <pad> b <pad> c <pad>", "eos")
    trial = observe(list(range(20, 40)), "<pad> d <pad> e <pad> f <pad> g <pad>", "eos")
    assert "control_tokens" not in names(trial, reference)


def test_empty_text_is_broken() -> None:
    trial = observe([220] * 32, " \n" * 16, "max_tokens")
    assert "empty_text" in names(trial)


def test_the_end_of_text_as_first_token_is_broken() -> None:
    assert "ended_at_once" in names(observe([2], "</s>", "eos"))


def test_a_one_word_answer_is_not_the_end_at_once() -> None:
    assert "ended_at_once" not in names(observe([9906], "Yes", "eos"))


def test_replacement_characters_of_a_random_model_are_no_sign() -> None:
    reference = observe(list(range(30)), "a\ufffdb\ufffdc\ufffdd", "max_tokens")
    trial = observe(list(range(30, 60)), "e\ufffdf\ufffdg\ufffdh\ufffd", "max_tokens")
    assert "replacement_characters" not in names(trial, reference)


def test_doubled_words_are_broken_and_a_single_very_very_is_not() -> None:
    doubled = "we we should should go go there there and and look look"
    assert "doubled_words" in names(observe(list(range(20)), doubled, "eos"))
    assert names(observe(list(range(20)), "It was a very very long road to the town.", "eos")) == []
