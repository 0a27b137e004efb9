"""`isomatrix plan`: arms, forecast and time, plain when piped."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from isomatrix.matrix.forecast import forecast
from isomatrix.matrix.plan import Plan
from isomatrix.matrix.schema import trials_schema
from isomatrix.runner.past_times import PastTime, past_trial_time
from isomatrix.runner.plan_view import print_plan
from isomatrix.runner.store import ResultFolder
from rich.console import Console

Run = Callable[..., subprocess.CompletedProcess[str]]

WORDS = ("probe=text", "settings.n_threads=1,2", "settings.n_ubatch=512,31")


@pytest.fixture(scope="module")
def plan(composed_plan: Callable[..., Plan]) -> Plan:
    return composed_plan(*WORDS)


def stored(results: Path, name: str, plan: Plan, *wall_s: float, outcome: str = "ok") -> Path:
    """A result with trials that took these times."""
    folder = ResultFolder.create(results / name)
    folder.write_plan(plan.as_json())
    rows: list[dict[str, Any]] = [
        {"trial_id": f"t{number}", "arm": "baseline", "round": number, "outcome": outcome, "wall_s": seconds}
        for number, seconds in enumerate(wall_s)
    ]
    folder.compact(pa.Table.from_pylist(rows, schema=trials_schema()))
    return folder.path


def printed(plan: Plan, past: PastTime | None = None, *, terminal: bool = False) -> str:
    out = io.StringIO()
    print_plan(plan, Console(file=out, force_terminal=terminal, width=100), forecast(plan, [0.9, 0.3]), past)
    return out.getvalue()


def test_a_pipe_gets_tab_separated_arms_then_the_forecast_then_sentences(plan: Plan):
    arms, table, sentences = printed(plan).split("\n\n")
    assert [line.split("\t") for line in arms.splitlines()] == [
        ["baseline", "", ""],
        ["n_threads=2", "n_threads=2", "baseline"],
        ["n_ubatch=31", "n_ubatch=31", "baseline"],
    ]
    heading, *lines = [line.split("\t") for line in table.splitlines()]
    assert [(line[0], len(line) == len(heading)) for line in lines] == [("0.9", True), ("0.3", True)]
    assert "3 arms x at most 40 rounds = at most 120 trials; 2 contrasts" in sentences.splitlines()
    assert "\x1b" not in arms + table + sentences


def test_a_terminal_gets_tables_with_the_same_words(plan: Plan):
    shown = printed(plan, terminal=True)
    assert "\t" not in shown
    for word in ("n_ubatch=31", "compared with", "told apart", "2 contrasts"):
        assert word in shown


def test_time_is_that_of_the_named_result_and_is_not_made_up(plan: Plan):
    assert "No stored trial of this model and probe yet, so no estimate of the time." in printed(plan)
    line = next(line for line in printed(plan, PastTime(0.5, 9, "earlier")).splitlines() if line.startswith("Time:"))
    assert line.startswith("Time: at most 1 min 0 s, expected ")
    assert line.endswith("at 0.50 s a trial (median of 9 in earlier)")


def test_the_newest_result_with_the_same_question_gives_the_time(
    plan: Plan, composed_plan: Callable[..., Plan], tmp_path: Path
):
    assert past_trial_time(tmp_path / "nowhere", plan) is None
    stored(tmp_path, "same", plan, 1.0, 2.0, 9.0)
    stored(tmp_path, "another_prompt", composed_plan("probe=text", "probe.prompt=Hello"), 50.0)
    stored(tmp_path, "another_length", composed_plan("probe=text", "settings.max_tokens=5"), 50.0)
    stored(tmp_path, "all_failed", plan, 50.0, outcome="crash")
    (stored(tmp_path, "damaged", plan, 50.0) / "plan.json").write_text("{", encoding="utf-8")
    assert past_trial_time(tmp_path, plan) == PastTime(2.0, 3, "same")
    # Other settings of the same question are the same kind of trial.
    assert past_trial_time(tmp_path, composed_plan("probe=text", "settings.n_batch=64")) == PastTime(2.0, 3, "same")


def test_the_command_forecasts_the_rates_that_are_named_and_refuses_impossible_ones(isomatrix: Run):
    done = isomatrix("plan", *WORDS, "stop=fixed", "stop.rounds=3", "plan.rates=[0.8]", "plan.baseline_rate=0.1")
    assert done.returncode == 0, done.stderr
    assert [line.split("\t")[0] for line in done.stdout.split("\n\n")[1].splitlines()] == ["rate", "0.8"]
    assert "3 rounds cannot decide any of 2 contrasts whatever comes out: p = 0.0313 at best" in done.stdout
    refused = isomatrix("plan", *WORDS, "plan.rates=[1.2]")
    assert (refused.returncode, refused.stderr) == (2, "isomatrix: plan.rates: 1.2 is no rate between 0 and 1\n")
