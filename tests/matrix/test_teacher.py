"""The teacher-forced pass in verdicts: what greedy tokens hide is found, and benign noise is left alone."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from isomatrix.matrix.counts import count_arms
from isomatrix.matrix.outcome import SEVERITY, Verdict
from isomatrix.matrix.reference import Reference, ReferenceChoice, consensus, reference_from_ids, reference_of_result
from isomatrix.matrix.schema import VERDICT_COLUMNS
from isomatrix.matrix.teacher import reference_key, teacher_of_row
from isomatrix.matrix.thresholds import Thresholds
from isomatrix.matrix.verdict import Judgement, judge_rows, judge_table, judge_trial

IDS = list(range(10, 30))
TEXT = "a quiet and ordinary sentence about the weather of the day"
Request = dict[str, Any]


def pass_columns(
    reference: Mapping[str, Any],
    nmse: float | Sequence[float] = 0.0,
    kl: float | None = None,
    max_abs: float | Sequence[float] | None = None,
    digests: Sequence[int] | None = None,
    unlike: int = 0,
    count: int | None = None,
) -> dict[str, Any]:
    """The columns of a pass against the logits of a request; all measures equal the NMSE unless they are given."""
    n = len(reference["token_ids"]) if count is None else count
    errors = [float(nmse)] * n if isinstance(nmse, (int, float)) else list(nmse)
    own = [error if kl is None else kl for error in errors]
    largest = errors if max_abs is None else [max_abs] * n if isinstance(max_abs, (int, float)) else list(max_abs)
    exact = list(reference["logits_digests"][:n])
    if digests is None:
        told = repr((errors, own, largest, unlike)).encode()
        other = [int.from_bytes(hashlib.blake2b(told + bytes([i]), digest_size=8).digest(), "little") for i in range(n)]
        digests = exact if not any((*errors, *own, *largest, unlike)) else other
    return {
        "teacher_kl": own,
        "teacher_nmse": errors,
        "teacher_max_abs": largest,
        "teacher_rank": [0] * n,
        "teacher_top1": [True] * n,
        "teacher_unlike": [unlike] * n,
        "teacher_digests": list(digests[:n]),
        "teacher_reference": reference_key(reference["token_ids"][:n], exact),
    }


def good(build: Any, **fields: Any) -> Request:
    request: Request = build.request(IDS, **{"text": TEXT, **fields})
    return request


def reference_of(build: Any, request: Request | None = None) -> Reference:
    rows = [build.row("baseline", request or good(build), number=number) for number in range(2)]
    found = consensus(rows, "baseline").reference
    assert found is not None
    return found


def judged(build: Any, request: Request, columns: Mapping[str, Any], **fields: Any) -> Judgement:
    return judge_trial(build.row("arm", request, **columns, **fields), reference_of(build))


def test_a_pass_of_zeros_leaves_an_identical_trial_identical(build: Any) -> None:
    judgement = judged(build, good(build), pass_columns(good(build)))
    assert judgement.verdict is Verdict.IDENTICAL
    assert (judgement.noise, judgement.noise_nmse, judgement.noise_kl) == (0, 0, 0)


def test_equal_tokens_with_small_errors_are_drift_and_their_size_is_kept(build: Any) -> None:
    columns = pass_columns(good(build), nmse=1e-4, kl=2e-4, max_abs=0.04)
    judgement = judged(build, good(build, shift=0.01), columns)
    assert judgement.verdict is Verdict.DRIFT
    assert judgement.noise == pytest.approx(0.04)
    assert (judgement.noise_nmse, judgement.noise_kl) == pytest.approx((1e-4, 2e-4))
    assert "NMSE at most 0.0001" in judgement.verdict_reason


@pytest.mark.parametrize(("nmse", "kl"), [(0.02, 0.0), (0.0, 0.06), (math.inf, math.inf)])
def test_a_wrong_computation_is_found_although_the_tokens_are_equal(build: Any, nmse: float, kl: float) -> None:
    request = good(build, shift=0.01)
    assert judged(build, request, {}).verdict is Verdict.DRIFT
    judgement = judged(build, request, pass_columns(good(build), nmse=nmse, kl=kl, max_abs=0.2))
    assert judgement.verdict is Verdict.DIVERGENT
    assert judgement.corrupt is True
    assert judgement.first_divergent_position is None
    assert judgement.verdict_reason.startswith("teacher-forced: ")
    assert "the same 20 token ids" in judgement.verdict_reason


def test_a_fault_in_the_pass_alone_is_found_in_a_trial_with_the_reference_s_digests(build: Any) -> None:
    assert judged(build, good(build), pass_columns(good(build), nmse=0.5)).verdict is Verdict.DIVERGENT


def test_entries_that_are_not_finite_are_wrong_whatever_their_number(build: Any) -> None:
    columns = pass_columns(good(build), nmse=[math.inf, *[0.0] * 19], unlike=1)
    judgement = judged(build, good(build, shift=0.001), columns)
    assert judgement.verdict is Verdict.DIVERGENT
    assert "NaN or infinite" in judgement.verdict_reason


def test_one_position_far_off_is_no_proof_until_it_is_very_far_off(build: Any) -> None:
    def with_one(nmse: float) -> Judgement:
        return judged(build, good(build, shift=0.01), pass_columns(good(build), nmse=[1e-4] * 19 + [nmse], kl=0.0))

    assert with_one(0.05).verdict is Verdict.DRIFT
    assert with_one(0.2).verdict is Verdict.DIVERGENT


def test_a_four_bit_cache_may_differ_more(build: Any) -> None:
    columns = pass_columns(good(build), nmse=0.04, kl=0.2)
    request = good(build, shift=0.01)
    assert judged(build, request, columns).verdict is Verdict.DIVERGENT
    coarse = json.dumps({"temperature": 0, "type_k": "q4_0"})
    assert judged(build, request, columns, settings=coarse).verdict is Verdict.DRIFT


def flipped(build: Any, shift: float) -> tuple[Request, Request]:
    """A reference with a near-tie at position 7, and a trial that takes the other token, its logits off by `shift`."""
    reference = good(build, gaps=[2.0] * 7 + [0.004] + [2.0] * 12)
    tops = {7: [(IDS[7] + 500, 10.0), (IDS[7], 10.0 - shift), *build.low]}
    ids = [*IDS[:7], IDS[7] + 500, *range(300, 312)]
    return reference, build.request(ids, shift=shift / 2, tops=tops, text=TEXT)


def test_a_large_flip_whose_pass_lies_within_noise_is_drift(build: Any) -> None:
    reference, trial = flipped(build, shift=3.0)
    found = reference_of(build, reference)
    assert judge_trial(build.row("arm", trial), found).verdict is Verdict.DIVERGENT
    columns = pass_columns(reference, nmse=1e-3, kl=1e-3, max_abs=3.0, digests=trial["logits_digests"])
    judgement = judge_trial(build.row("arm", trial, **columns), found)
    assert judgement.verdict is Verdict.DRIFT
    assert "as elsewhere" in judgement.verdict_reason


def test_a_pass_that_did_not_repeat_the_flip_s_logits_excuses_nothing(build: Any) -> None:
    reference, trial = flipped(build, shift=3.0)
    columns = pass_columns(reference, nmse=1e-3, kl=1e-3, max_abs=3.0)
    judgement = judge_trial(build.row("arm", trial, **columns), reference_of(build, reference))
    assert judgement.verdict is Verdict.DIVERGENT


def test_a_flip_by_a_wrong_computation_is_divergent_even_at_a_near_tie(build: Any) -> None:
    reference, trial = flipped(build, shift=0.01)
    found = reference_of(build, reference)
    assert judge_trial(build.row("arm", trial), found).verdict is Verdict.DRIFT
    columns = pass_columns(reference, nmse=0.3, max_abs=5.0, digests=trial["logits_digests"])
    judgement = judge_trial(build.row("arm", trial, **columns), found)
    assert judgement.verdict is Verdict.DIVERGENT
    assert (judgement.first_divergent_request, judgement.first_divergent_position) == (0, 7)


def test_a_jump_is_measured_against_all_other_positions(build: Any) -> None:
    reference, trial = flipped(build, shift=0.3)
    found = reference_of(build, reference)
    noises = [0.01] * 20
    noises[7] = 0.3
    quiet = pass_columns(reference, nmse=[0.02] * 4 + [0] * 16, kl=0, max_abs=noises, digests=trial["logits_digests"])
    jump = judge_trial(build.row("arm", trial, **quiet), found)
    assert jump.verdict is Verdict.DIVERGENT
    assert "noise jumps to 0.3 there, from 0.01 elsewhere" in jump.verdict_reason
    noises[15] = 0.2
    loud = pass_columns(reference, nmse=[0.02] * 4 + [0] * 16, kl=0, max_abs=noises, digests=trial["logits_digests"])
    assert judge_trial(build.row("arm", trial, **loud), found).verdict is Verdict.DRIFT


def test_a_pass_against_other_logits_than_the_reference_s_says_nothing(build: Any) -> None:
    other = good(build, shift=0.5)
    judgement = judged(build, good(build), pass_columns(other, nmse=0.9))
    assert judgement.verdict is Verdict.IDENTICAL
    assert judgement.noise_nmse is None


def test_given_ids_have_no_logits_to_score_against(build: Any) -> None:
    row = build.row("arm", good(build), **pass_columns(good(build), nmse=0.9))
    assert judge_trial(row, reference_from_ids(IDS)).verdict is Verdict.IDENTICAL


def test_a_shorter_pass_counts_for_the_positions_that_it_has(build: Any) -> None:
    columns = pass_columns(good(build), nmse=0.5, count=3)
    assert judged(build, good(build), columns).verdict is Verdict.DIVERGENT


def test_an_empty_or_uneven_pass_is_none(build: Any) -> None:
    columns = pass_columns(good(build))
    assert teacher_of_row({**columns, "teacher_kl": []}) is None
    assert teacher_of_row({**columns, "teacher_kl": [0.0]}) is None
    assert teacher_of_row({**columns, "teacher_reference": None}) is None


def test_harmless_arms_set_the_limits_from_their_measured_noise(build: Any) -> None:
    rows = [build.row("baseline", good(build), number=n) for n in range(2)]
    rows.append(build.row("benign", good(build, shift=0.001), **pass_columns(good(build), nmse=1e-5, kl=1e-5)))
    rows.append(build.row("arm", good(build, shift=0.002), **pass_columns(good(build), nmse=1e-3, kl=1e-5)))
    assert [one.verdict.value for one in judge_rows(rows, "baseline")][2:] == ["drift", "drift"]
    strict = judge_rows(rows, "baseline", harmless=["benign"])
    assert [one.verdict.value for one in strict][2:] == ["drift", "divergent"]
    assert json.loads(strict[3].thresholds or "")["wrong_nmse"] == pytest.approx(1e-4, rel=1e-5)
    assert json.loads(strict[3].thresholds or "")["wrong_kl"] == pytest.approx(1e-4, rel=1e-5)


def test_harmless_arms_that_are_noisy_raise_the_limits(build: Any) -> None:
    rows = [build.row("baseline", good(build), number=n) for n in range(2)]
    rows += [build.row("benign", good(build, shift=0.01), **pass_columns(good(build), nmse=0.02, kl=0.02))]
    assert judge_rows(rows, "baseline")[2].verdict is Verdict.DIVERGENT
    assert judge_rows(rows, "baseline", harmless=["benign"])[2].verdict is Verdict.DRIFT


def test_harmless_arms_without_noise_change_nothing(build: Any) -> None:
    rows = [build.row("baseline", good(build), number=n, **pass_columns(good(build))) for n in range(2)]
    (stored,) = {one.thresholds for one in judge_rows(rows, "baseline", harmless=["baseline"])}
    assert stored == Thresholds().as_json()


def test_the_noise_of_an_arm_is_that_of_its_sound_trials(build: Any) -> None:
    rows = [build.row("baseline", good(build), number=n) for n in range(2)]
    for number, nmse in enumerate([1e-5, 3e-5, 0.5]):
        rows.append(build.row("arm", good(build, shift=0.01), number=number, **pass_columns(good(build), nmse=nmse)))
    table = judge_table(build.table(rows), "baseline")
    arm = count_arms(table, ["baseline", "arm"]).to_pylist()[1]
    assert arm["n_corrupt"] == 1
    assert arm["noise_nmse"] == pytest.approx(3e-5)


def test_rows_of_another_result_are_a_reference_that_says_where_it_comes_from(build: Any) -> None:
    rows = build.table([build.row("safe", good(build), number=n) for n in range(3)])
    found = reference_of_result("earlier", rows)
    assert found.reference is not None
    assert found.reference.source == (
        "stored result 'earlier': consensus of arm 'safe': 3 of 3 ok trials agree in logits digests"
    )
    assert judge_rows([build.row("arm", good(build))], "baseline", found)[0].verdict is Verdict.IDENTICAL
    missing = reference_of_result("earlier", None)
    assert judge_rows([build.row("arm", good(build))], "baseline", missing)[0].verdict is Verdict.UNJUDGED


# Properties

SIZES = [0.0, 0.0, 1e-6, 1e-3, 0.02, 0.3, math.inf]


@st.composite
def rows_with_passes(draw: st.DrawFn, build: Any) -> list[dict[str, Any]]:
    reference = build.request([1, 2, 3], gaps=0.01, text=TEXT)
    answers = [
        reference,
        build.request([1, 2, 3], gaps=0.01, shift=0.001, text=TEXT),
        build.request([1, 9, 3], gaps=0.01, shift=0.3, text=TEXT),
        build.request([7, 7, 7], text="@@@"),
    ]
    scored = [reference, answers[2]]
    rows = []
    for number in range(draw(st.integers(0, 7))):
        columns: dict[str, Any] = {}
        if draw(st.booleans()):
            columns = pass_columns(
                draw(st.sampled_from(scored)),
                nmse=draw(st.lists(st.sampled_from(SIZES), min_size=3, max_size=3)),
                kl=draw(st.sampled_from([None, 0.0, 0.1])),
                digests=draw(st.sampled_from([None, None, answers[2]["logits_digests"]])),
                unlike=draw(st.sampled_from([0, 0, 0, 2])),
            )
            told = repr([columns[name] for name in sorted(columns) if name != "teacher_digests"]).encode()
            salt = int.from_bytes(hashlib.blake2b(told, digest_size=4).digest(), "little")
            columns["teacher_digests"] = [*columns["teacher_digests"][:2], salt]  # digests determine the measures
        cache = draw(st.sampled_from([None, "q4_0"]))
        rows.append(
            build.row(
                draw(st.sampled_from(["baseline", "baseline", "arm", "other"])),
                *draw(st.lists(st.sampled_from(answers), max_size=2)),
                number=number,
                settings=json.dumps({"temperature": 0, "type_k": cache}),
                **columns,
            )
        )
    return rows


quick = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
harmless = st.sampled_from([(), ("other",)])


@quick
@given(data=st.data(), arms=harmless, seed=st.integers(0, 99))
def test_judging_is_total_and_independent_of_the_order_of_rows(
    build: Any, data: st.DataObject, arms: Any, seed: int
) -> None:
    rows = data.draw(rows_with_passes(build))
    first = judge_rows(rows, "baseline", harmless=arms)
    assert [one.corrupt is None for one in first] == [one.verdict is Verdict.UNJUDGED for one in first]
    by_id = {row["trial_id"]: one for row, one in zip(rows, first, strict=True)}
    random.Random(seed).shuffle(rows)
    again = judge_rows(rows, "baseline", harmless=arms)
    assert {row["trial_id"]: one for row, one in zip(rows, again, strict=True)} == by_id


@quick
@given(data=st.data(), arms=harmless)
def test_a_table_is_judged_as_its_rows_are(build: Any, data: st.DataObject, arms: Any) -> None:
    table = build.table(data.draw(rows_with_passes(build)))
    expected = [one.as_row() for one in judge_rows(table.to_pylist(), "baseline", harmless=arms)]
    names = [column.name for column in VERDICT_COLUMNS]
    assert judge_table(table, "baseline", harmless=arms).select(names).to_pylist() == expected


@quick
@given(data=st.data(), low=st.floats(1e-6, 1), more=st.floats(1, 100))
def test_higher_limits_never_make_a_verdict_worse(build: Any, data: st.DataObject, low: float, more: float) -> None:
    rows = data.draw(rows_with_passes(build))
    choice = ReferenceChoice(arm="baseline")
    strict = judge_rows(rows, "baseline", choice, Thresholds(wrong_nmse=low, wrong_kl=low))
    loose = judge_rows(rows, "baseline", choice, Thresholds(wrong_nmse=low * more, wrong_kl=low * more))
    for before, after in zip(strict, loose, strict=True):
        if before.verdict is not Verdict.UNJUDGED:
            assert SEVERITY[after.verdict] <= SEVERITY[before.verdict]
