"""Whole runs with planted faults: the harness must find what was put there, at the rate at which it was put."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from isomatrix.matrix.plan import Plan
from isomatrix.matrix.statistics.interval import clopper_pearson
from isomatrix.runner.errors import UserError
from isomatrix.runner.launch import run_or_plan
from isomatrix.runner.main import main
from isomatrix.runner.result import LoadedResult, load_result

Run = Callable[..., CompletedProcess[str]]
TEXT = ("probe=text", "axes=none", "settings.n_threads=1", "settings.max_tokens=12", "stop=fixed", "run.name=it")
MARK = "[planted]"


def stored(folder: Path, *words: str) -> LoadedResult:
    """Run the text probe in this process, with these words, and read the result back."""
    assert run_or_plan("run", [*TEXT, f"run.results={folder}", *words]) == 0
    return load_result(str(folder / "it"))


def rows(result: LoadedResult, arm: str) -> list[dict[str, Any]]:
    return [row for row in result.analysis.trials.to_pylist() if row["arm"] == arm]


def names(plan: Plan) -> list[str]:
    return [arm.name for arm in plan.arms]


# the plan


def test_a_plant_is_an_axis_and_its_arms_are_marked(composed_plan: Callable[..., Plan]):
    plan = composed_plan("probe=text", "plant=none,flip_token", "plant.rate=0.5")
    assert names(plan) == ["baseline", f"plant=flip_token {MARK}"]
    assert "plant" not in plan.baseline.configuration
    assert plan.arms[1].configuration["plant"]["rate"] == 0.5


def test_arms_of_a_planted_baseline_are_planted_too_and_one_of_them_can_be_the_reference(
    composed_plan: Callable[..., Plan],
):
    plan = composed_plan(
        *("probe=text", "plant=abort", "settings.op_offload=true,false", "reference.arm=op_offload=false"),
    )
    assert names(plan) == ["baseline", f"op_offload=false {MARK}"]
    assert plan.reference["arm"] == f"op_offload=false {MARK}"


def test_named_arms_give_each_plant_its_own_parameters(composed_plan: Callable[..., Plan]):
    plan = composed_plan(
        "probe=text",
        "axes=none",
        "arms.a={plant: flip_token, plant.rate: 0.2}",
        "arms.b={plant: node_error, plant.node: ffn_out-2, plant.when: {n_ubatch: '>=32'}}",
    )
    assert plan.arms[1].configuration["plant"]["rate"] == 0.2
    assert plan.arms[2].configuration["plant"]["when"] == {"n_ubatch": ">=32"}


def test_a_plant_changes_the_trial_id_and_no_plant_leaves_it_as_it_was(composed_plan: Callable[..., Plan]):
    plain, planted = composed_plan("probe=text", "axes=none"), composed_plan("probe=text", "axes=none", "plant=abort")
    other = composed_plan("probe=text", "axes=none", "plant=abort", "plant.seed=2")
    ids = [plan.trial_id(plan.baseline, 0) for plan in (plain, planted, other)]
    assert len(set(ids)) == 3
    assert "plant" not in json.loads(plain.as_json())["arms"][0]["configuration"]


def test_controls_add_two_arms_that_are_not_merged_and_have_no_contrast(composed_plan: Callable[..., Plan]):
    plan = composed_plan("probe=text", "settings.n_ubatch=512,31", "controls=on", "controls.rate=0.25")
    assert names(plan) == ["baseline", "n_ubatch=31", f"positive control {MARK}", "negative control"]
    assert plan.contrasts() == [("n_ubatch=31", "baseline")]
    assert plan.arms[2].configuration["plant"]["rate"] == 0.25
    assert plan.arms[3].configuration == plan.baseline.configuration
    assert plan.trial_id(plan.arms[3], 0) != plan.trial_id(plan.baseline, 0)
    assert Plan.from_json(plan.as_json()) == plan


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("plant=flip",), "plant: 'flip' is not one of|Could not find 'plant/flip'"),
        (("plant=none,flip",), "plant: 'flip' is not one of abort, allocate"),
        (("plant=abort", "plant.node=x"), "plant.node: plant abort has no such parameter"),
        (("plant=none,abort", "plant.rate=2"), "arm 'plant=abort': plant.rate: 2 is no probability"),
        (("plant=allocate",), "set run.limits.memory_gb"),
        (("plant=abort", "controls=on"), "controls: the baseline has a planted fault itself"),
        (("controls=on", "controls.rate=0"), "controls.rate: 0.0 is no probability above 0"),
        (("controls=on,off",), "controls describes the experiment"),
    ],
)
def test_what_makes_no_sense_is_refused(composed_plan: Callable[..., Plan], words: tuple[str, ...], sentence: str):
    with pytest.raises((UserError, Exception), match=sentence):
        composed_plan("probe=text", "axes=none", *words)


# what each kind comes to

KINDS = (
    "stop.rounds=2",
    "probe.requests=3",
    "arms.flip={plant: flip_token}",
    "arms.node={plant: node_error, plant.node: l_out-0, plant.size: 1}",
    "arms.keep={plant: keep_kv, process: persistent}",
    "arms.abort={plant: abort}",
    "arms.hang={plant: hang, plant.stage: load, run.limits.wall_s: 2}",
    "arms.grow={plant: allocate, run.limits.memory_gb: 0.5}",
    "arms.rubbish={plant: stdout}",
)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> LoadedResult:
    """One run with every kind at rate 1."""
    return stored(tmp_path_factory.mktemp("kinds"), *KINDS)


@pytest.mark.parametrize(
    ("arm", "outcome", "verdicts"),
    [
        ("flip", "ok", {"divergent", "garbage"}),
        ("node", "ok", {"divergent", "garbage"}),
        ("keep", "ok", {"divergent", "garbage"}),
        ("abort", "crash", {"failed"}),
        ("hang", "timeout", {"failed"}),
        ("grow", "out_of_memory", {"failed"}),
        ("rubbish", "ok", {"identical"}),
    ],
)
def test_every_kind_is_found_for_what_it_is(kinds: LoadedResult, arm: str, outcome: str, verdicts: set[str]):
    found = rows(kinds, f"{arm} {MARK}")
    assert [row["outcome"] for row in found] == [outcome] * 2
    assert {row["verdict"] for row in found} <= verdicts
    assert [row["plant_fired"] for row in found] == [True] * 2


def test_the_row_says_what_was_hit(kinds: LoadedResult):
    assert set(json.loads(rows(kinds, f"node {MARK}")[0]["plant_report"])["nodes"]) == {"l_out-0"}
    assert "planted rubbish" in rows(kinds, f"rubbish {MARK}")[0]["stdout_tail"]
    assert rows(kinds, f"keep {MARK}")[0]["requests_differ"] is True
    assert [request["kv_cells_before"] > 0 for request in rows(kinds, f"keep {MARK}")[0]["requests"]] == [
        False,
        True,
        True,
    ]
    baseline = rows(kinds, "baseline")[0]
    assert (baseline["plant"], baseline["plant_fired"], baseline["plant_report"]) == (None, None, None)


def test_planted_arms_are_marked_in_every_form_and_counted_apart(kinds: LoadedResult, tmp_path: Path):
    table, path = kinds.table(), str(kinds.folder.path)
    marked = {row.cells["arm"].value: MARK in row.cells["arm"].text for row in table.rows}
    assert marked == {"baseline": False, **{arm.name: True for arm in kinds.analysis.plan.arms[1:]}}
    assert len(marked) == 8
    for form in ("csv", "json"):
        assert main(["report", path, "--format", form, "--output", str(tmp_path / form)]) == 0
    lines = list(csv.DictReader((tmp_path / "csv").read_text().splitlines()))
    arms = json.loads((tmp_path / "json").read_text())["arms"]
    for form in (lines, arms):
        assert [(MARK in arm["arm"], bool(arm["planted"])) for arm in form] == [(False, False)] + [(True, True)] * 7
    assert any("0 corrupt, 0 failed; 14 trials in 7 arms [planted]: 6 corrupt, 6 failed" in s for s in table.summary)


def test_a_planted_baseline_is_told_in_the_first_line_and_in_its_row(tmp_path: Path):
    table = stored(tmp_path, "plant=flip_token", "stop.rounds=2").table()
    assert table.summary[0].startswith("The baseline is [planted] (flip_token)")
    assert table.rows[0].cells["arm"].text == "baseline [planted]: flip_token"


@pytest.mark.slow
def test_a_fault_that_needs_a_setting_and_large_batches_is_isolated(tmp_path: Path):
    """A fault that only strikes with op_offload, for batches of 16 rows or more: two settings rescue, one does not."""
    result = stored(
        *(tmp_path, "stop.rounds=5", "plant=node_error", "plant.min_rows=16"),
        *("plant.when={op_offload: true}", "settings.op_offload=true,false", "settings.n_ubatch=512,8"),
        *("settings.warmup=false,true", "reference.arm=op_offload=false"),
    )
    kinds = {arm.removesuffix(f" {MARK}"): one.kind.value for arm, one in result.analysis.decisions.items()}
    assert kinds == {"op_offload=false": "differs", "n_ubatch=8": "differs", "warmup=true": "undecided"}
    assert [set(group) for group in result.analysis.equivalent] == [{f"op_offload=false {MARK}", f"n_ubatch=8 {MARK}"}]
    notes = " ".join(result.table().notes)
    assert "when: op_offload is False, not True" in notes
    assert "node 'l_out-0' never had 16 rows; 8 at most" in notes


@pytest.mark.slow
def test_a_replay_draws_the_same(isomatrix: Run, tmp_path: Path):
    result = stored(tmp_path, "plant=none,flip_token", "plant.rate=0.5", "stop.rounds=3")
    for row in rows(result, f"plant=flip_token {MARK}"):
        done = isomatrix("replay", str(tmp_path / "it"), row["trial_id"])
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_passing_controls_leave_the_result_valid(tmp_path: Path):
    result = stored(tmp_path, "controls=on", "stop.rounds=7")
    assert [control.status.value for control in result.analysis.controls] == ["passed", "passed"]
    assert not any("INVALID" in line for line in result.table().summary)


# rates


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1.0, 0.5, 0.2])
def test_flips_are_found_at_their_rate_and_nothing_else_is(tmp_path: Path, rate: float):
    result = stored(tmp_path, "plant=none,flip_token", f"plant.rate={rate}", "stop.rounds=40")
    found = rows(result, f"plant=flip_token {MARK}")
    assert all(row["corrupt"] == row["plant_fired"] for row in found)
    assert all(row["verdict"] == "identical" for row in found if not row["plant_fired"])
    fired = clopper_pearson(sum(row["plant_fired"] for row in found), len(found), 0.99)
    assert fired.low <= rate <= fired.high
    assert all(row["verdict"] == "identical" for row in rows(result, "baseline"))


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1.0, 0.5, 0.2])
def test_node_errors_are_found_at_their_rate_and_nothing_else_is(tmp_path: Path, rate: float):
    result = stored(
        *(tmp_path, "plant=none,node_error", f"plant.rate={rate}", "plant.size=1", "stop.rounds=40"),
    )
    found = rows(result, f"plant=node_error {MARK}")
    assert all(row["corrupt"] == row["plant_fired"] for row in found)
    assert all(row["verdict"] == "identical" for row in found if not row["plant_fired"])
    fired = clopper_pearson(sum(row["plant_fired"] for row in found), len(found), 0.99)
    assert fired.low <= rate <= fired.high


OUTCOMES = {"keep": "ok", "abort": "crash", "hang": "timeout", "grow": "out_of_memory", "rubbish": "ok"}


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.5, 0.2])
def test_every_other_kind_shows_where_it_fired_and_only_there(tmp_path: Path, rate: float):
    kinds = [word.removesuffix("}") + f", plant.rate: {rate}}}" for word in KINDS if word.startswith("arms.")]
    wanted = [word for word in kinds if word.split("=")[0].removeprefix("arms.") in OUTCOMES]
    result = stored(tmp_path, *wanted, "probe.requests=3", "stop.rounds=20")
    for name, outcome in OUTCOMES.items():
        found = rows(result, f"{name} {MARK}")
        fired = [row for row in found if row["plant_fired"]]
        assert {row["outcome"] for row in fired} <= {outcome}
        assert all((row["outcome"], row["verdict"]) == ("ok", "identical") for row in found if not row["plant_fired"])
        assert all(row["corrupt"] is True for row in fired if name == "keep")
        assert [row["plant_fired"] for row in found if name == "rubbish"] == [
            row["stdout_tail"] is not None for row in found if name == "rubbish"
        ]
        share = clopper_pearson(len(fired), len(found), 0.999)  # ten arms are looked at
        assert share.low <= rate <= share.high
