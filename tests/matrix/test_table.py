from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from isomatrix.matrix.counts import ArmLabel, count_arms
from isomatrix.matrix.schema import trials_schema
from isomatrix.matrix.table import Table, arms_table


@pytest.fixture
def table() -> Callable[..., Table]:
    """`table(baseline=(corrupt, clean, failed), ...)`: the isolation table of such counts, each arm moving `axis`."""

    def make(**counts: tuple[int, int, int]) -> Table:
        rows: list[dict[str, Any]] = []
        for arm, (corrupt, clean, failed) in counts.items():
            verdicts = ["divergent"] * corrupt + ["identical"] * clean + ["failed"] * failed
            for number, verdict in enumerate(verdicts):
                rows.append(
                    {
                        "trial_id": f"{arm}{number}",
                        "arm": arm,
                        "round": number,
                        "outcome": "timeout" if verdict == "failed" else "ok",
                        "verdict": verdict,
                        "corrupt": None if verdict == "failed" else verdict == "divergent",
                        "first_divergent_position": 3 if verdict == "divergent" else None,
                        "wall_s": 1.5,
                    }
                )
        trials = pa.Table.from_pylist(rows, schema=trials_schema())
        labels = [ArmLabel(arm, "axis", arm, "" if arm == "baseline" else f"axis={arm}") for arm in counts]
        return arms_table(
            "title", count_arms(trials, labels, "baseline").to_pylist(), readings={"b": "differs (e = 41)"}
        )

    return make


def cells(table: Table, arm: str) -> dict[str, str]:
    (row,) = [row for row in table.rows if row.cells["arm"].value == arm]
    return {column: row.cells[column].text for column in table.columns}


def test_the_baseline_comes_first_and_every_arm_has_its_counts(table: Callable[..., Table]):
    shown = table(b=(2, 3, 0), baseline=(0, 5, 0))
    assert [row.cells["arm"].value for row in shown.rows] == ["baseline", "b"]
    assert cells(shown, "b")["corrupt"] == "2/5"
    assert cells(shown, "b")["verdicts"] == "3 identical, 2 divergent"
    assert cells(shown, "b")["first"] == "token 3"
    assert cells(shown, "b")["reading"] == "differs (e = 41)"
    assert cells(shown, "b")["time"] == "1.50 s"


def test_a_zero_has_its_upper_bound_and_a_whole_its_lower_one(table: Callable[..., Table]):
    shown = table(baseline=(0, 10, 0), all_bad=(10, 0, 0), some=(5, 5, 0))
    assert cells(shown, "baseline")["interval"] == "below 26 %"
    assert cells(shown, "all_bad")["interval"] == "above 74 %"
    assert cells(shown, "some")["interval"] == "50 % (19 to 81 %)"
    assert shown.heading("interval") == "rate, 95 %"


def test_failures_stand_beside_the_counts_and_never_in_them(table: Callable[..., Table]):
    shown = table(baseline=(0, 4, 0), b=(1, 1, 2))
    assert cells(shown, "b")["corrupt"] == "1/2"
    assert cells(shown, "b")["failed"] == "2 timeout"


def test_an_arm_in_which_no_trial_counts_has_no_rate(table: Callable[..., Table]):
    assert cells(table(baseline=(0, 1, 0), b=(0, 0, 3)), "b")["interval"] == "no trial counts"


def test_columns_in_which_nothing_was_seen_are_left_out(table: Callable[..., Table]):
    assert not {"failed", "first"} & set(table(baseline=(0, 3, 0), b=(0, 3, 0)).columns)
