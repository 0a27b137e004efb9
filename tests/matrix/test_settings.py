from __future__ import annotations

import dataclasses

import pytest
from isomatrix.matrix.settings import Scope, SettingError, Settings, setting_table, settings_from_mapping


def test_an_unset_setting_stays_unset():
    assert all(value is None for name, value in settings_from_mapping({}).as_mapping().items() if name != "env")


@pytest.mark.parametrize(("given", "canonical"), [(True, "on"), (False, "off"), ("auto", "auto"), ("on", "on")])
def test_flash_attention_accepts_booleans_and_words(given: object, canonical: str):
    assert settings_from_mapping({"flash_attn": given}).flash_attn == canonical


def test_an_unknown_setting_is_refused_and_the_nearest_name_is_offered():
    with pytest.raises(SettingError, match=r"unknown setting 'n_gpu_layer'. Did you mean 'n_gpu_layers'\?"):
        settings_from_mapping({"n_gpu_layer": 3})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("n_ctx", "many", "settings.n_ctx: 'many' is not of type int"),
        ("n_ctx", True, "settings.n_ctx: True is not of type int"),
        ("n_ctx", 0, "settings.n_ctx: 0 is below 1"),
        ("n_gpu_layers", -2, "settings.n_gpu_layers: -2 is below -1"),
        ("op_offload", 1, "settings.op_offload: 1 is not of type bool"),
        ("type_k", "q9", "settings.type_k: 'q9' is not one of f32, f16"),
        ("projector_device", "metal", "settings.projector_device: 'metal' is not one of cpu, gpu"),
        ("temperature", float("nan"), "settings.temperature: nan is not a number"),
        ("tensor_split", [1, "x"], "settings.tensor_split: 'x' is not a number"),
        ("env", {"A=B": "1"}, "'A=B' is not the name of an environment variable"),
        ("env", {"A": [1]}, r"settings.env.A: \[1\] is neither text nor a number"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_with_its_field(name: str, value: object, words: str):
    with pytest.raises(SettingError, match=words):
        settings_from_mapping({name: value})


def test_environment_values_become_text_and_null_means_unset():
    env = settings_from_mapping({"env": {"B": 1, "A": True, "C": None}}).env
    assert env == {"A": "1", "B": "1", "C": None}
    assert list(env) == ["A", "B", "C"]


def test_every_setting_has_a_scope_a_kind_and_a_description():
    table = setting_table()
    assert list(table) == [field.name for field in dataclasses.fields(Settings)]
    for setting in table.values():
        assert isinstance(setting.scope, Scope)
        assert setting.about
        assert setting.kind in ("bool", "int", "float", "str", "list of float", "on, off or auto", "mapping")


def test_changed_checks_the_new_value():
    base = settings_from_mapping({"n_ctx": 64})
    assert base.changed(n_batch=8) == settings_from_mapping({"n_ctx": 64, "n_batch": 8})
    with pytest.raises(SettingError, match="n_batch"):
        base.changed(n_batch=0)
