"""The words of cells and of the sentences above the table: nothing without its number."""

from __future__ import annotations

from typing import Any

import pytest
from isomatrix.matrix.analysis import Analysis, analyse
from isomatrix.matrix.arm import Arm
from isomatrix.matrix.plan import Plan

GOOD, OTHER = [1, 2, 3, 4, 5, 6], [1, 2, 800, 801, 802, 803]


def arm(name: str, reference: str = "baseline") -> Arm:
    changes = () if name == "baseline" else ((name, "1"),)
    return Arm(name, name, "1", changes, reference, {"settings": {}, "probe": {"kind": "text"}, "model": {}})


@pytest.fixture
def analysed(build: Any) -> Any:
    """`analysed({"kind": ...}, baseline="..#", a="##x")`: the real judge over rows; one letter a round."""

    def analysed(stop: dict[str, Any], **letters: str) -> Analysis:
        rows = []
        for name, word in letters.items():
            for number, letter in enumerate(word):
                if letter == "x":
                    rows.append(build.row(name, number=number, outcome="crash", n_requests=0))
                else:
                    ids = OTHER if letter == "#" else GOOD
                    # Another shift for every arm, so that no arm is inert.
                    rows.append(build.row(name, build.request(ids, shift=0.01 * len(name)), number=number))
        rounds = stop["rounds"]
        plan = Plan(1, rounds, tuple(arm(name) for name in letters), stop, {"ids": GOOD})
        return analyse(plan, build.table(rows))

    return analysed


def test_what_differs_is_told_with_counts_and_evidence(analysed: Any) -> None:
    result = analysed({"kind": "fixed", "rounds": 10}, baseline="." * 10, bad="#" * 10, good="." * 10)
    counts, differs, rest = result.table("t").summary
    assert counts == "30 trials in 3 arms: 10 corrupt, 0 failed."
    assert differs == "bad differs from the baseline: 10/10 against 0/10 corrupt (p < 0.0001)."
    assert rest == "Undecided: good (about 23 runs per arm without a corrupt one would show a rate below 15 %)."
    cells = {row.cells["arm"].value: row.cells for row in result.table("t").rows}
    assert [cells[name]["reading"].text for name in ("bad", "good")] == [
        "differs (p < 0.0001)",
        "undecided: needs about 23 runs",
    ]


def test_the_sequential_rule_tells_e_and_the_bound_that_is_shown(analysed: Any) -> None:
    result = analysed({"kind": "sequential", "rounds": 40}, baseline="." * 30, bad="#" * 30, good="." * 30)
    _, differs, rest = result.table("t").summary
    assert differs.startswith("bad differs from the baseline: 5/5 against 0/5 corrupt (e = ")
    assert rest == "Shown to have a rate below 15 % (95 %): good."
    assert result.decisions["good"].round == 24  # from 0


def test_an_undecided_arm_names_the_runs_that_would_tell_its_rate(analysed: Any) -> None:
    result = analysed({"kind": "fixed", "rounds": 10}, baseline="." * 10, rare="##........")
    assert result.decisions["rare"].needed_runs == 33
    assert result.table("t").summary[1:] == (
        "No arm was shown to differ from its reference arm (1 contrast).",
        "Undecided: rare (about 33 runs per arm would tell 20 % from 0).",
    )


def test_no_failure_is_a_bound_and_not_a_rate_of_zero(analysed: Any) -> None:
    table = analysed({"kind": "fixed", "rounds": 10}, baseline="." * 10, bad="#" * 10, some="###.......").table("t")
    assert [row.cells["interval"].text for row in table.rows] == ["below 26 %", "above 74 %", "30 % (6.7 to 65 %)"]
    assert table.heading("interval") == "rate, 95 %"


def test_the_level_of_the_intervals_is_one_minus_alpha(analysed: Any) -> None:
    stop = {"kind": "fixed", "rounds": 10, "alpha": 0.2}
    table = analysed(stop, baseline="." * 10).table("t")
    assert table.heading("interval") == "rate, 80 %"
    assert table.rows[0].cells["interval"].text == "below 15 %"  # 1 - 0.2^(1/10)


def test_a_watched_run_has_bounds_that_hold_at_every_round(analysed: Any) -> None:
    table = analysed({"kind": "sequential", "rounds": 40}, baseline="." * 10).table("t")
    assert table.heading("interval") == "rate, 95 % at every round"
    assert table.rows[0].cells["interval"].text == "below 28 %"


def test_failed_trials_have_a_rate_of_their_own(analysed: Any) -> None:
    result = analysed({"kind": "fixed", "rounds": 10}, baseline="." * 10, crashing="......." + "xxx")
    row = result.arms.to_pylist()[1]
    assert (row["n"], row["n_failed"], row["failed_rate"]) == (7, 3, 0.3)
    assert (row["failed_rate_low"], row["failed_rate_high"]) == pytest.approx((0.0667, 0.6525), abs=1e-4)
    assert any("crashing: 3/10 crash, 30 %" in note for note in result.table("t").notes)


def test_arms_that_never_gave_a_verdict_are_undecided_with_their_failures(analysed: Any) -> None:
    result = analysed({"kind": "sequential", "rounds": 40}, baseline="." * 6, crashing="xxxxx")
    assert "crashing (no judged trial in 5)" in result.table("t").summary[2]


def test_inert_arms_are_not_told_as_shown_to_be_good(build: Any) -> None:
    rows = [build.row(name, build.request(GOOD), number=n) for name in ("baseline", "idle") for n in range(30)]
    plan = Plan(1, 40, (arm("baseline"), arm("idle")), {"kind": "sequential", "rounds": 40}, {"ids": GOOD})
    result = analyse(plan, build.table(rows))
    assert result.decisions["idle"].kind.value == "clean_below_bound"
    assert result.table("t").summary[2] == "Without any effect here, so that nothing is known about the setting: idle."


def test_many_arms_are_named_up_to_six(analysed: Any) -> None:
    letters = {f"arm{number}": "." * 25 for number in range(9)}
    summary = analysed({"kind": "sequential", "rounds": 40}, baseline="." * 25, **letters).table("t").summary
    assert summary[2] == "Shown to have a rate below 15 % (95 %): arm0, arm1, arm2, arm3, arm4, arm5 and 3 more."


def test_findings_stand_on_top_below_and_apart(analysed: Any) -> None:
    stop = {"kind": "fixed", "rounds": 20}
    moving = "." * 10 + "#" * 10
    table = analysed(stop, baseline=moving, bad="#" * 20, good="." * 20).table("t")
    assert table.summary[0].startswith("Warning: the baseline's rate moved: 0/10 (0) in the first half")
    assert any(note.startswith("Contrasts against baseline within rounds") for note in table.notes)
    assert table.exploratory == ("bad 20/20 against good 0/20: p < 0.0001 (Boschloo, Holm over 1 pair).",)


def test_budgets_are_counted_from_the_rows(analysed: Any) -> None:
    # Trial `number` of the builder takes 1 + number seconds: two arms of three rounds take 12 s.
    used = analysed({"kind": "sequential", "rounds": 40, "max_wall_s": 12.0}, baseline="...", a="...")
    assert "the wall time of 12 s is used up" in used.decisions["a"].reason
    left = analysed({"kind": "sequential", "rounds": 40, "max_wall_s": 12.5}, baseline="...", a="...")
    assert not left.decisions["a"].closed
    trials = analysed({"kind": "sequential", "rounds": 40, "max_trials": 6}, baseline="...", a="...")
    assert "the budget of 6 trials is used up" in trials.decisions["a"].reason
