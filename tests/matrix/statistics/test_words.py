"""Sentences say what the numbers carry, and no more."""

from __future__ import annotations

import pytest
from isomatrix.matrix.statistics.power import runs_for_power
from isomatrix.matrix.statistics.words import (
    difference_words,
    e_words,
    needed_words,
    p_words,
    percent,
    rate_words,
    reach_words,
)


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0.2589, "26 %"),
        (0.09503, "9.5 %"),
        (0.0495, "5 %"),
        (0.0012, "0.12 %"),
        (1.0, "100 %"),
        (0.997, "99.7 %"),
        (0.0, "0"),
        (3e-7, "0"),
    ],
)
def test_percent_has_two_significant_digits(rate: float, text: str) -> None:
    assert percent(rate) == text


@pytest.mark.parametrize(
    ("bad", "runs", "text"),
    [
        (0, 10, "0/10: rate below 26 % (95 %)"),
        (0, 5, "0/5: rate below 45 % (95 %)"),
        (10, 10, "10/10: rate above 74 % (95 %)"),
        (8, 54, "8/54: rate 15 %, between 6.6 % and 27 % (95 %)"),
        (0, 0, "0/0: no judged trial, so nothing is known about the rate"),
    ],
)
def test_rate_of_one_arm(bad: int, runs: int, text: str) -> None:
    assert rate_words(bad, runs) == text


def test_a_watched_run_gets_the_wider_bound_and_says_so() -> None:
    assert rate_words(0, 10, always=True) == "0/10: rate below 28 % (95 %, at every round)"
    assert rate_words(2, 10, 0.9, always=True).endswith("(90 %, at every round)")


def test_not_enough_runs_names_the_number() -> None:
    design = runs_for_power(0.15, 0.0)
    assert needed_words(design, 0.15, 0.0) == "not enough runs: needs about 44 per arm to tell 15 % from 0"
    assert needed_words(None, 0.2, 0.2).startswith("no difference in this sample (20 % in both arms)")


def test_directions_are_told_from_the_arm() -> None:
    assert difference_words(0.3, 0.0) == "above the baseline (30 % against 0)"
    assert difference_words(0.0, 0.9, "idle") == "below idle (0 against 90 %)"
    assert difference_words(0.5, 0.5).startswith("level with")


def test_sizes_that_cannot_pass_say_so() -> None:
    assert reach_words(3, 3, 0.03125, 0.005) == (
        "cannot be decided at this size: 3 against 3 trials reach p = 0.0312 at best, and 0.005 is needed"
    )


def test_extreme_values_are_bounds() -> None:
    assert (e_words(41.2), e_words(1.23), e_words(1e9)) == ("e = 41", "e = 1.2", "e > 100,000")
    assert (p_words(0.23507), p_words(1e-9)) == ("p = 0.235", "p < 0.0001")
