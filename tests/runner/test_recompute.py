"""What a real run decided follows from its stored rows alone, in whatever order they lie."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from isomatrix.matrix.analysis import Analysis, analyse
from isomatrix.matrix.plan import Plan
from isomatrix.matrix.schema import VERDICT_COLUMNS

Run = Callable[..., subprocess.CompletedProcess[str]]

WORDS = (
    "probe=text",
    "settings.max_tokens=4",
    "settings.n_threads=1",
    "settings.n_threads_batch=1",
    "settings.n_ubatch=512,16",
    "load=none",
    "arms.faulty={plant: flip_token, plant.rate: 0.6}",
    "axes=none",
    "stop.rounds=5",
    "run.name=one",
)


@pytest.fixture
def result(isomatrix: Run, tmp_path: Path) -> Path:
    done = isomatrix("run", *WORDS)
    assert done.returncode == 0, done.stderr
    return tmp_path / "results" / "one"


def parts(analysis: Analysis) -> tuple[object, ...]:
    return analysis.decisions, analysis.arms.to_pylist(), analysis.table("t"), analysis.findings.as_data()


def test_decisions_counts_and_table_follow_from_the_rows_in_any_order(result: Path, isomatrix: Run):
    plan = Plan.from_json((result / "plan.json").read_text(encoding="utf-8"))
    trials = pq.read_table(result / "trials.parquet")
    verdicts = [column.name for column in VERDICT_COLUMNS]
    raw = pa.table(
        [pa.nulls(trials.num_rows, f.type) if f.name in verdicts else trials.column(f.name) for f in trials.schema],
        schema=trials.schema,
    )
    told = parts(analyse(plan, trials))
    assert {arm.arm for arm in analyse(plan, trials).decisions.values() if arm.bad} == {"faulty [planted]"}
    generator = random.Random(1)
    for _ in range(5):
        order = generator.sample(range(raw.num_rows), raw.num_rows)
        assert parts(analyse(plan, raw.take(order))) == told
    shown = json.loads(isomatrix("report", "one", "--format", "json").stdout)
    assert tuple(shown["summary"]) == analyse(plan, raw).table("t").summary
