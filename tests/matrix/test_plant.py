"""What may be planted, and the mark that a planted arm carries."""

from __future__ import annotations

from typing import Any

import pytest
from isomatrix.matrix.arm import Arm
from isomatrix.matrix.plant import MARK, PlantError, arm_label, mark_planted, plant_from_mapping, plant_words


def test_a_plant_has_all_its_parameters_and_none_is_no_plant():
    assert plant_from_mapping({"kind": "none", "rate": 0.5}) is None
    assert plant_from_mapping({"kind": "abort"}) == {
        "kind": "abort",
        "rate": 1.0,
        "when": {},
        "seed": 1,
        "stage": "generate",
    }


def test_conditions_take_the_form_that_settings_have_when_applied():
    when = {"flash_attn": True, "n_threads": ">=2", "env.GGML_X": 1, "env": {"GGML_Y": None}}
    plant = plant_from_mapping({"kind": "hang", "when": when})
    assert plant is not None
    assert plant["when"] == {"flash_attn": "on", "n_threads": ">=2", "env.GGML_X": "1", "env.GGML_Y": None}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"kind": "flip"}, "plant.kind: 'flip' is not one of none, flip_token"),
        ({"kind": "abort", "node": "x"}, "plant.node: plant abort has no such parameter"),
        ({"kind": "node_error", "nodes": "x"}, r"plant.nodes: .* Did you mean 'node'\?"),
        ({"kind": "abort", "rate": 1.5}, "plant.rate: 1.5 is no probability"),
        ({"kind": "abort", "rate": True}, "plant.rate: True is not a number"),
        ({"kind": "abort", "stage": "later"}, "plant.stage: 'later' is not one of load, prompt, generate"),
        ({"kind": "node_error", "part": "audio"}, "plant.part: 'audio' is not one of model, projector"),
        ({"kind": "node_error", "min_rows": 0}, "plant.min_rows: 0 is not a whole number of at least 1"),
        ({"kind": "flip_token", "rank": 1.5}, "plant.rank: 1.5 is not a whole number"),
        ({"kind": "node_error", "node": ""}, "plant.node: '' is no text"),
        ({"kind": "abort", "when": "n_threads"}, "plant.when: 'n_threads' is not a mapping"),
        ({"kind": "abort", "when": {"n_thread": 2}}, r"plant.when.n_thread: no such setting. Did you mean"),
        ({"kind": "abort", "when": {"n_threads": ">=two"}}, "plant.when.n_threads: '>=two' compares with no number"),
        ({"kind": "abort", "when": {"op_offload": ">=1"}}, "plant.when.op_offload: is no number"),
        ({"kind": "abort", "when": {"type_k": "q9"}}, "plant.when.type_k: settings.type_k: 'q9' is not one of"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_field(values: dict[str, Any], sentence: str):
    with pytest.raises(PlantError, match=sentence):
        plant_from_mapping(values)


def test_words_name_what_is_not_the_default():
    plant = plant_from_mapping(
        {"kind": "node_error", "rate": 0.2, "min_rows": 32, "when": {"op_offload": True, "n_ubatch": ">=32"}}
    )
    assert plant is not None
    assert plant_words(plant) == "node_error, rate 0.2, min_rows 32, when op_offload=true and n_ubatch>=32"


def test_every_planted_arm_is_marked_and_contrasts_follow_its_new_name():
    planted = {"plant": plant_from_mapping({"kind": "abort"})}
    arms = [
        Arm("baseline", "baseline", "baseline", (), "baseline", planted),
        Arm("load=cpu", "load", "cpu", (), "baseline", planted),
        Arm("warmup=false & load=cpu", "several", "several", (), "load=cpu", planted),
        Arm("plant=none", "plant", "none", (), "baseline", {}),
    ]
    marked, renamed = mark_planted(arms)
    assert [(arm.name, arm.reference) for arm in marked] == [
        ("baseline", "baseline"),
        (f"load=cpu {MARK}", "baseline"),
        (f"warmup=false & load=cpu {MARK}", f"load=cpu {MARK}"),
        ("plant=none", "baseline"),
    ]
    assert renamed["load=cpu"] == f"load=cpu {MARK}"
    assert [MARK in arm_label(arm) for arm in marked] == [True, True, True, False]
