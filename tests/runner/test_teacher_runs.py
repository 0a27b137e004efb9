"""Whole runs: the pass finds what greedy tokens hide, and benign settings are never called corrupt."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from isomatrix.matrix.analysis import Analysis, analyse
from isomatrix.matrix.plan import Plan
from isomatrix.matrix.schema import TEACHER_COLUMNS
from isomatrix.runner.store import ResultFolder

Command = Callable[..., subprocess.CompletedProcess[str]]
ONE_THREAD = ("settings.n_threads=1", "settings.n_threads_batch=1")
LATE = "arms.late={{plant: node_error, plant.node: l_out-3, plant.size: {size}}}"
STORY = (
    "The harbour was quiet before sunrise. Fishermen mended their nets beside the old stone wall, gulls walked along "
    "the pier, and the first ferry of the day lay at its berth with all lamps lit. In the kitchen of the inn somebody "
    "was already baking bread. A boy carried two buckets of water up the stairs, counting every step, because"
)


def _analysed(folder: ResultFolder, trials: pa.Table) -> Analysis:
    return analyse(Plan.from_json(folder.read_plan()), trials)


def _verdicts(analysis: Analysis) -> dict[str, dict[str, int]]:
    return {arm.split(" ")[0]: counts for arm, counts in analysis.verdict_counts().items()}


def _without_pass(trials: pa.Table) -> pa.Table:
    for column in TEACHER_COLUMNS:
        place = trials.column_names.index(column.name)
        trials = trials.set_column(place, trials.schema.field(place), pa.nulls(trials.num_rows, column.type))
    return trials


def _run(isomatrix: Command, tmp_path: Path, *words: str) -> ResultFolder:
    common = ("stop=fixed", "stop.rounds=2", "run.results=results", "run.name=run")
    ran = isomatrix("run", *words, *common)
    assert ran.returncode == 0, ran.stderr
    return ResultFolder.open(tmp_path / "results" / "run")


def _ids(rows: list[dict[str, Any]], arm: str) -> set[tuple[int, ...]]:
    return {tuple(row["token_ids"]) for row in rows if row["arm"].startswith(arm)}


@pytest.mark.slow
def test_a_late_error_that_greedy_tokens_hide_is_found_by_the_pass_and_missed_by_ids(
    isomatrix: Command, tmp_path: Path
) -> None:
    words = ("probe=text", *ONE_THREAD, "axes=none", "settings.max_tokens=10", LATE.format(size=0.1))
    folder = _run(isomatrix, tmp_path, *words)
    trials = folder.read_trials()
    rows = trials.to_pylist()
    assert _ids(rows, "late") == _ids(rows, "baseline")
    assert _verdicts(_analysed(folder, trials)) == {"baseline": {"identical": 2}, "late": {"divergent": 2}}
    by_ids = _verdicts(_analysed(folder, _without_pass(trials)))
    assert by_ids == {"baseline": {"identical": 2}, "late": {"drift": 2}}


@pytest.mark.slow
def test_with_a_harmless_arm_to_measure_by_a_much_smaller_error_is_found(isomatrix: Command, tmp_path: Path) -> None:
    words = ("probe=text", *ONE_THREAD, "axes=none", "settings.flash_attn=off,on", LATE.format(size=0.01))
    folder = _run(isomatrix, tmp_path, *words, "reference.harmless=flash_attn=on")
    trials = folder.read_trials()
    rows = trials.to_pylist()
    assert _ids(rows, "late") == _ids(rows, "baseline") == _ids(rows, "flash_attn=on")
    expected = {"baseline": {"identical": 2}, "flash_attn=on": {"drift": 2}, "late": {"divergent": 2}}
    assert _verdicts(_analysed(folder, trials)) == expected
    assert _verdicts(_analysed(folder, _without_pass(trials)))["late"] == {"drift": 2}


_CASES = [
    ("tiny", "text"),
    ("tiny", "audio"),
    ("tiny_moe", "text"),
    pytest.param("gemma3_270m", "text", marks=pytest.mark.gemma),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "probe"), _CASES)
def test_benign_settings_are_never_called_corrupt(isomatrix: Command, tmp_path: Path, model: str, probe: str) -> None:
    axes = ("settings.n_ubatch=512,64,31", "settings.flash_attn=off,on", "settings.type_k=f16,q8_0")
    prompt = (f"probe.prompt={STORY}",) if probe == "text" else ()
    threads = "settings.n_threads=1" if model == "gemma3_270m" else "settings.n_threads=1,2"
    words = (f"model={model}", f"probe={probe}", *prompt, *axes, threads, "settings.n_threads_batch=1")
    folder = _run(isomatrix, tmp_path, *words, f"settings.max_tokens={6 if model == 'gemma3_270m' else 16}")
    analysis = _analysed(folder, folder.read_trials())
    seen = {verdict for counts in analysis.verdict_counts().values() for verdict in counts}
    assert seen <= {"identical", "drift"}, analysis.trials.column("verdict_reason").to_pylist()
    assert analysis.verdict_counts()["baseline"] == {"identical": 2}
    scored = [nmse is not None for nmse in analysis.trials.column("noise_nmse").to_pylist()]
    assert all(scored)
