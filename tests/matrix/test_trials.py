"""A table in pieces, from a file, or as rows is the same result; thresholds name their mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from isomatrix.matrix.schema import VERDICT_COLUMNS
from isomatrix.matrix.thresholds import ThresholdError, Thresholds, thresholds_from_mapping
from isomatrix.matrix.trials import RowTrials, TableTrials, trials_of
from isomatrix.matrix.verdict import judge_rows, judge_table

NAMES = [column.name for column in VERDICT_COLUMNS]


@pytest.fixture
def rows(build: Any) -> list[dict[str, Any]]:
    requests = [build.request([1, 2, 3], shift=shift, text=f"tëxt {shift}") for shift in (0.0, 0.0, 0.01, 0.0)]
    made = [build.row("baseline", request, number=number) for number, request in enumerate(requests)]
    made += [build.row("arm", requests[0], requests[2], number=number) for number in range(3)]
    made.append(build.row("arm", number=9, outcome="crash", error="signal 11"))
    made.append(build.row("arm", build.request([9, 9]), number=10, native_log="CUDA error: x\n"))
    return made


def test_a_table_in_pieces_is_judged_like_a_whole_one(build: Any, rows: list[dict[str, Any]]) -> None:
    whole = build.table(rows)
    pieces = pa.concat_tables([whole.slice(0, 3), whole.slice(3, 1), whole.slice(4)])
    sliced = pa.concat_tables([whole, whole]).slice(2, len(rows))
    expected = judge_table(whole, "baseline").select(NAMES)
    assert judge_table(pieces, "baseline").select(NAMES).combine_chunks() == expected.combine_chunks()
    order = [*range(2, len(rows)), 0, 1]
    turned = [judgement.as_row() for judgement in judge_rows([rows[i] for i in order], "baseline")]
    assert judge_table(sliced, "baseline").select(NAMES).to_pylist() == turned


def test_a_table_from_a_file_is_judged_like_its_rows(build: Any, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    pq.write_table(build.table(rows), tmp_path / "trials.parquet", row_group_size=2)
    table = judge_table(pq.read_table(tmp_path / "trials.parquet"), "baseline")
    assert table.select(NAMES).to_pylist() == [judgement.as_row() for judgement in judge_rows(rows, "baseline")]


def test_an_empty_table_is_judged(build: Any) -> None:
    assert judge_table(build.table([]), "baseline").num_rows == 0


def test_keys_and_groups_agree_between_rows_and_table(build: Any, rows: list[dict[str, Any]]) -> None:
    plain, table = RowTrials(rows), TableTrials(build.table(rows))
    assert plain.groups == table.groups
    assert plain.group_keys == table.group_keys
    assert plain.outcomes == table.outcomes
    assert {i: [h.name for h in hits] for i, hits in plain.markers.items()} == {
        i: [h.name for h in hits] for i, hits in table.markers.items()
    }


def test_trials_are_taken_as_they_are(rows: list[dict[str, Any]]) -> None:
    trials = RowTrials(rows)
    assert trials_of(trials) is trials


def test_unknown_thresholds_name_the_nearest() -> None:
    with pytest.raises(ThresholdError, match="Did you mean 'corrupt_logit'"):
        thresholds_from_mapping({"corupt_logit": 1})


@pytest.mark.parametrize("values", [{"benign_logit": -1}, {"benign_logit": "x"}, {"benign_logit": 0.9}])
def test_impossible_thresholds_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ThresholdError, match="benign_logit"):
        thresholds_from_mapping(values)


def test_thresholds_survive_their_own_json() -> None:
    changed = Thresholds(corrupt_logit=2.0)
    assert thresholds_from_mapping(json.loads(changed.as_json())) == changed
