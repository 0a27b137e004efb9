"""A reference is agreed on by at least two trials, or there is none and the reason is said."""

from __future__ import annotations

import random
from typing import Any

import pytest
from isomatrix.matrix.reference import (
    Agreement,
    ReferenceChoice,
    ReferenceChoiceError,
    circumstances,
    consensus,
    find_reference,
    reference_from_ids,
)


def rows_of(build: Any, *requests: Any, arm: str = "baseline", **fields: Any) -> list[dict[str, Any]]:
    return [build.row(arm, request, number=number, **fields) for number, request in enumerate(requests)]


def test_the_most_frequent_digests_are_the_reference(build: Any) -> None:
    good, bad = build.request([1, 2, 3]), build.request([7, 8, 9])
    found = consensus(rows_of(build, good, bad, good), "baseline")
    assert found.reference is not None
    assert found.reference.request(0).token_ids.tolist() == [1, 2, 3]
    assert found.reference.agreement is Agreement.DIGESTS
    assert "2 of 3" in found.reason


def test_two_different_trials_are_no_consensus(build: Any) -> None:
    found = consensus(rows_of(build, build.request([1]), build.request([2])), "baseline")
    assert found.reference is None
    assert "no token sequence" in found.reason


def test_a_tie_is_no_consensus(build: Any) -> None:
    good, bad = build.request([1]), build.request([2])
    assert consensus(rows_of(build, good, bad, good, bad), "baseline").reference is None


def test_one_trial_is_no_consensus_unless_provisional(build: Any) -> None:
    rows = rows_of(build, build.request([1, 2]))
    assert consensus(rows, "baseline").reference is None
    found = consensus(rows, "baseline", provisional=True).reference
    assert found is not None
    assert found.provisional


def test_provisional_does_not_pick_between_two_that_disagree(build: Any) -> None:
    rows = rows_of(build, build.request([1]), build.request([2]))
    assert consensus(rows, "baseline", provisional=True).reference is None


def test_logits_that_never_repeat_still_agree_on_ids(build: Any) -> None:
    requests = [build.request([1, 2], shift=shift) for shift in (0.0, 0.001, 0.002)]
    found = consensus(rows_of(build, *requests), "baseline").reference
    assert found is not None
    assert found.agreement is Agreement.IDS
    assert "do not repeat" in found.source


def test_failed_trials_have_no_say(build: Any) -> None:
    bad = build.request([7])
    rows = rows_of(build, bad, bad, bad, outcome="timeout")
    assert consensus(rows, "baseline").reference is None
    assert "no ok trial" in consensus(rows, "baseline").reason


def test_trials_with_a_fault_in_the_log_have_no_say(build: Any) -> None:
    bad = rows_of(build, build.request([7]), build.request([7]), native_log="CUDA error: out of luck\n")
    good = [build.row("baseline", build.request([1]), number=5)]
    found = consensus(bad + good, "baseline", provisional=True).reference
    assert found is not None
    assert found.request(0).token_ids.tolist() == [1]


def test_the_order_of_rows_does_not_matter(build: Any) -> None:
    requests = [build.request([1, 2], shift=shift) for shift in (0.0, 0.001, 0.002, 0.003)]
    rows = rows_of(build, *requests)
    seen = set()
    for seed in range(5):
        random.Random(seed).shuffle(rows)
        found = consensus(rows, "baseline").reference
        assert found is not None
        seen.add(tuple(found.request(0).digests.tolist()))  # type: ignore[union-attr]
    assert len(seen) == 1


def test_later_requests_are_compared_with_request_0_of_a_fresh_baseline(build: Any) -> None:
    found = consensus(rows_of(build, build.request([1]), build.request([1])), "baseline").reference
    assert found is not None
    assert found.request(4) is found.request(0)


def test_ids_given_by_the_user_say_that_identical_means_the_same_ids() -> None:
    reference = reference_from_ids([785, 4024, 2213])
    assert reference.agreement is Agreement.GIVEN
    assert "same ids" in reference.source
    assert reference.request(0).digests is None


def test_another_arm_can_be_the_reference(build: Any) -> None:
    safe = build.request([1])
    rows = [*rows_of(build, build.request([7]), build.request([7])), *rows_of(build, safe, safe, arm="safe")]
    found = find_reference(rows, "baseline", ReferenceChoice(arm="safe")).reference
    assert found is not None
    assert found.request(0).token_ids.tolist() == [1]


def test_a_choice_of_both_or_of_nothing_is_refused() -> None:
    with pytest.raises(ReferenceChoiceError, match="not both"):
        ReferenceChoice(arm="safe", ids=(1,))
    with pytest.raises(ReferenceChoiceError, match="empty"):
        ReferenceChoice(ids=())


def test_settings_tell_how_tokens_were_chosen_and_how_coarse_the_cache_is() -> None:
    assert circumstances('{"temperature": 0}').greedy is True
    assert circumstances('{"temperature": 0.7}').greedy is False
    assert circumstances(None).greedy is None
    assert circumstances('{"type_k": "q4_0"}').coarse_cache
    assert not circumstances('{"type_k": "q8_0"}').coarse_cache
