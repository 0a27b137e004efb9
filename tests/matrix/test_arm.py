from __future__ import annotations

import pytest
from isomatrix.matrix.arm import Arm, Axis, AxisError, draft_arms, level_text, merge_equal


def arm(name: str, reference: str = "baseline", **settings: object) -> Arm:
    return Arm(name, "several", "several", (), reference, {"settings": settings})


def test_axes_move_one_at_a_time_and_never_multiply():
    drafts = draft_arms([Axis("a", (1, 2, 3)), Axis("b", (True, False))], {})
    assert [draft.name for draft in drafts] == ["baseline", "a=2", "a=3", "b=false"]
    assert all(len(draft.changes) <= 1 for draft in drafts)


def test_named_arms_keep_their_changes_and_follow_the_axes():
    drafts = draft_arms([Axis("a", (1, 2))], {"safe": {"a": 2, "b": False}})
    assert drafts[-1].name == "safe"
    assert drafts[-1].changes == (("a", 2), ("b", False))


def test_a_crossed_axis_repeats_every_arm_and_each_is_compared_at_its_own_level():
    drafts = draft_arms([Axis("a", (1, 2)), Axis("load", ("none", "cpu"))], {"safe": {"a": 3}}, ["load"])
    references = {draft.name: draft.reference for draft in drafts}
    assert references == {
        "baseline": "baseline",
        "a=2": "baseline",
        "safe": "baseline",
        "load=cpu": "baseline",
        "a=2 & load=cpu": "load=cpu",
        "safe & load=cpu": "load=cpu",
    }


def test_two_crossed_axes_give_every_combination_of_their_levels():
    drafts = draft_arms([Axis("x", (0, 1)), Axis("y", (0, 1)), Axis("a", (0, 1))], {}, ["x", "y"])
    assert len(drafts) == 2 * 2 * 2
    references = {draft.name: draft.reference for draft in drafts}
    assert references["a=1 & x=1 & y=1"] == "x=1 & y=1"
    assert references["x=1 & y=1"] == "y=1"


def test_crossing_something_that_is_no_axis_is_refused():
    with pytest.raises(AxisError, match="cross: 'lod' is not an axis of this run; axes are load"):
        draft_arms([Axis("load", ("none", "cpu"))], {}, ["lod"])


@pytest.mark.parametrize("levels", [(), (1, 1), (None, "default")])
def test_an_axis_without_levels_or_with_a_level_twice_is_refused(levels: tuple[object, ...]):
    with pytest.raises(AxisError, match="axis a"):
        Axis("a", levels)


def test_a_named_arm_without_changes_or_with_a_taken_name_is_refused():
    with pytest.raises(AxisError, match="changes nothing"):
        draft_arms([], {"safe": {}})
    with pytest.raises(AxisError, match="has this name already"):
        draft_arms([Axis("a", (1, 2))], {"a=2": {"b": 1}})


def test_arms_of_one_configuration_are_merged_with_a_message_and_contrasts_follow():
    arms, merges = merge_equal([arm("baseline", a=1), arm("x", a=2), arm("y", a=2), arm("z", "y", a=3)])
    assert [a.name for a in arms] == ["baseline", "x", "z"]
    assert str(merges[0]) == "arm 'y' is the same configuration as 'x' and was left out"
    assert arms[-1].reference == "x"


@pytest.mark.parametrize(
    ("level", "text"), [(True, "true"), (None, "default"), ("gpu", "gpu"), (0.5, "0.5"), ([1, 2], "[1, 2]")]
)
def test_levels_are_written_as_in_the_configuration(level: object, text: str):
    assert level_text(level) == text
