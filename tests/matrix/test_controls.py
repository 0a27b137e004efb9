"""Controls: what passes, what fails, and what a failure does to a result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from isomatrix.matrix.analysis import analyse
from isomatrix.matrix.arm import Arm
from isomatrix.matrix.controls import Control, Status, control_arms, judge_controls
from isomatrix.matrix.plan import Plan
from isomatrix.matrix.plant import PlantError
from isomatrix.matrix.schema import trials_schema
from isomatrix.matrix.trials import RowTrials

BASELINE = Arm("baseline", "baseline", "baseline", (), "baseline", {"settings": {"n_threads": 1}})
OTHER = Arm("n_threads=2", "n_threads", "2", (("n_threads", "2"),), "baseline", {"settings": {"n_threads": 2}})
RIGHT, WRONG = (10, 11, 12, 13), (10, 90, 91, 92)
POSITIVE, NEGATIVE = control_arms(BASELINE, 0.5)


def row(arm: str, number: int, ids: Sequence[int] = RIGHT, **fields: Any) -> dict[str, Any]:
    request = {
        "request": 0,
        "token_ids": list(ids),
        "logits_digests": [hash(tuple(ids[: at + 1])) % 2**63 for at in range(len(ids))],
        "margins": [2.0] * len(ids),
        "top_ids": [[token, token + 500] for token in ids],
        "top_logits": [[10.0, 8.0] for _ in ids],
        "nan_counts": [0] * len(ids),
        "stop_reason": "max_tokens",
        "text": "",
    }
    return {
        "trial_id": f"{arm}-{number}",
        "arm": arm,
        "axis": "x",
        "round": number,
        "position": 0,
        "outcome": "ok",
        "settings": json.dumps({"temperature": 0.0}),
        "requests": [request],
        "n_requests": 1,
        **fields,
    }


def positive(number: int, fired: bool | None, corrupt: bool) -> dict[str, Any]:
    return row(POSITIVE.name, number, WRONG if corrupt else RIGHT, plant_fired=fired)


def plan(*arms: Arm, rounds: int = 10) -> Plan:
    stop = {"kind": "fixed", "rounds": rounds, "min_rounds": 1}
    return Plan(1, rounds, (BASELINE, *arms), stop, {"arm": "baseline", "ids": None})


def analysed(rows: Sequence[dict[str, Any]], *arms: Arm, rounds: int = 10) -> Any:
    return analyse(plan(*arms, rounds=rounds), pa.Table.from_pylist(list(rows), schema=trials_schema()))


def control(rows: Sequence[dict[str, Any]], arm: Arm) -> Control:
    baseline = [] if any(entry["arm"] == "baseline" for entry in rows) else [row("baseline", n) for n in range(10)]
    (found,) = analysed([*baseline, *rows], arm).controls
    return found


def test_the_positive_control_passes_when_every_fault_is_found_at_the_asked_rate():
    found = control([positive(n, fired=n % 2 == 0, corrupt=n % 2 == 0) for n in range(20)], POSITIVE)
    assert (found.status, found.n) == (Status.PASSED, 20)
    assert "all 10 planted faults found in 20 trials" in found.reason
    assert "holds the rate 50 %" in found.reason


def test_one_fault_that_is_judged_clean_fails_the_positive_control():
    rows = [positive(n, fired=n % 2 == 0, corrupt=n % 2 == 0 and n != 4) for n in range(20)]
    found = control(rows, POSITIVE)
    assert found.status is Status.FAILED
    assert "1 of 10 planted faults were judged as clean" in found.reason


def test_a_rate_outside_of_the_interval_fails_the_positive_control():
    found = control([positive(n, fired=True, corrupt=True) for n in range(20)], POSITIVE)
    assert found.status is Status.FAILED
    assert "does not hold the rate 50 %" in found.reason


def test_corruption_of_the_suspect_itself_is_not_held_against_the_positive_control():
    rows = [positive(n, fired=n % 2 == 0, corrupt=True) for n in range(20)]
    assert control(rows, POSITIVE).status is Status.PASSED


def test_the_positive_control_waits_until_a_fault_has_fired_and_been_judged():
    assert control([], POSITIVE).status is Status.NOT_YET
    assert control([positive(0, fired=False, corrupt=False)], POSITIVE).status is Status.NOT_YET
    crashed = row(POSITIVE.name, 0, outcome="crash", requests=[], plant_fired=True)
    assert control([crashed], POSITIVE).reason == "no judged trial, 1 failed"


def test_a_worker_that_does_not_say_whether_the_fault_fired_fails_the_positive_control():
    found = control([positive(0, fired=None, corrupt=True)], POSITIVE)
    assert found.status is Status.FAILED
    assert "did not say" in found.reason


def negative(bad: int, total: int = 10, **fields: Any) -> list[dict[str, Any]]:
    return [row(NEGATIVE.name, n, WRONG if n < bad else RIGHT, **(fields if n < bad else {})) for n in range(total)]


def test_the_negative_control_passes_when_both_names_give_the_same():
    found = control(negative(0), NEGATIVE)
    assert (found.status, found.n) == (Status.PASSED, 10)


def test_the_negative_control_waits_for_enough_trials_to_show_anything():
    found = control([*[row("baseline", n) for n in range(4)], *negative(0, 4)], NEGATIVE)
    assert found.status is Status.NOT_YET
    assert "too few" in found.reason


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (negative(9), "corrupt: 9/10 against the baseline's 0/10"),
        (negative(10, 16, outcome="crash", requests=[], n_requests=0), "failed: 10/16 against the baseline's 0/10"),
    ],
)
def test_corruption_or_failures_under_one_name_only_fail_the_negative_control(rows: list[Any], what: str):
    found = control(rows, NEGATIVE)
    assert found.status is Status.FAILED
    assert what in found.reason


def test_other_logits_with_equal_tokens_under_one_name_fail_the_negative_control():
    rows = negative(0)
    for entry in rows:
        entry["requests"][0]["logits_digests"] = [1, 2, 3, 4]
    found = control(rows, NEGATIVE)
    assert found.status is Status.FAILED
    assert "other logits than the usual ones: 10/10 against the baseline's 0/10" in found.reason


def test_a_baseline_that_is_unstable_under_both_names_passes():
    baseline = [row("baseline", n, WRONG if n % 3 == 0 else RIGHT) for n in range(10)]
    assert control([*baseline, *negative(3)], NEGATIVE).status is Status.PASSED


def test_a_failed_control_stands_in_the_first_line_and_marks_the_whole_result():
    rows = [row("baseline", n) for n in range(10)] + [positive(n, fired=True, corrupt=False) for n in range(10)]
    analysis = analysed(rows, POSITIVE)
    assert analysis.invalid
    assert (
        analysis.table("title")
        .summary[0]
        .startswith("INVALID, nothing below counts: Positive control failed: 10 of 10 planted faults")
    )


def test_controls_that_pass_are_told_below_and_leave_the_first_line_alone():
    rows = [row("baseline", n) for n in range(10)] + negative(0)
    analysis = analysed(rows, NEGATIVE)
    table = analysis.table("title")
    assert not analysis.invalid
    assert not any("INVALID" in line for line in table.summary)
    assert any(note.startswith("Negative control passed") for note in table.notes)


def test_controls_take_no_part_in_the_family_and_cost_no_alpha():
    rows = [row(arm, n, ids) for n in range(10) for arm, ids in (("baseline", RIGHT), ("n_threads=2", WRONG))]
    controls = [positive(n, fired=True, corrupt=True) for n in range(10)] + negative(0)
    alone = analysed(rows, OTHER).decisions
    beside = analysed([*rows, *controls], OTHER, POSITIVE, NEGATIVE).decisions
    assert beside == alone
    assert plan(OTHER, POSITIVE, NEGATIVE).contrasts() == [("n_threads=2", "baseline")]


def test_controls_run_along_until_the_last_arm_is_decided():
    sequential = {"kind": "sequential", "rounds": 40, "min_rounds": 1}
    arms = plan(OTHER, POSITIVE, NEGATIVE)
    young = [row(arm.name, 0, plant_fired=False) for arm in arms.arms]
    grown = [row(arm.name, n, WRONG if arm is OTHER else RIGHT) for n in range(20) for arm in (BASELINE, OTHER)]
    for rows, opened in ((young, {arm.name for arm in arms.arms}), (grown, set())):
        table = pa.Table.from_pylist(rows, schema=trials_schema())
        assert analyse(replace(arms, stop=sequential), table).open_arms == opened


def test_controls_are_refused_on_a_planted_baseline_and_at_an_impossible_rate():
    with pytest.raises(PlantError, match="the baseline has a planted fault itself"):
        control_arms(replace(BASELINE, configuration=POSITIVE.configuration), 0.5)
    with pytest.raises(PlantError, match="controls.rate: 0 is no probability above 0"):
        control_arms(BASELINE, 0)


def test_rows_and_order_of_rows_make_no_difference():
    rows = [row("baseline", n) for n in range(10)] + negative(4)
    judged = analysed(rows, NEGATIVE).trials.to_pylist()
    arms = (BASELINE, NEGATIVE)
    assert judge_controls(arms, RowTrials(judged)) == judge_controls(arms, judged[::-1])
