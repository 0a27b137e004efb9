"""The stop rules of the configuration are rules that the statistics accept."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import isomatrix.conf
import pytest
from isomatrix.matrix.statistics.rule import StopRule, stop_rule_from_mapping
from omegaconf import OmegaConf

STOP = Path(isomatrix.conf.__file__).parent / "stop"


@pytest.mark.parametrize(("name", "rounds"), [("sequential", 40), ("fixed", 5)])
def test_every_field_is_written_out_with_a_valid_value(name: str, rounds: int) -> None:
    values = OmegaConf.to_container(OmegaConf.load(STOP / f"{name}.yaml"))
    assert isinstance(values, dict)
    rule = stop_rule_from_mapping({str(key): value for key, value in values.items()})
    assert (rule.kind, rule.rounds) == (name, rounds)
    assert set(values) == {field.name for field in dataclasses.fields(StopRule)}


def test_the_sequential_file_is_the_default_rule() -> None:
    values = OmegaConf.to_container(OmegaConf.load(STOP / "sequential.yaml"))
    assert isinstance(values, dict)
    assert stop_rule_from_mapping({str(key): value for key, value in values.items()}) == StopRule()
