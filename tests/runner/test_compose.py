from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from isomatrix.matrix.plan import Plan
from isomatrix.runner.errors import UserError

Compose = Callable[..., Plan]


def names(plan: Plan) -> list[str]:
    return [arm.name for arm in plan.arms]


def test_the_default_plan_moves_the_six_axes_one_at_a_time(composed_plan: Compose):
    assert names(composed_plan()) == [
        "baseline",
        "op_offload=false",
        "offload_kqv=false",
        "n_gpu_layers=0",
        "projector_device=cpu",
        "warmup=false",
        "process=persistent",
    ]


def test_the_first_level_on_the_command_line_is_the_baseline(composed_plan: Compose):
    plan = composed_plan("probe=text", "settings.n_gpu_layers=0,12,99")
    assert names(plan) == ["baseline", "n_gpu_layers=12", "n_gpu_layers=99"]
    assert [arm.configuration["settings"]["n_gpu_layers"] for arm in plan.arms] == [0, 12, 99]


def test_axes_on_the_command_line_replace_the_default_ones_unless_a_group_is_chosen(composed_plan: Compose):
    assert len(composed_plan("settings.n_ubatch=512,31").arms) == 2
    assert len(composed_plan("settings.n_ubatch=512,31", "axes=card").arms) == 8


def test_flash_attention_takes_booleans_and_words_and_equal_arms_are_merged_with_a_note(composed_plan: Compose):
    plan = composed_plan("probe=text", "settings.flash_attn=false,true,auto,off")
    assert [arm.configuration["settings"]["flash_attn"] for arm in plan.arms] == ["off", "on", "auto"]
    assert plan.notes == ("arm 'flash_attn=off' is the same configuration as 'baseline' and was left out",)


def test_an_environment_variable_is_an_axis_and_null_unsets_it(composed_plan: Compose):
    plan = composed_plan("probe=text", "settings.env.GGML_OP_OFFLOAD_MIN_BATCH=null,1000000")
    assert names(plan) == ["baseline", "env.GGML_OP_OFFLOAD_MIN_BATCH=1000000"]
    assert [arm.configuration["settings"]["env"] for arm in plan.arms] == [
        {"GGML_OP_OFFLOAD_MIN_BATCH": None},
        {"GGML_OP_OFFLOAD_MIN_BATCH": "1000000"},
    ]


def test_awkward_values_reach_the_arm_unharmed(composed_plan: Compose):
    prompt = r"""say "it's {a}, b=c #1" \ \n"""
    quoted = "'" + prompt.replace("\\", "\\\\").replace("'", "\\'") + "'"
    plan = composed_plan("probe=text", f"probe.prompt={quoted},plain")
    assert plan.arms[1].configuration["probe"]["prompt"] == "plain"
    assert "it's {a}, b=c #1" in plan.baseline.configuration["probe"]["prompt"]


def test_a_prompt_is_text_as_it_stands_and_quoted_prompts_are_an_axis(composed_plan: Compose):
    prompt = "And so my fellow Americans, ask not (what) [your] {country} can do: 'x', \"y\" = \\"
    assert composed_plan("probe=text", "axes=none", f"probe.prompt={prompt}").baseline.configuration["probe"] == {
        **composed_plan("probe=text", "axes=none").baseline.configuration["probe"],
        "prompt": prompt,
    }
    two = composed_plan("probe=text", "probe.prompt='one, two','three'")
    assert [arm.configuration["probe"]["prompt"] for arm in two.arms] == ["one, two", "three"]


def test_an_existing_file_may_have_any_name(composed_plan: Compose, tmp_path: Path):
    odd = tmp_path / "ids (1), a=b.txt"
    odd.write_text("785")
    assert composed_plan("probe=text", f"reference.ids={odd}").reference["ids"] == [785]


def test_a_named_arm_changes_several_settings_and_says_so(composed_plan: Compose):
    plan = composed_plan("probe=text", "axes=none", "arms.safe={n_gpu_layers: 0, op_offload: false}")
    assert (plan.arms[1].name, plan.arms[1].axis) == ("safe", "several")
    assert plan.arms[1].changes_text == "n_gpu_layers=0, op_offload=false"


def test_crossing_the_load_compares_each_arm_under_its_own_load(composed_plan: Compose):
    plan = composed_plan("probe=text", "load=none,cpu", "settings.warmup=true,false", "cross=[load]")
    assert plan.contrasts() == [
        ("warmup=false", "baseline"),
        ("load=cpu", "baseline"),
        ("warmup=false & load=cpu", "load=cpu"),
    ]
    assert plan.arm("load=cpu").configuration["load"]["kind"] == "cpu"


