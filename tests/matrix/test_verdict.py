"""Verdicts: benign changes are drift, wrong output is divergent, broken text is garbage, failures are themselves."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from isomatrix.matrix.outcome import SEVERITY, Outcome, Verdict
from isomatrix.matrix.reference import Reference, ReferenceChoice, consensus, reference_from_ids
from isomatrix.matrix.schema import VERDICT_COLUMNS
from isomatrix.matrix.thresholds import Thresholds
from isomatrix.matrix.verdict import Judgement, judge_rows, judge_table, judge_trial

IDS = list(range(10, 30))
TEXT = "a quiet and ordinary sentence about the weather of the day"


def reference_of(build: Any, **kwargs: Any) -> Reference:
    rows = [build.row("baseline", build.request(IDS, **kwargs), number=number) for number in range(2)]
    found = consensus(rows, "baseline").reference
    assert found is not None
    return found


def judged(build: Any, request: dict[str, Any], reference: Reference | None = None, **fields: Any) -> Judgement:
    return judge_trial(build.row("arm", request, **fields), reference or reference_of(build, text=TEXT))


def other_from(build: Any, position: int, **kwargs: Any) -> dict[str, Any]:
    """An answer with other tokens from a position on, chosen with clear margins by clearly other logits."""
    request: dict[str, Any] = build.request([*IDS[:position], *range(300, 320 - position)], **kwargs)
    return request


def test_the_same_digests_are_identical(build: Any) -> None:
    judgement = judged(build, build.request(IDS))
    assert judgement.verdict is Verdict.IDENTICAL
    assert judgement.corrupt is False
    assert judgement.first_divergent_position is None
    assert judgement.first_digest_position is None


def test_the_same_ids_with_other_digests_are_drift_with_their_size(build: Any) -> None:
    judgement = judged(build, build.request(IDS, shift=0.003))
    assert judgement.verdict is Verdict.DRIFT
    assert judgement.first_digest_position == 0
    assert judgement.noise == pytest.approx(0.003, abs=1e-5)


def test_the_same_ids_with_hugely_other_logits_say_so(build: Any) -> None:
    judgement = judged(build, build.request(IDS, shift=1.5))
    assert judgement.verdict is Verdict.DRIFT
    assert "corrupt limit" in judgement.verdict_reason


def test_a_flip_of_a_near_tie_is_drift(build: Any) -> None:
    gaps = [2.0] * 7 + [0.004] + [2.0] * 12
    reference = reference_of(build, gaps=gaps)
    ids = [*IDS[:7], IDS[7] + 500, *range(300, 312)]
    tops = {7: [(IDS[7] + 500, 10.0), (IDS[7], 9.999), *build.low]}
    judgement = judged(build, build.request(ids, shift=0.002, tops=tops), reference)
    assert judgement.verdict is Verdict.DRIFT
    assert judgement.corrupt is False
    assert (judgement.first_divergent_request, judgement.first_divergent_position) == (0, 7)
    assert judgement.reference_margin == pytest.approx(0.004, abs=1e-5)


@pytest.mark.parametrize("position", [0, 1, 7, 19])
def test_other_tokens_at_clear_margins_are_divergent(build: Any, position: int) -> None:
    judgement = judged(build, other_from(build, position, text="another calm and fluent sentence"))
    assert judgement.verdict is Verdict.DIVERGENT
    assert judgement.corrupt is True
    assert judgement.first_divergent_position == position


def test_wrong_logits_everywhere_do_not_excuse_themselves(build: Any) -> None:
    reference = reference_of(build, gaps=[2.0] * 7 + [0.004] + [2.0] * 12)
    ids = [*IDS[:7], IDS[7] + 500, *range(300, 312)]
    tops = {7: [(IDS[7] + 500, 10.0), (IDS[7], 9.5), *build.low]}
    judgement = judged(build, build.request(ids, shift=1.5, tops=tops, text=TEXT), reference)
    assert judgement.verdict is Verdict.DIVERGENT


def test_a_planted_flip_of_a_sampled_token_is_divergent(build: Any) -> None:
    good = build.request(IDS, gaps=0.001, text=TEXT)
    reference = reference_of(build, gaps=0.001, text=TEXT)
    flipped = {**good, "token_ids": [*IDS[:5], IDS[5] + 500, *IDS[6:]]}
    judgement = judged(build, flipped, reference)
    assert judgement.verdict is Verdict.DIVERGENT
    assert "bitwise" in judgement.verdict_reason


def test_broken_text_makes_garbage_and_its_signs_are_kept(build: Any) -> None:
    request = build.request([777] * 20, text="@" * 20, gaps=3.0)
    judgement = judged(build, request)
    assert judgement.verdict is Verdict.GARBAGE
    assert judgement.text_signs is not None
    assert {sign["name"] for sign in json.loads(judgement.text_signs)} >= {"token_run"}


def test_a_looping_reference_makes_a_loop_no_garbage(build: Any) -> None:
    rows = [build.row("baseline", build.request([5] * 20, text="ab" * 20), number=n) for n in range(2)]
    reference = consensus(rows, "baseline").reference
    judgement = judged(build, build.request([6] * 20, text="cd" * 20), reference)
    assert judgement.verdict is Verdict.DIVERGENT


def test_a_loop_after_a_flip_within_noise_is_drift_but_mojibake_is_not(build: Any) -> None:
    reference = reference_of(build, gaps=[0.1] + [2.0] * 19, text=TEXT)
    flipped = [IDS[0] + 500, *[5] * 19]
    tops = {0: [(IDS[0] + 500, 10.05), (IDS[0], 10.0), *build.low]}
    loop = judged(build, build.request(flipped, tops=tops, text="ha " * 20), reference)
    assert loop.verdict is Verdict.DRIFT
    assert loop.text_signs is not None
    mojibake = judged(build, build.request(flipped, tops=tops, text="\ufffd" * 20), reference)
    assert mojibake.verdict is Verdict.GARBAGE


def test_new_nan_is_divergent_with_the_same_ids_and_garbage_with_others(build: Any) -> None:
    nan = [0] * 19 + [1]
    assert judged(build, build.request(IDS, shift=0.001, nan_counts=nan)).verdict is Verdict.DIVERGENT
    assert judged(build, other_from(build, 3, nan_counts=nan)).verdict is Verdict.GARBAGE


def test_nan_that_the_reference_has_too_is_no_sign(build: Any) -> None:
    reference = reference_of(build, nan_counts=[2] * 20)
    judgement = judged(build, build.request(IDS, shift=0.001, nan_counts=[2] * 20), reference)
    assert judgement.verdict is Verdict.DRIFT


def test_given_ids_compare_ids_only_and_a_prefix_says_its_length(build: Any) -> None:
    judgement = judged(build, build.request(IDS, shift=1.0), reference_from_ids(IDS[:8]))
    assert judgement.verdict is Verdict.IDENTICAL
    assert "8 tokens of 20" in judgement.verdict_reason
    assert judged(build, other_from(build, 5), reference_from_ids(IDS[:8])).verdict is Verdict.DIVERGENT


def test_an_answer_that_ends_early_is_not_a_matching_prefix(build: Any) -> None:
    early = build.request(IDS[:6], stop_reason="eos", text=TEXT)
    judgement = judged(build, early)
    assert judgement.verdict is Verdict.DIVERGENT
    assert judgement.first_divergent_position == 6


def test_a_smaller_budget_compares_what_there_is(build: Any) -> None:
    judgement = judged(build, build.request(IDS[:6]))
    assert judgement.verdict is Verdict.IDENTICAL
    assert "6 tokens of 20" in judgement.verdict_reason


def test_the_worst_request_decides(build: Any) -> None:
    good = build.request(IDS)
    row = build.row("arm", good, build.request(IDS, shift=0.001), other_from(build, 2, text="calm words"), good)
    judgement = judge_trial(row, reference_of(build, text=TEXT))
    assert judgement.verdict is Verdict.DIVERGENT
    assert (judgement.first_divergent_request, judgement.first_divergent_position) == (2, 2)
    assert judgement.verdict_reason.startswith("request 2: ")
    assert judgement.requests_differ is True


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_a_failed_outcome_is_failed_and_never_corruption(build: Any, outcome: Outcome) -> None:
    row = build.row("arm", other_from(build, 0), outcome=outcome.value, error="what happened")
    judgement = judge_trial(row, reference_of(build))
    assert judgement.verdict is Verdict.FAILED
    assert judgement.corrupt is None
    assert judgement.verdict_reason == f"{outcome.value}: what happened"


def test_a_fault_in_the_log_fails_a_trial_that_answered(build: Any) -> None:
    log = "load ok\nggml_metal_synchronize: error: command buffer 0 failed with status 5\n"
    judgement = judged(build, build.request(IDS), native_log=log)
    assert judgement.verdict is Verdict.FAILED
    assert "command buffer failed" in judgement.verdict_reason
    assert judgement.log_markers is not None
    assert json.loads(judgement.log_markers)[0]["line"] == 2


def test_without_a_reference_a_trial_is_unjudged_and_says_why(build: Any) -> None:
    rows = [build.row("baseline", build.request([1])), build.row("arm", build.request([1]))]
    judgements = judge_rows(rows, "baseline")
    assert {judgement.verdict for judgement in judgements} == {Verdict.UNJUDGED}
    assert "two that agree" in judgements[1].verdict_reason
    assert judgements[1].corrupt is None


def test_unstable_trials_are_marked_without_a_reference(build: Any) -> None:
    rows = [build.row("arm", build.request(IDS, shift=shift), number=n) for n, shift in enumerate([0, 0, 0, 0.1])]
    assert [judgement.off_mode for judgement in judge_rows(rows, "baseline")] == [False, False, False, True]


def test_logits_of_a_baseline_that_never_repeat_are_drift_not_identical(build: Any) -> None:
    rows = [build.row("baseline", build.request(IDS, shift=n / 1000), number=n) for n in range(4)]
    assert {judgement.verdict for judgement in judge_rows(rows, "baseline")} == {Verdict.DRIFT}


def test_a_drawn_token_is_judged_by_its_logits_and_not_by_its_margin(build: Any) -> None:
    drawn = json.dumps({"temperature": 0.8})
    rows = [build.row("baseline", build.request(IDS, text=TEXT), number=n, settings=drawn) for n in range(2)]
    reference = consensus(rows, "baseline").reference
    ids = [*IDS[:7], IDS[7] + 500, *range(300, 312)]
    tops = {7: [(IDS[7], 10.0), (IDS[7] + 500, 8.001), *build.low]}
    near = build.request(ids, shift=0.001, tops=tops, text=TEXT)
    assert judged(build, near, reference, settings=drawn).verdict is Verdict.DRIFT
    far = build.request(ids, shift=1.9, tops=tops, text=TEXT)
    assert judged(build, far, reference, settings=drawn).verdict is Verdict.DIVERGENT


def test_thresholds_are_stored_and_decide(build: Any) -> None:
    row = build.row("arm", other_from(build, 0, text="calm words"))
    strict = judge_trial(row, reference_of(build))
    assert strict.thresholds is not None
    assert json.loads(strict.thresholds)["corrupt_logit"] == 0.5
    loose = Thresholds(benign_logit=50, corrupt_logit=100)
    assert judge_trial(row, reference_of(build), loose).verdict is Verdict.DRIFT


def test_every_verdict_column_is_filled_in_a_table(build: Any) -> None:
    rows = [build.row("baseline", build.request(IDS), number=n) for n in range(2)]
    rows += [build.row("arm", other_from(build, 1)), build.row("arm", outcome="crash", number=1)]
    table = judge_table(build.table(rows), "baseline")
    assert table.column("verdict").to_pylist() == ["identical", "identical", "divergent", "failed"]
    assert [column.name for column in VERDICT_COLUMNS if column.name not in table.column_names] == []
    assert table.schema == build.table(rows).schema


# Properties


@st.composite
def request_lists(draw: st.DrawFn, build: Any) -> list[dict[str, Any]]:
    requests = []
    for _ in range(draw(st.integers(0, 3))):
        ids = draw(st.lists(st.integers(1, 4), min_size=0, max_size=5))
        kwargs: dict[str, Any] = {
            "gaps": draw(st.sampled_from([0.0, 0.001, 0.1, 2.0])),
            "shift": draw(st.sampled_from([0.0, 0.0, 0.001, 0.05, 0.3, 1.5])),
            "stop_reason": draw(st.sampled_from(["eos", "max_tokens", "context_full", None])),
        }
        if draw(st.booleans()):
            kwargs["nan_counts"] = draw(st.sampled_from([None, [1] * len(ids)]))
        if draw(st.integers(0, 5)) == 0:
            name = draw(st.sampled_from(["logits_digests", "top_ids", "margins", "text"]))
            kwargs[name] = None
        if draw(st.integers(0, 5)) == 0:
            kwargs["text"] = draw(st.text(max_size=30))
        requests.append(build.request(ids, **kwargs))
    return requests


@st.composite
def row_lists(draw: st.DrawFn, build: Any) -> list[dict[str, Any]]:
    logs = [None, "", "fine\n", "x\nCUDA error: y\n", "GGML_ASSERT(a) failed\n", "n_past was set to 3\n"]
    outcomes = ["ok"] * 5 + ["crash", "timeout", "no_result"]
    return [
        build.row(
            draw(st.sampled_from(["baseline", "baseline", "arm", "other"])),
            *draw(request_lists(build)),
            number=number,
            outcome=draw(st.sampled_from(outcomes)),
            native_log=draw(st.sampled_from(logs)),
            settings=draw(st.sampled_from([None, '{"temperature": 0}', '{"temperature": 1, "type_k": "q4_0"}'])),
        )
        for number in range(draw(st.integers(0, 7)))
    ]


choices = st.sampled_from(
    [ReferenceChoice(), ReferenceChoice(arm="other"), ReferenceChoice(ids=(1, 2)), ReferenceChoice(ids=(1,) * 9)]
)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(data=st.data(), choice=choices, provisional=st.booleans())
def test_judging_is_total_and_repeats(build: Any, data: st.DataObject, choice: Any, provisional: bool) -> None:
    rows = data.draw(row_lists(build))
    first = judge_rows(rows, "baseline", choice, provisional=provisional)
    assert [judgement.corrupt is None for judgement in first] == [
        judgement.verdict in (Verdict.FAILED, Verdict.UNJUDGED) for judgement in first
    ]
    assert first == judge_rows(rows, "baseline", choice, provisional=provisional)


@quick
@given(data=st.data(), choice=choices, seed=st.integers(0, 99))
def test_judging_does_not_depend_on_the_order_of_rows(build: Any, data: st.DataObject, choice: Any, seed: int) -> None:
    rows = data.draw(row_lists(build))
    by_id = {row["trial_id"]: judged for row, judged in zip(rows, judge_rows(rows, "baseline", choice), strict=True)}
    random.Random(seed).shuffle(rows)
    again = judge_rows(rows, "baseline", choice)
    assert {row["trial_id"]: judged for row, judged in zip(rows, again, strict=True)} == by_id


@quick
@given(data=st.data(), choice=choices)
def test_a_table_is_judged_as_its_rows_are(build: Any, data: st.DataObject, choice: Any) -> None:
    rows = data.draw(row_lists(build))
    expected = [judgement.as_row() for judgement in judge_rows(rows, "baseline", choice)]
    table = judge_table(build.table(rows), "baseline", choice)
    names = [column.name for column in VERDICT_COLUMNS]
    assert table.select(names).to_pylist() == expected


@quick
@given(data=st.data())
def test_another_request_never_makes_a_verdict_milder(build: Any, data: st.DataObject) -> None:
    reference = reference_of(build)
    requests = data.draw(request_lists(build).filter(bool))
    extra = data.draw(request_lists(build))
    before = judge_trial(build.row("arm", *requests), reference)
    after = judge_trial(build.row("arm", *requests, *extra), reference)
    assert SEVERITY[after.verdict] >= SEVERITY[before.verdict]


@quick
@given(data=st.data(), low=st.floats(0.2, 5), more=st.floats(0, 5))
def test_a_higher_corrupt_limit_never_makes_a_verdict_worse(
    build: Any, data: st.DataObject, low: float, more: float
) -> None:
    reference = reference_of(build)
    row = build.row("arm", *data.draw(request_lists(build).filter(bool)))
    strict = judge_trial(row, reference, Thresholds(corrupt_logit=low))
    loose = judge_trial(row, reference, Thresholds(corrupt_logit=low + more))
    assert SEVERITY[loose.verdict] <= SEVERITY[strict.verdict]
