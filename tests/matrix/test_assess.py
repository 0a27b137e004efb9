"""Published and hand-made matrices come out with the honest reading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from isomatrix.matrix.assess import ArmCounts, Assessment, CountsError, assess, read_counts

PUBLISHED = Path(__file__).parent / "statistics" / "published"


def published(name: str, baseline: str | None) -> Assessment:
    return assess(read_counts((PUBLISHED / f"{name}.csv").read_text("utf-8")), baseline=baseline)


def test_the_pooled_sweep_does_not_show_that_switching_off_helps() -> None:
    result = published("offload_pooled", "offload impossible")
    (contrast,) = result.contrasts
    assert round(contrast.fisher.one_sided, 3) == 0.235
    assert not contrast.differs
    assert contrast.needed is not None
    assert contrast.needed.runs == 44
    assert result.summary[0] == (
        "offload possible 8/54 against offload impossible 0/10: p = 0.235 one-sided (Fisher; Boschloo 0.146), "
        "p = 0.293 two-sided (Boschloo): not enough runs: needs about 44 per arm to tell 15 % from 0"
    )
    assert result.exploratory == ()


def test_no_two_rows_of_the_silent_audio_matrix_differ() -> None:
    result = published("silent_audio", "default, all on Metal")
    assert len(result.contrasts) == 6
    assert len(result.exploratory) == 21
    assert not any(contrast.differs for contrast in (*result.contrasts, *result.exploratory))
    assert "none of 6 contrasts" in result.summary[0]
    assert "6 of them could not have passed with any counts at these sizes" in result.summary[0]
    assert result.arms[3].sentence == "0/5: rate below 45 % (95 %)"


def test_no_threshold_of_the_sweep_differs_from_offload_impossible() -> None:
    result = published("offload_sweep", "1,000,000")
    assert not any(contrast.differs for contrast in (*result.contrasts, *result.exploratory))
    assert '"1,000,000" 0/10' in result.contrasts[0].sentence


def test_a_real_difference_is_found_and_the_rest_is_not() -> None:
    result = published("clock_a_b_a", "capped clocks")
    assert [contrast.differs for contrast in result.contrasts] == [True, False]
    assert result.contrasts[0].difference.low > 0.25


def test_without_a_baseline_there_are_exploratory_pairs_only() -> None:
    result = assess([("a", 0, 8), ("b", 7, 8), ("c", 0, 8)])
    assert result.contrasts == ()
    assert [contrast.declared for contrast in result.exploratory] == [False] * 3
    assert result.summary[0].startswith("2 of 3 contrasts over all pairs (exploratory) differ at 0.05")


def test_no_sentence_praises_or_blames_without_a_number() -> None:
    result = assess([("base", 0, 8), ("bad", 7, 8), ("good", 0, 8)], baseline="base")
    sentences = [*result.summary, *(arm.sentence for arm in result.arms)]
    sentences += [contrast.sentence for contrast in (*result.contrasts, *result.exploratory)]
    for sentence in sentences:
        assert re.search(r"\d", sentence)
        assert not re.search(r"\b(clean|fixed|causes?|culprit|safe)\b", sentence)


def test_columns_may_come_in_any_order_beside_others() -> None:
    text = '\ufeffruns, note, bad, arm\n10,"a, b",2,"x=1, y=2"\n\n5,,0,z\n'
    assert read_counts(text) == [ArmCounts("x=1, y=2", 2, 10), ArmCounts("z", 0, 5)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: column 'arm' is missing"),
        ("arm,bad\na,1\n", "line 1: column 'runs' is missing"),
        ("arm,bad,runs,bad\n", "line 1: column 'bad' stands there twice"),
        ("arm,bad,runs\n", "line 2: no counts"),
        ("arm,bad,runs\na,1,3\nb,x,3\n", "line 3, column 'bad': 'x' is not a whole number"),
        ("arm,bad,runs\na,-1,3\n", "line 2, column 'bad': '-1'"),
        ("arm,bad,runs\na,1.5,3\n", "line 2, column 'bad': '1.5'"),
        ("arm,bad,runs\na,0,0\n", "line 2, column 'runs': no runs"),
        ("arm,bad,runs\na,4,3\n", "line 2, column 'bad': 4 bad of 3 runs"),
        ("arm,bad,runs\n,1,3\n", "line 2, column 'arm': the name is empty"),
        ("arm,bad,runs\na,1,3\n\na,1,3\n", "line 4, column 'arm': 'a' stands in line 2 already"),
        ("arm,bad,runs\n1,000,0,10\n", "line 2: 4 columns where the first line names 3"),
    ],
)
def test_a_table_that_cannot_be_read_names_line_and_column(text: str, message: str) -> None:
    with pytest.raises(CountsError) as error:
        read_counts(text)
    assert message in str(error.value)


def test_an_unknown_baseline_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match="'c' is not among the arms: a, b"):
        assess([("a", 0, 3), ("b", 1, 3)], baseline="c")


def test_impossible_counts_name_the_arm() -> None:
    with pytest.raises(ValueError, match="arm 'b': 4 bad of 3"):
        assess([("a", 0, 3), ("b", 4, 3)])