def test_projector_axes_are_left_out_of_a_text_probe_with_a_note(composed_plan: Compose):
    plan = composed_plan("probe=text")
    assert "projector_device=cpu" not in names(plan)
    assert plan.notes == ("axis projector_device left out: a text probe loads no projector",)


def test_a_fresh_process_answers_one_request_and_a_persistent_one_several(composed_plan: Compose):
    plan = composed_plan("probe=text", "probe.requests=4", "settings.process=fresh,persistent")
    assert [arm.configuration["probe"]["requests"] for arm in plan.arms] == [1, 4]


def test_reference_ids_come_from_a_list_or_a_file(composed_plan: Compose, tmp_path: Path):
    file = tmp_path / "ids.txt"
    file.write_text("785, 4024\n2213")
    assert composed_plan("probe=text", "reference.ids=[785,4024]").reference["ids"] == [785, 4024]
    assert composed_plan("probe=text", f"reference.ids={file}").reference["ids"] == [785, 4024, 2213]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("settings.n_gpu_layer=1,2",), r"unknown setting 'settings.n_gpu_layer'. Did you mean 'n_gpu_layers'\?"),
        (("settings.n_threads=1,two",), "settings.n_threads: Value 'two'"),
        (("settings.type_k=f16,q9",), "arm 'type_k=q9': settings.type_k: 'q9' is not one of"),
        (("settings.n_ctx=0,64",), "settings.n_ctx: 0 is below 1"),
        (("run.seed=1,2",), "run.seed: run describes the experiment"),
        (("arms.safe={n_gpu: 0}",), "'n_gpu' is no setting"),
        (("arms.safe=3",), "arms.safe: 3 is not a mapping"),
        (("cross=[lod]",), "cross: 'lod' is not an axis"),
        (("load=none,gpu",), "load: 'gpu' is not one of cpu, none"),
        (("load=cpu", "load.processes=0"), "load"),
        (("load.processes=2",), "load.processes: an idle machine has no such parameter; choose a load"),
        (("probe.prompt=''",), "probe.prompt: the prompt is empty"),
        (("probe.requests=0",), "probe.requests: 0 is below 1"),
        (("model.path=nowhere.gguf",), "model.path: no file at .*nowhere.gguf"),
        (("model=file", "model.path=pyproject.toml"), "model.path: .*pyproject.toml is not a GGUF file"),
        (("reference.ids=[1,a]",), "reference.ids: .* is not a list of token ids"),
        (("reference.ids=nowhere.txt",), "reference.ids: no file at .*nowhere.txt"),
        (("reference.arm=nobody",), "no arm 'nobody' in this plan"),
        (("run.python=/nowhere/python",), "run.python: no file at /nowhere/python"),
        (("stop.rounds=0",), "stop.rounds: 0"),
        (("stop=fixed", "stop.alpha=2"), "stop.alpha: 2"),
        (("run.limits.wall_s=0",), "run.limits.wall_s: 0.0 is not above 0"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(composed_plan: Compose, words: tuple[str, ...], sentence: str):
    with pytest.raises(UserError, match=sentence):
        composed_plan("probe=text", *words)


def test_an_audio_probe_without_projector_or_audio_names_the_missing_field(composed_plan: Compose, tmp_path: Path):
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(UserError, match="model.mmproj: this probe sends media"):
        composed_plan(f"model.path={model}")
    with pytest.raises(UserError, match="probe.audio: probe=audio needs an audio file"):
        composed_plan(f"model.path={model}", f"model.mmproj={model}")


def test_a_wav_that_is_none_is_refused(composed_plan: Compose, tmp_path: Path):
    fake = tmp_path / "speech.wav"
    fake.write_bytes(b"this is no sound")
    with pytest.raises(UserError, match="probe.audio: .*speech.wav is not a WAV file"):
        composed_plan(f"probe.audio={fake}")


def test_an_interpreter_without_the_library_is_refused(composed_plan: Compose, tmp_path: Path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"python": "3.11.0", "package": null}\'\n')
    python.chmod(0o755)
    with pytest.raises(UserError, match="has no llama_cpp; install llama-cpp-python for that interpreter"):
        composed_plan("probe=text", f"run.python={python}")
