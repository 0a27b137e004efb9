"""Findings beside the declared contrasts, from rows whose verdicts are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from isomatrix.matrix.arm import Arm
from isomatrix.matrix.counts import count_arms
from isomatrix.matrix.findings import Findings, crossed_settings, findings_of
from isomatrix.matrix.plan import Plan

Find = Callable[..., Findings]

FIXED = {"kind": "fixed", "rounds": 40}
OUTCOMES = {".": ("ok", "identical", False), "#": ("ok", "divergent", True), "x": ("crash", "failed", None)}


def arm(
    name: str, changes: Mapping[str, str] | None = None, reference: str = "baseline", control: str | None = None
) -> Arm:
    return Arm(name, "axis", "level", tuple((changes or {}).items()), reference, {}, control)


def plan_of(*arms: Arm, stop: Mapping[str, Any] = FIXED) -> Plan:
    return Plan(seed=1, rounds=40, arms=(arm("baseline"), *arms), stop=stop, reference={})


CROSSED = (
    arm("a", {"a": "1"}),
    arm("load=cpu", {"load": "cpu"}),
    arm("a & load=cpu", {"a": "1", "load": "cpu"}, "load=cpu"),
)
SINGLE = (arm("a", {"a": "1"}), arm("b", {"b": "1"}))


@pytest.fixture
def find(build: Any) -> Find:
    """`find(plan, baseline="..#", a="###")`: one letter a round; `machines` names the machine of each round."""

    def find(plan: Plan, letters: Mapping[str, str], machines: Sequence[str] = ()) -> Findings:
        rows = []
        for name, word in letters.items():
            for number, letter in enumerate(word):
                if letter == " ":
                    continue
                outcome, verdict, corrupt = OUTCOMES[letter]
                row = build.row(name, number=number, outcome=outcome, verdict=verdict, corrupt=corrupt)
                rows.append({**row, "machine": machines[number] if machines else "one"})
        judged = build.table(rows)
        return findings_of(plan, judged, count_arms(judged, [a.name for a in plan.arms]).to_pylist())

    return find


def test_a_crossed_plan_names_its_four_combinations() -> None:
    assert [[a.name for a in four] for four in crossed_settings(plan_of(*CROSSED))] == [
        ["baseline", "a", "load=cpu", "a & load=cpu"]
    ]


def test_a_named_combination_is_crossed_only_where_both_parts_were_run_alone() -> None:
    both = arm("both", {"b": "1", "a": "1"})
    assert [[a.name for a in four] for four in crossed_settings(plan_of(*SINGLE, both))] == [
        ["baseline", "a", "b", "both"]
    ]
    assert crossed_settings(plan_of(SINGLE[0], both)) == []
    other_level = arm("both", {"b": "2", "a": "1"})
    assert crossed_settings(plan_of(*SINGLE, other_level)) == []


def test_settings_that_fail_only_together_are_a_headline_with_main_effects(find: Find) -> None:
    good, bad = "." * 10, "#" * 9 + "."
    found = find(plan_of(*CROSSED), {"baseline": good, "a": good, "load=cpu": good, "a & load=cpu": bad})
    (headline,) = found.headlines()
    counts = "neither 0/10, only a 0/10, only load=cpu 0/10, both 9/10"
    assert headline.startswith(f"Crossed: a and load=cpu act together: {counts}")
    assert "each within the levels of the other: a p = 0.000119, load=cpu p = 0.000119" in headline
    (crossed,) = found.crossed
    assert crossed.interaction == pytest.approx(0.9)
    assert crossed.p_interaction < 0.02
    assert found.as_data()["crossed"][0]["counts"] == ((0, 10), (0, 10), (0, 10), (9, 10))
    assert found.hints == ()


def test_crossed_settings_without_any_corrupt_trial_are_told_as_such(find: Find) -> None:
    found = find(plan_of(*CROSSED), dict.fromkeys(("baseline", "a", "load=cpu", "a & load=cpu"), "....."))
    assert found.crossed == ()
    assert found.notes() == ["No trial is corrupt in any combination of load=cpu with a: nothing to attribute."]


def test_single_changes_that_each_cure_give_a_hint_that_names_the_level(find: Find) -> None:
    plan = plan_of(*SINGLE, arm("b=2", {"b": "2"}))
    found = find(plan, {"baseline": "#" * 10, "a": "." * 10, "b": "." * 10, "b=2": "#" * 10})
    assert ["may need a and b together" in note for note in found.notes()] == [True]
    one_axis = plan_of(arm("b", {"b": "1"}), arm("b=2", {"b": "2"}))
    assert find(one_axis, {"baseline": "#" * 10, "b": "." * 10, "b=2": "." * 10}).hints == ()


def test_a_baseline_that_drifts_is_a_warning_and_contrasts_are_read_within_rounds(find: Find) -> None:
    found = find(plan_of(*SINGLE), {"baseline": "." * 10 + "#" * 10, "a": "." * 10 + "#" * 10, "b": "." * 20})
    (warning,) = found.warnings()
    assert warning.startswith("Warning: the baseline's rate moved: 0/10 (0) in the first half")
    (note,) = found.notes()
    assert note.startswith("Contrasts against baseline within rounds, because a reference arm's rate moved")
    assert note.endswith("(exact, two-sided, Holm over 2): a p = 1, b p = 0.00391.")


def test_a_reference_arm_of_a_crossed_plan_that_drifts_is_named(find: Find) -> None:
    quiet = "." * 20
    moving = "." * 10 + "#" * 10
    found = find(plan_of(*CROSSED), {"baseline": quiet, "a": quiet, "load=cpu": moving, "a & load=cpu": moving})
    assert found.warnings()[0].startswith("Warning: the rate of reference arm load=cpu moved: 0/10 (0)")


def test_several_machines_are_strata(find: Find) -> None:
    machines = ["one"] * 8 + ["two"] * 8
    # On machine two everything fails, a never saw machine one: pooled, a would look worse than the baseline.
    letters = {"baseline": "." * 8 + "#" * 8, "a": " " * 8 + "#" * 8, "b": "." * 8 + "#" * 8}
    found = find(plan_of(*SINGLE), letters, machines)
    assert found.machines == 2
    assert [(w.arm, w.p) for w in found.within] == [("a", 1.0), ("b", 1.0)]
    assert find(plan_of(*SINGLE), {"baseline": "....", "a": "....", "b": "...."}).within == ()


def test_failed_outcomes_have_a_rate_with_its_interval(find: Find) -> None:
    found = find(plan_of(*SINGLE), {"baseline": "." * 10, "a": "." * 7 + "xxx", "b": "." * 10})
    (failed,) = found.failed
    assert (failed.arm, failed.outcome, failed.count, failed.trials, failed.rate) == ("a", "crash", 3, 10, 0.3)
    assert (failed.low, failed.high) == pytest.approx((0.0667, 0.6525), abs=1e-4)
    assert found.notes() == [
        "Failed trials have no verdict and count in no rate above. a: 3/10 crash, 30 % (6.7 % to 65 %)."
    ]


def test_pairs_that_nobody_declared_stand_apart(find: Find) -> None:
    found = find(plan_of(*SINGLE), {"baseline": ".#" * 5, "a": "#" * 10, "b": "." * 10})
    assert found.exploratory() == ["a 10/10 against b 0/10: p < 0.0001 (Boschloo, Holm over 1 pair)."]
    assert not any("against b" in sentence for sentence in [*found.notes(), *found.headlines(), *found.warnings()])


def test_pairs_are_adjusted_over_all_of_them_and_leave_reference_arms_out(find: Find) -> None:
    plan = plan_of(*(arm(name, {name: "1"}) for name in "abcdef"))
    letters = dict.fromkeys(("baseline", *"bcdef"), "." * 5) | {"a": "####."}
    found = find(plan, letters)
    assert found.pairs_tested == 15
    assert found.pairs == ()  # 4/5 against 0/5 is p = 0.02 alone
    assert find(plan_of(*CROSSED), {"baseline": "."}).pairs_tested == 1  # a and a & load=cpu


def test_a_watched_run_says_that_its_p_values_describe(find: Find) -> None:
    good, bad = "." * 10, "#" * 9 + "."
    plan = plan_of(*CROSSED, stop={"kind": "sequential", "rounds": 40})
    found = find(plan, {"baseline": good, "a": good, "load=cpu": good, "a & load=cpu": bad})
    assert found.headlines()[0].endswith("(the stop rule chose the sizes, so p describes and decides nothing).")


def test_controls_are_no_part_of_it(find: Find) -> None:
    control = arm("positive control", {"plant": "flip_token"}, control="positive")
    plan = plan_of(*SINGLE, control)
    letters = {"baseline": "." * 10, "a": "." * 10, "b": "." * 10, "positive control": "#" * 10}
    found = find(plan, letters)
    assert (found.pairs_tested, found.crossed, found.hints) == (1, (), ())


def test_pairs_with_one_arm_in_common_are_one_sentence(find: Find) -> None:
    plan = plan_of(*SINGLE, arm("c", {"c": "1"}))
    found = find(plan, {"baseline": "." * 10, "a": "." * 10, "b": "#" * 10, "c": "." * 10})
    assert found.exploratory() == ["b 10/10 against a 0/10, c 0/10: p < 0.0001 (Boschloo, Holm over 3 pairs)."]


def test_a_planted_fault_gives_no_hint(find: Find) -> None:
    planted = arm("faulty [planted]", {"plant": "flip_token", "plant.rate": "0.3"})
    assert find(plan_of(planted), {"baseline": "." * 20, "faulty [planted]": "#" * 20}).hints == ()
