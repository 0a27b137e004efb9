"""Reference logits: recorded by real workers, kept with what proves them, laid out for workers, or refused."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from isomatrix.matrix.plan import Plan
from isomatrix.runner import session
from isomatrix.runner.reference_logits import ReferenceLogits, prepared, read_reference_logits, record
from isomatrix.runner.round import _run, trial_request
from isomatrix.runner.store import ResultFolder, StoreError
from isomatrix.runner.trial import run_trial

Compose = Callable[..., Plan]
TINY = ("probe=text", "settings.n_threads=1", "settings.n_threads_batch=1", "settings.max_tokens=6", "axes=none")


def recorded(plan: Plan, folder: ResultFolder) -> ReferenceLogits:
    logits = record(plan, folder, trial_request, functools.partial(_run, plan))
    assert logits is not None
    return logits


@pytest.fixture
def folder(tmp_path: Path) -> ResultFolder:
    return ResultFolder.create(tmp_path / "result")


def test_two_recordings_that_agree_are_kept_and_prove_themselves(composed_plan: Compose, folder: ResultFolder) -> None:
    plan = composed_plan(*TINY)
    logits = recorded(plan, folder)
    assert logits.available
    assert len(logits.recordings) == 2
    assert (len(logits.token_ids), logits.n_vocab, logits.n_bytes) == (6, 640, 6 * 640 * 4)
    assert read_reference_logits(folder) == logits
    assert folder.finished_trials() == set()
    rows = pq.read_table(folder.recordings_file).to_pylist()
    assert [row["logits_digests"] for row in rows] == [list(logits.digests)] * 2
    with prepared(folder) as reference:
        section = reference.section(plan.baseline)
        assert section is not None
        values = np.fromfile(section["logits"], dtype=np.float32).reshape(6, 640)
        assert values.argmax(axis=1).tolist() == section["token_ids"] == list(logits.token_ids)
        row = run_trial(trial_request(plan.baseline, "trial", section))
        assert row["teacher_digests"] == list(logits.digests)
        assert row["teacher_kl"] == [0.0] * 6
        assert reference.columns(plan.baseline, row)["teacher_reference"] is not None
    assert not Path(section["logits"]).exists()


def test_changed_logits_are_noticed(composed_plan: Compose, folder: ResultFolder) -> None:
    recorded(composed_plan(*TINY), folder)
    table = folder.read_reference_logits()
    values = table.column("logits").combine_chunks().flatten().to_numpy().copy()
    values[7] += 1
    changed = type(table.column("logits").combine_chunks()).from_arrays(values, 640)
    folder.write_reference_logits(table.set_column(3, "logits", changed))
    with (
        pytest.raises(StoreError, match=r"logits.parquet: its rows are not those that were recorded"),
        prepared(folder),
    ):
        pass


def test_an_arm_that_does_not_repeat_gives_no_logits(composed_plan: Compose, folder: ResultFolder) -> None:
    plan = composed_plan(*TINY, "settings.temperature=2.0", "settings.seed=null")
    logits = recorded(plan, folder)
    assert not logits.available
    assert str(logits) == (
        "no teacher-forced pass: arm 'baseline' does not repeat: no two of 4 recordings agree bit for bit"
    )
    assert not folder.reference_logits_file.exists()
    with prepared(folder) as reference:
        assert reference.section(plan.baseline) is None
        assert reference.columns(plan.baseline, {}) == {"teacher_note": str(logits)}


def test_an_arm_that_cannot_be_loaded_is_not_tried_twice(composed_plan: Compose, folder: ResultFolder) -> None:
    logits = recorded(composed_plan(*TINY, "settings.type_v=q4_0", "settings.flash_attn=off"), folder)
    assert len(logits.recordings) == 1
    assert "does not run: load_failure: " in (logits.note or "")


def test_recordings_that_crash_are_told(composed_plan: Compose, folder: ResultFolder) -> None:
    plan = composed_plan(*TINY, "plant=abort", "settings.max_tokens=1")
    logits = recorded(plan, folder)
    assert "4 of 4 failed (crash: " in (logits.note or "")


def test_above_the_limit_the_first_positions_are_kept(composed_plan: Compose, folder: ResultFolder) -> None:
    plan = composed_plan(*TINY, "reference.max_mb=0.008")
    logits = recorded(plan, folder)
    assert logits.available
    assert len(logits.token_ids) == 3
    assert logits.note == "the first 3 of 6 positions, as many as fit into reference.max_mb (0.008 MB)"
    with prepared(folder) as reference:
        row = run_trial(trial_request(plan.baseline, "trial", reference.section(plan.baseline)))
    assert row["teacher_digests"] == row["logits_digests"][:3]


def test_a_row_above_the_limit_leaves_nothing(composed_plan: Compose, folder: ResultFolder) -> None:
    logits = recorded(composed_plan(*TINY, "reference.max_mb=0.001"), folder)
    assert logits.note == "one row of 640 logits is above reference.max_mb (0.001 MB)"


@pytest.mark.parametrize(
    ("word", "note"),
    [
        ("probe.teacher_forced=false", "probe.teacher_forced is off"),
        ("reference.ids=[1,2]", "ids given by the user have no logits"),
        ("reference.max_mb=0", "reference.max_mb is 0"),
    ],
)
def test_no_trial_is_run_where_no_logits_are_wanted(
    composed_plan: Compose, folder: ResultFolder, word: str, note: str
) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("no recording is needed")

    logits = record(composed_plan(*TINY, word), folder, trial_request, never)
    assert logits == ReferenceLogits(False, note)
    assert read_reference_logits(folder) == logits


def test_an_interrupted_recording_decides_nothing(composed_plan: Compose, folder: ResultFolder) -> None:
    plan = composed_plan(*TINY)
    session.begin("run").cancel.set()
    try:
        assert record(plan, folder, trial_request, functools.partial(_run, plan)) is None
    finally:
        session.begin("run").cancel = threading.Event()
    assert read_reference_logits(folder) is None


def test_only_the_first_request_of_a_persistent_arm_is_recorded(composed_plan: Compose, folder: ResultFolder) -> None:
    recorded(composed_plan(*TINY, "settings.process=persistent", "probe.requests=3"), folder)
    rows = pq.read_table(folder.recordings_file).to_pylist()
    assert [row["n_requests"] for row in rows] == [1, 1]
    assert json.loads(rows[0]["settings"])["process"] == "persistent"
