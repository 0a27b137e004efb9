from __future__ import annotations

import dataclasses
import json

import pytest
from isomatrix.matrix.arm import Arm
from isomatrix.matrix.plan import Plan, PlanError


def configuration(**changes: object) -> dict[str, object]:
    return {
        "settings": {"n_ctx": 64, **changes},
        "model": {"sha256": "ab"},
        "files": {"model": "/somewhere/m.gguf"},
        "limits": {"wall_s": 1.0},
    }


def make_plan(rounds: int = 3, seed: int = 1) -> Plan:
    arms = (
        Arm("baseline", "baseline", "baseline", (), "baseline", configuration()),
        Arm("n_batch=8", "n_batch", "8", (("n_batch", "8"),), "baseline", configuration(n_batch=8)),
        Arm("a/b: odd", "several", "several", (("x", "1"), ("y", "2")), "baseline", configuration(x=1, y=2)),
    )
    return Plan(seed, rounds, arms, {"kind": "fixed"}, {"arm": "baseline", "ids": None}, ("a note",))


def test_a_plan_survives_its_own_json():
    plan = make_plan()
    assert Plan.from_json(plan.as_json()) == plan


def test_trial_ids_are_unique_safe_as_file_names_and_equal_after_a_round_trip():
    plan = make_plan()
    ids = [trial.trial_id for index in range(3) for trial in plan.round_trials(index)]
    assert len(set(ids)) == 9
    assert all("/" not in i and " " not in i and i.startswith("r000") for i in ids)
    again = Plan.from_json(plan.as_json())
    assert [trial.trial_id for index in range(3) for trial in again.round_trials(index)] == ids


def test_a_trial_id_depends_on_what_can_change_the_result_and_on_nothing_else():
    plan, arm = make_plan(), make_plan().baseline
    moved = dataclasses.replace(arm, configuration={**configuration(), "files": {"model": "/else/m.gguf"}})
    longer = dataclasses.replace(arm, configuration={**configuration(), "limits": {"wall_s": 9.0}})
    other = dataclasses.replace(arm, configuration={**configuration(), "model": {"sha256": "cd"}})
    assert plan.trial_id(moved, 0) == plan.trial_id(arm, 0)
    assert plan.trial_id(longer, 0) == plan.trial_id(arm, 0)
    assert plan.trial_id(other, 0) != plan.trial_id(arm, 0)
    assert plan.trial_id(arm, 1) != plan.trial_id(arm, 0)


def test_each_round_has_its_own_order_that_the_seed_repeats():
    plan = make_plan()
    orders = [[trial.arm for trial in plan.round_trials(index)] for index in range(20)]
    assert len({tuple(order) for order in orders}) > 1
    assert orders == [[trial.arm for trial in make_plan().round_trials(index)] for index in range(20)]
    assert orders != [[trial.arm for trial in make_plan(seed=2).round_trials(index)] for index in range(20)]


def test_closing_an_arm_does_not_reorder_the_others():
    plan = make_plan()
    for index in range(10):
        whole = [trial.arm for trial in plan.round_trials(index) if trial.arm != "n_batch=8"]
        part = [trial.arm for trial in plan.round_trials(index, {"baseline", "a/b: odd"})]
        assert part == whole


def test_more_rounds_are_the_same_experiment_and_another_setting_is_not():
    plan = make_plan()
    assert plan.differences(make_plan(rounds=9)) == []
    changed = dataclasses.replace(
        plan, arms=(dataclasses.replace(plan.arms[0], configuration=configuration(n_ctx=65)), *plan.arms[1:])
    )
    assert changed.differences(plan) == ["arm 'baseline': settings.n_ctx differs"]
    fewer = dataclasses.replace(plan, arms=plan.arms[:2])
    assert fewer.differences(plan) == ["arm 'a/b: odd' is gone"]
    assert plan.differences(fewer) == ["arm 'a/b: odd' is new"]


def test_a_newer_or_broken_plan_is_refused_in_words():
    newer = json.dumps({**json.loads(make_plan().as_json()), "version": 99})
    with pytest.raises(PlanError, match="newer than 1; update isomatrix"):
        Plan.from_json(newer)
    with pytest.raises(PlanError, match="not a plan"):
        Plan.from_json("{}")
    with pytest.raises(PlanError, match="not a plan"):
        Plan.from_json("{")


def test_a_plan_without_arms_or_with_one_name_twice_is_refused():
    plan = make_plan()
    with pytest.raises(PlanError, match="at least one arm"):
        dataclasses.replace(plan, arms=())
    with pytest.raises(PlanError, match="two arms have one name: baseline"):
        dataclasses.replace(plan, arms=(plan.arms[0], plan.arms[0]))
    with pytest.raises(PlanError, match="rounds"):
        dataclasses.replace(plan, rounds=0)
