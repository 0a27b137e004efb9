"""Noise is measured on equal contexts only, and a flip is excused by small noise, never by large."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from isomatrix.matrix.answer import Answer, answers_of_row
from isomatrix.matrix.noise import explain_flip, logit_differences, logit_spread, top_gap
from isomatrix.matrix.thresholds import Thresholds

DEFAULTS = Thresholds()


def answer(build: Any, *args: Any, **kwargs: Any) -> Answer:
    return answers_of_row({"requests": [build.request(*args, **kwargs)]})[0]


def flip(reference: Answer, trial: Answer, position: int, **changes: Any) -> Any:
    how = {"greedy": True, "coarse_cache": False, "thresholds": DEFAULTS, **changes}
    differences = logit_differences(reference, trial, position + 1)
    return explain_flip(reference, trial, position, differences, **how)


def test_the_difference_of_shared_ids_is_exact(build: Any) -> None:
    reference, trial = answer(build, [1, 2]), answer(build, [1, 2], shift=0.25)
    assert logit_differences(reference, trial, 2) == pytest.approx([0.25, 0.25], abs=1e-6)


def test_positions_after_the_first_other_token_are_left_out(build: Any) -> None:
    reference = answer(build, [1, 2, 3])
    trial = answer(build, [1, 7, 8], shift=0.5)
    differences = logit_differences(reference, trial, 2)
    assert differences is not None and len(differences) == 2


def test_an_id_in_one_list_only_bounds_the_difference_from_below(build: Any) -> None:
    reference = answer(build, [1], tops={0: [(1, 9.0), (2, 8.0), (3, 1.0)]})
    trial = answer(build, [1], tops={0: [(1, 9.0), (4, 8.5), (3, 1.0)]})
    # Token 4 is at most 1.0 in the reference and 8.5 in the trial.
    assert logit_differences(reference, trial, 1) == pytest.approx([7.5])


def test_nan_on_one_side_is_an_infinite_difference(build: Any) -> None:
    reference = answer(build, [1])
    trial = answer(build, [1], tops={0: [(1, math.nan), (501, 8.0)]})
    assert logit_differences(reference, trial, 1) == pytest.approx([math.inf])


def test_nan_on_both_sides_is_no_difference(build: Any) -> None:
    tops = {0: [(1, 9.0), (2, math.nan)]}
    assert logit_differences(answer(build, [1], tops=tops), answer(build, [1], tops=tops), 1) == pytest.approx([0.0])


def test_without_recorded_logits_there_is_no_noise(build: Any) -> None:
    bare = Answer(token_ids=np.array([1, 2], dtype=np.int32))
    assert logit_differences(bare, answer(build, [1, 2]), 2) is None


def test_lists_of_different_lengths_are_compared(build: Any) -> None:
    reference = answer(build, [1, 2], tops={0: [(1, 9.0), (4, 1.0)], 1: [(2, 9.0), (3, 8.0), (4, 1.0)]})
    trial = answer(build, [1, 2], tops={0: [(1, 9.5), (4, 1.0)], 1: [(2, 9.0), (3, 8.25), (4, 1.0)]})
    assert logit_differences(reference, trial, 2) == pytest.approx([0.5, 0.25])


def test_the_gap_to_a_third_token_is_larger_than_the_margin(build: Any) -> None:
    reference = answer(build, [1], gaps=0.001)
    assert top_gap(reference, 0, 501) == pytest.approx(0.001, abs=1e-5)
    assert top_gap(reference, 0, 900) == pytest.approx(2.1)


def test_the_gap_to_an_unlisted_token_is_that_to_the_last_entry(build: Any) -> None:
    assert top_gap(answer(build, [1]), 0, 77) == pytest.approx(2.2)


def test_a_near_tie_that_flips_within_benign_noise_is_explained(build: Any) -> None:
    reference = answer(build, [1, 2, 3], gaps=[2, 2, 0.004])
    trial = answer(build, [1, 2, 503], tops={2: [(503, 10.001), (3, 10.0), *build.low]})
    found = flip(reference, trial, 2)
    assert found.explained
    assert "0.004" in found.reason


def test_a_near_tie_at_the_first_position_is_explained_by_its_own_logits(build: Any) -> None:
    reference = answer(build, [3], gaps=0.004)
    trial = answer(build, [503], tops={0: [(503, 10.001), (3, 10.0), *build.low]})
    assert flip(reference, trial, 0).explained


def test_huge_noise_excuses_nothing_although_it_exceeds_the_margin(build: Any) -> None:
    reference = answer(build, [3], gaps=0.004)
    trial = answer(build, [503], tops={0: [(503, 12.0), (3, 10.0), *build.low]})
    found = flip(reference, trial, 0)
    assert not found.explained
    assert "1.1" in found.reason


def test_the_corrupt_limit_follows_the_spread_of_the_logits(build: Any) -> None:
    wide = answer(build, [1], tops={0: [(1, 20.0), (2, 14.0)]})
    assert logit_spread(wide) == pytest.approx(6.0)
    assert DEFAULTS.corrupt(logit_spread(wide)) == pytest.approx(3.0)
    assert DEFAULTS.corrupt(0.0) == 0.5


def test_a_jump_at_the_flip_is_not_explained_by_a_quiet_prefix(build: Any) -> None:
    reference = answer(build, [1, 2, 3], gaps=[2, 2, 0.3])
    tops = {2: [(503, 10.01), (3, 10.0), *build.low]}
    quiet = answer(build, [1, 2, 503], shift=0.001, tops=tops)
    loud = answer(build, [1, 2, 503], shift=0.2, tops=tops)
    assert not flip(reference, quiet, 2).explained
    assert flip(reference, loud, 2).explained


def test_equal_logits_with_another_token_are_never_noise(build: Any) -> None:
    reference = answer(build, [3], gaps=0.0001)
    trial = answer(build, [503], tops={0: [(3, 10.0), (503, 9.9999), *build.low]})
    trial = Answer(trial.token_ids, digests=reference.digests, top=trial.top)
    found = flip(reference, trial, 0)
    assert not found.explained
    assert "bitwise" in found.reason


def test_a_token_that_its_own_logits_do_not_put_first_is_a_fault_when_greedy(build: Any) -> None:
    reference = answer(build, [3], gaps=0.004)
    trial = answer(build, [503], tops={0: [(3, 10.0), (503, 9.997), *build.low]})
    assert not flip(reference, trial, 0).explained
    assert flip(reference, trial, 0, greedy=False).explained


def test_a_four_bit_cache_makes_larger_noise_benign(build: Any) -> None:
    reference = answer(build, [1, 3], gaps=[2, 0.15])
    trial = answer(build, [1, 503], tops={1: [(503, 10.03), (3, 10.0), *build.low]})
    assert not flip(reference, trial, 1).explained
    assert flip(reference, trial, 1, coarse_cache=True).explained


def test_without_logits_nothing_is_excused() -> None:
    bare = Answer(token_ids=np.array([1], dtype=np.int32))
    other = Answer(token_ids=np.array([2], dtype=np.int32))
    assert not flip(bare, other, 0).explained
