"""Decisions from rows: recomputable, independent of order, and right about what they claim."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isomatrix.matrix.statistics.rule import StopRule, StopRuleError, stop_rule_from_mapping
from isomatrix.matrix.statistics.sequential import Kind, Row, decide, open_arms

RULE = StopRule()


def outcomes(rates: dict[str, float], rounds: int, seed: int = 1) -> list[Row]:
    """All arms in all rounds; a rate of 0 or 1 is deterministic."""
    generator = np.random.default_rng(seed)
    return [(number, arm, bool(generator.random() < rate)) for number in range(rounds) for arm, rate in rates.items()]


def run_live(
    rates: dict[str, float], rule: StopRule, seed: int = 1
) -> tuple[list[Row], list[dict[str, tuple[Kind, int | None]]]]:
    """Run as a runner would: after every round decide, and give the next round to the open arms only."""
    generator = np.random.default_rng(seed)
    rows: list[Row] = []
    history = []
    live = [arm for arm in rates if arm != "base"]
    for number in range(rule.rounds):
        rows += [(number, arm, bool(generator.random() < rates[arm])) for arm in ["base", *live]]
        decisions = decide(rows, baseline="base", rule=rule, family=list(rates))
        history.append({arm: (decision.kind, decision.round) for arm, decision in decisions.items()})
        live = list(open_arms(decisions))
        if not live:
            break
    return rows, history


def test_a_worse_arm_differs_from_a_good_baseline() -> None:
    decisions = decide(outcomes({"base": 0, "bad": 1, "good": 0}, 10), baseline="base", rule=RULE)
    assert decisions["bad"].kind is Kind.DIFFERS
    assert "above the baseline (100 % against 0)" in decisions["bad"].reason
    assert decisions["good"].kind is Kind.UNDECIDED
    assert open_arms(decisions) == ("good",)


def test_a_cured_arm_differs_from_a_failing_baseline() -> None:
    decisions = decide(outcomes({"base": 1, "cure": 0, "still": 1}, 10), baseline="base", rule=RULE)
    assert decisions["cure"].kind is Kind.DIFFERS
    assert "below the baseline (0 against 100 %)" in decisions["cure"].reason
    assert decisions["still"].kind is Kind.UNDECIDED


def test_a_decision_uses_rows_up_to_its_round_only() -> None:
    early = outcomes({"base": 0, "bad": 1, "good": 0}, 6)
    decided = decide(early, baseline="base", rule=RULE)["bad"]
    assert decided.round == 4
    later: list[Row] = [(number, "bad", False) for number in range(6, 30)]
    again = decide(early + later + [(n, "base", True) for n in range(6, 30)], baseline="base", rule=RULE)["bad"]
    assert again == decided


def test_arms_without_failures_are_closed_below_the_bound_and_say_which() -> None:
    decisions = decide(outcomes({"base": 0, "one": 0, "two": 0}, 30), baseline="base", rule=RULE)
    for decision in decisions.values():
        assert decision.kind is Kind.CLEAN_BELOW_BOUND
        assert decision.reason.startswith("0/21: rate below 15 %")
        assert decision.round == 20
        assert decision.rate_below is not None
        assert decision.rate_below < 0.15


def test_equal_deterministic_failures_are_equivalent_within_the_margin() -> None:
    decision = decide(outcomes({"base": 1, "same": 1}, 30), baseline="base", rule=RULE)["same"]
    assert decision.kind is Kind.EQUIVALENT
    assert decision.reason.startswith("equivalent within 15 points of rate")


def test_an_arm_is_not_closed_as_clean_while_it_may_still_differ_from_a_failing_baseline() -> None:
    rows: list[Row] = [(n, "base", n % 4 == 0) for n in range(24)] + [(n, "arm", False) for n in range(24)]
    rule = StopRule(rounds=24, equivalence_margin=None)
    assert decide(rows[:23] + rows[24:47], baseline="base", rule=rule)["arm"].kind is Kind.UNDECIDED
    assert decide(rows, baseline="base", rule=rule)["arm"].kind is Kind.CLEAN_BELOW_BOUND


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_order_of_the_rows_has_no_influence(seed: int) -> None:
    rows = outcomes({"base": 0.2, "a": 0.9, "b": 0.2, "c": 0.0}, 14, seed)
    rows += [(3, "b", None), (5, "base", True), (5, "a", False), (7, "a", True)]
    shuffled = rows[:]
    random.Random(seed).shuffle(shuffled)
    assert decide(shuffled, baseline="base", rule=RULE) == decide(rows, baseline="base", rule=RULE)


@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_decided_live_is_recomputed_from_the_rows_alone(seed: int) -> None:
    rates = {"base": 0.05, "strong": 0.9, "weak": 0.3, "none": 0.0, "level": 0.05}
    rows, history = run_live(rates, RULE, seed)
    final = {
        arm: (decision.kind, decision.round)
        for arm, decision in decide(rows, baseline="base", rule=RULE, family=list(rates)).items()
    }
    assert final == history[-1]
    for earlier in history:
        for arm, (kind, number) in earlier.items():
            if number is not None:
                assert final[arm] == (kind, number)


def test_decided_arms_drop_out_and_the_baseline_stays() -> None:
    rows, _ = run_live({"base": 0.0, "bad": 1.0, "good": 0.0}, RULE)
    last = {arm: max(number for number, name, _ in rows if name == arm) for arm in ("base", "bad", "good")}
    assert last["bad"] < last["good"] == last["base"]


def test_a_larger_declared_family_needs_more_evidence() -> None:
    rows = outcomes({"base": 0, "bad": 1}, 20)
    alone = decide(rows, baseline="base", rule=RULE)["bad"]
    family = decide(rows, baseline="base", rule=RULE, family=["bad", *(f"arm {n}" for n in range(30))])["bad"]
    assert alone.round is not None
    assert family.round is not None
    assert alone.round < family.round


def test_failed_trials_count_as_trials_but_prove_nothing() -> None:
    rows = outcomes({"base": 0, "arm": 0}, 4)
    rows += [(number, "crash", None) for number in range(4)]
    decision = decide(rows, baseline="base", rule=RULE)["crash"]
    assert (decision.runs, decision.failed, decision.closed) == (0, 4, False)
    assert decision.rate_low is None
    given_up = decide([*rows, (4, "crash", None), (4, "base", False)], baseline="base", rule=RULE)["crash"]
    assert given_up.closed
    assert "all 5 trials failed" in given_up.reason


def test_a_missing_round_holds_the_later_ones_back() -> None:
    rows = [row for row in outcomes({"base": 0, "bad": 1}, 12) if row[0] != 2]
    decision = decide(rows, baseline="base", rule=RULE)["bad"]
    assert not decision.closed
    assert "9 later rounds wait for round 2" in decision.reason


def test_the_trial_budget_closes_what_is_left_and_names_the_runs_needed() -> None:
    rule = StopRule(max_trials=16)
    rows = [*outcomes({"base": 0, "weak": 0}, 8), (3, "weak", True)]
    decision = decide(rows, baseline="base", rule=rule)["weak"]
    assert decision.closed
    assert decision.round == 7
    assert "budget of 16 trials is used up" in decision.reason
    assert "not enough runs: needs about" in decision.reason
    assert "per arm to tell 11 % from 0" in decision.reason


def test_the_wall_time_closes_what_is_left() -> None:
    rows = outcomes({"base": 0, "arm": 0}, 5)
    rule = StopRule(max_wall_s=60)
    assert open_arms(decide(rows, baseline="base", rule=rule, wall_s=59)) == ("arm",)
    assert "wall time of 60 s is used up" in decide(rows, baseline="base", rule=rule, wall_s=61)["arm"].reason


def test_all_rounds_run_leaves_an_undecided_arm_with_its_bound() -> None:
    decision = decide(outcomes({"base": 0, "arm": 0}, 10), baseline="base", rule=StopRule(rounds=10))["arm"]
    assert decision.closed
    assert decision.kind is Kind.UNDECIDED
    assert "all 10 rounds are run: 0/10: rate below 28 % (95 %, at every round)" in decision.reason


def test_rows_of_an_undeclared_arm_are_refused() -> None:
    with pytest.raises(ValueError, match="'b', which is not in the declared family: a"):
        decide(outcomes({"base": 0, "a": 0, "b": 0}, 2), baseline="base", rule=RULE, family=["a"])


def test_negative_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="numbered from 0"):
        decide([(-1, "a", True)], baseline="base", rule=RULE)


def test_no_rows_leave_every_declared_arm_open() -> None:
    decisions = decide([], baseline="base", rule=RULE, family=["a", "b"])
    assert open_arms(decisions) == ("a", "b")


FIXED = StopRule(kind="fixed", rounds=8, min_rounds=1)


def test_a_fixed_design_is_open_until_its_last_round() -> None:
    rows = outcomes({"base": 0, "bad": 1, "good": 0}, 8)
    before = decide([row for row in rows if row[0] < 7], baseline="base", rule=FIXED)
    assert open_arms(before) == ("bad", "good")
    after = decide(rows, baseline="base", rule=FIXED)
    assert after["bad"].kind is Kind.DIFFERS
    assert after["bad"].p_adjusted == pytest.approx(2 * 2 * 2.0**-16, rel=1e-3)
    assert after["bad"].e is None
    assert "0/8: rate below 31 % (95 %)" in after["good"].reason


def test_a_fixed_design_says_when_no_table_could_have_passed() -> None:
    rule = StopRule(kind="fixed", rounds=3, min_rounds=1)
    decision = decide(outcomes({"base": 0, "bad": 1, "good": 0}, 3), baseline="base", rule=rule)["bad"]
    assert decision.kind is Kind.UNDECIDED
    assert "cannot be decided at this size: 3 against 3 trials" in decision.reason


def test_a_large_fixed_design_shows_clean_and_equivalent_arms() -> None:
    rule = StopRule(kind="fixed", rounds=40, min_rounds=1)
    decisions = decide(outcomes({"base": 0, "good": 0}, 40), baseline="base", rule=rule)
    assert decisions["good"].kind is Kind.CLEAN_BELOW_BOUND
    same = decide(outcomes({"base": 1, "same": 1}, 40), baseline="base", rule=rule)["same"]
    assert same.kind is Kind.EQUIVALENT


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "group"}, "stop.kind: 'group' is not one of sequential, fixed"),
        ({"alpha": 5}, "stop.alpha: 5 does not lie strictly between 0 and 1"),
        ({"rounds": 0}, "stop.rounds: 0 is not a whole number"),
        ({"rounds": None}, "stop.rounds: None"),
        ({"clean_bound": "a"}, "stop.clean_bound: 'a'"),
        ({"max_wall_s": -1}, "stop.max_wall_s: -1"),
        ({"alfa": 0.1}, "unknown field stop.alfa; did you mean stop.alpha?"),
    ],
)
def test_bad_rules_are_refused_by_field(values: dict[str, object], message: str) -> None:
    with pytest.raises(StopRuleError) as error:
        stop_rule_from_mapping(values)
    assert message in str(error.value)
