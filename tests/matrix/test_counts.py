"""Counts: corruption over judged trials, failures beside it, no rate without a trial, no trial lost."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from isomatrix.matrix.counts import ArmLabel, count_arms
from isomatrix.matrix.schema import arms_schema
from isomatrix.matrix.verdict import judge_table

GOOD, BAD = [1, 2, 3], [41, 42, 43]


def judged(build: Any, rows: list[dict[str, Any]]) -> Any:
    return judge_table(build.table(rows), "baseline")


def sample(build: Any) -> list[dict[str, Any]]:
    good, bad = build.request(GOOD, text="fine words"), build.request(BAD, text="other words")
    drift = build.request(GOOD, text="fine words", shift=0.01)
    return [
        *[build.row("baseline", good, number=n) for n in range(3)],
        *[build.row("arm", request, number=n) for n, request in enumerate([good, drift, bad, bad])],
        build.row("arm", number=4, outcome="timeout"),
        build.row("arm", good, number=5, native_log="CUDA error: lost\n"),
    ]


def by_arm(table: Any) -> dict[str, dict[str, Any]]:
    return {row["arm"]: row for row in table.to_pylist()}


def test_every_trial_is_counted_once(build: Any) -> None:
    arm = by_arm(count_arms(judged(build, sample(build)), ["baseline", "arm"]))["arm"]
    assert (arm["n"], arm["n_corrupt"], arm["n_failed"]) == (4, 2, 2)
    assert (arm["n_identical"], arm["n_drift"], arm["n_divergent"], arm["n_garbage"]) == (1, 1, 2, 0)
    assert json.loads(arm["outcomes"]) == {"backend_error": 1, "ok": 4, "timeout": 1}
    assert arm["first_divergent_position"] == 0


def test_the_interval_is_clopper_pearson(build: Any) -> None:
    arm = by_arm(count_arms(judged(build, sample(build)), ["baseline", "arm"]))["arm"]
    assert arm["rate"] == 0.5
    assert (arm["rate_low"], arm["rate_high"]) == pytest.approx((0.0676, 0.9324), abs=1e-4)


def test_an_arm_without_trials_has_no_rate(build: Any) -> None:
    label = ArmLabel("planned", axis="n_ubatch", level="31", changes="n_ubatch=31")
    arm = by_arm(count_arms(judged(build, sample(build)), ["baseline", "arm", label]))["planned"]
    assert (arm["n"], arm["rate"], arm["rate_low"], arm["changes"]) == (0, None, None, "n_ubatch=31")
    assert arm["effect"] == "unknown"


def test_failures_alone_give_no_rate(build: Any) -> None:
    rows = [*sample(build), build.row("dead", outcome="crash")]
    arm = by_arm(count_arms(judged(build, rows), ["baseline"]))["dead"]
    assert (arm["n"], arm["n_failed"], arm["rate"]) == (0, 1, None)


def test_arms_keep_their_order_and_unlisted_ones_follow(build: Any) -> None:
    table = count_arms(judged(build, sample(build)), ["baseline"])
    assert table.column("arm").to_pylist() == ["baseline", "arm"]
    assert table.schema == arms_schema()


def test_instability_is_counted_among_ok_trials(build: Any) -> None:
    arm = by_arm(count_arms(judged(build, sample(build)), ["baseline", "arm"]))["arm"]
    assert (arm["n_distinct_digests"], arm["n_distinct_tokens"], arm["n_off_mode"]) == (3, 2, 2)


def test_requests_of_one_process_that_differ_are_counted(build: Any) -> None:
    first, second = build.request(GOOD), build.request(GOOD, shift=0.01)
    rows = [build.row("baseline", first, second, first, number=n) for n in range(2)]
    baseline = by_arm(count_arms(judged(build, rows), ["baseline"]))["baseline"]
    assert baseline["n_requests_differ"] == 2
    assert baseline["n_off_mode"] == 0


def test_equivalent_arms_name_each_other(build: Any) -> None:
    moved = build.request(GOOD, shift=0.01)
    rows = [*sample(build), *[build.row(name, moved, number=n) for name in ("a", "b") for n in range(2)]]
    counts = by_arm(count_arms(judged(build, rows), ["baseline"]))
    assert (counts["a"]["equivalent_to"], counts["b"]["equivalent_to"]) == ("b", "a")
    assert counts["arm"]["equivalent_to"] is None


def test_counts_do_not_depend_on_the_order_of_trials(build: Any) -> None:
    rows = sample(build)
    expected = count_arms(judged(build, rows), ["baseline", "arm"])
    for seed in range(4):
        random.Random(seed).shuffle(rows)
        assert count_arms(judged(build, rows), ["baseline", "arm"]).equals(expected)


def test_trials_without_a_verdict_are_refused(build: Any) -> None:
    with pytest.raises(ValueError, match="baseline-0 has none"):
        count_arms(build.table(sample(build)), ["baseline"])
