"""Crossed settings: main effects, interaction, and hints from one-at-a-time rows."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from isomatrix.matrix.statistics.interaction import Cell, OneArm, crossed, interaction_hints
from scipy import stats


def test_two_settings_that_fail_only_together_are_seen_as_acting_together() -> None:
    result = crossed(Cell(0, 10), Cell(0, 10), Cell(0, 10), Cell(9, 10), names=("load", "op_offload"))
    assert result.interaction == pytest.approx(0.9)
    assert result.interaction_p < 0.02
    assert result.main_a.two_sided < 0.001
    assert result.odds_p is None  # the conditional test cannot see this at all
    assert result.sentence.startswith("load and op_offload act together: neither 0/10, only load 0/10")


def test_effects_that_add_up_show_no_interaction() -> None:
    result = crossed(Cell(2, 20), Cell(10, 20), Cell(8, 20), Cell(16, 20))
    assert result.interaction == pytest.approx(0)
    assert result.interaction_p == 1
    assert result.main_a.two_sided < 0.01
    assert result.odds_p is not None
    assert result.odds_p > 0.5
    assert "no interaction shown at these sizes" in result.sentence


def test_reversed_effect_is_seen_by_both_tests() -> None:
    result = crossed(Cell(10, 20), Cell(19, 20), Cell(18, 20), Cell(3, 20))
    assert result.interaction_p < 0.001
    assert result.odds_p is not None
    assert result.odds_p < 0.001
    assert result.main_a.two_sided > 0.05


def test_conditional_test_of_equal_odds_equals_its_definition() -> None:
    strata = [(6, 8, 2, 8), (3, 8, 5, 8)]  # only A against neither, both against only B
    result = crossed(Cell(2, 8), Cell(6, 8), Cell(5, 8), Cell(3, 8))
    total = sum(arm for arm, *_ in strata)
    masses = {
        first: np.prod(
            [
                stats.hypergeom.pmf(bad, runs + others, arm + reference, runs)
                for bad, (arm, runs, reference, others) in zip((first, total - first), strata, strict=True)
            ]
        )
        for first in range(total + 1)
    }
    whole = sum(masses.values())
    expected = sum(mass for mass in masses.values() if mass <= masses[6] * (1 + 1e-9)) / whole
    assert result.odds_p == pytest.approx(expected)


def test_interaction_test_keeps_its_size_for_rates_that_add_up() -> None:
    runs, alpha = 2, 0.3
    cells = list(product(range(runs + 1), repeat=4))
    rejected = [crossed(*(Cell(bad, runs) for bad in counts)).interaction_p <= alpha for counts in cells]
    assert any(rejected)
    for neither, step_a, step_b in product((0.05, 0.3, 0.5), (0.0, 0.2, 0.4), (-0.05, 0.1)):
        rates = (neither, neither + step_a, neither + step_b, neither + step_a + step_b)
        masses = [stats.binom.pmf(np.arange(runs + 1), runs, rate) for rate in rates]
        size = sum(
            np.prod([mass[bad] for mass, bad in zip(masses, counts, strict=True)])
            for counts, hit in zip(cells, rejected, strict=True)
            if hit
        )
        assert size <= alpha


def test_an_empty_cell_is_named() -> None:
    with pytest.raises(ValueError, match="only B: no trials"):
        crossed(Cell(0, 5), Cell(0, 5), Cell(0, 0), Cell(0, 5))


def arm(name: str, axes: str, bad: int, runs: int = 10) -> OneArm:
    return OneArm(name, frozenset(axes.split()), bad, runs)


def test_two_single_changes_that_both_cure_hint_at_a_joint_cause() -> None:
    plan = [arm("baseline", "", 9), arm("op_offload=false", "op_offload", 0), arm("idle", "load", 1)]
    (hint,) = interaction_hints(plan)
    assert "may need load and op_offload together" in hint
    assert "baseline's 9/10" in hint
    assert interaction_hints([*plan, arm("both", "op_offload load", 0)]) == ()


def test_a_combination_worse_than_all_its_parts_is_hinted_at() -> None:
    plan = [arm("baseline", "", 0), arm("a", "x", 0), arm("b", "y", 0), arm("a+b", "x y", 8)]
    (hint,) = interaction_hints(plan)
    assert "a+b 8/10 (80 %) is above each of baseline 0/10, a 0/10, b 0/10" in hint


def test_a_part_that_explains_the_combination_gives_no_hint() -> None:
    plan = [arm("baseline", "", 0), arm("a", "x", 8), arm("b", "y", 0), arm("a+b", "x y", 8)]
    assert interaction_hints(plan) == ()


def test_small_counts_hint_at_nothing() -> None:
    plan = [arm("baseline", "", 1, 3), arm("a", "x", 0, 3), arm("b", "y", 0, 3)]
    assert interaction_hints(plan) == ()


def test_hints_need_one_baseline() -> None:
    with pytest.raises(ValueError, match="0 arms move no axis"):
        interaction_hints([arm("a", "x", 0)])


def test_sizes_without_a_common_denominator_can_only_make_p_larger() -> None:
    equal = crossed(Cell(1, 60), Cell(3, 60), Cell(6, 60), Cell(26, 60)).interaction_p
    unequal = crossed(Cell(1, 61), Cell(3, 59), Cell(6, 60), Cell(26, 59)).interaction_p
    assert unequal == pytest.approx(equal, rel=0.5)
    neither, only_a, only_b, both = (stats.binom.pmf(np.arange(n + 1), n, q) for n, q in NULL)
    # Under rates that add up, the chance of an interaction at least this large stays below the one-sided p.
    seen = Cell(1, 61), Cell(3, 59), Cell(6, 60), Cell(26, 59)
    value = seen[3].rate - seen[2].rate - seen[1].rate + seen[0].rate
    plus = np.add.outer(np.arange(60) / 59, np.arange(62) / 61).ravel()
    minus = np.add.outer(np.arange(60) / 59, np.arange(61) / 60).ravel()
    plus_mass, minus_mass = np.outer(both, neither).ravel(), np.outer(only_a, only_b).ravel()
    order = np.argsort(minus)
    below = np.concatenate([[0.0], np.cumsum(minus_mass[order])])
    chance = float(plus_mass @ below[np.searchsorted(minus[order], plus - value + 1e-9, side="right")])
    assert 2 * chance <= unequal


NULL = ((61, 0.03), (59, 0.15), (60, 0.2), (59, 0.32))


def test_cells_that_are_too_large_to_enumerate_are_approximated() -> None:
    exact = crossed(Cell(50, 1000), Cell(100, 1000), Cell(100, 1000), Cell(190, 1000)).interaction_p
    approximate = crossed(Cell(50, 1001), Cell(100, 1001), Cell(100, 1001), Cell(190, 1001)).interaction_p
    assert approximate == pytest.approx(exact, rel=0.1)
    assert crossed(Cell(0, 1001), Cell(0, 1001), Cell(0, 1001), Cell(0, 1001)).interaction_p == 1
