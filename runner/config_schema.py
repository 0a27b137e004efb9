"""The typed shape of the Hydra configuration, registered as `schema`."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore

from ..matrix.settings import Settings
from ..matrix.statistics.rule import StopRule

__all__ = ["node_fields", "register"]


@dataclass
class ModelNode:
    """Which model, and which projector."""

    kind: str = "file"
    path: str | None = None
    mmproj: str | None = None


@dataclass
class ProbeNode:
    """What a trial asks of the model."""

    kind: str = "text"
    prompt: str = ""
    audio: str | None = None
    image: str | None = None
    requests: int = 3
    top_k_recorded: int = 10
    ignore_eos: bool = False
    teacher_forced: bool = True


@dataclass
class ReferenceNode:
    """What counts as right: an arm's consensus, another result's, or token ids given as a list or as a file of them.

    `max_mb` limits the logits that are kept of it, megabytes; `harmless` names arms whose noise sets the limits.
    """

    arm: str = "baseline"
    ids: Any = None
    result: str | None = None
    max_mb: float = 256.0
    harmless: list[str] = field(default_factory=list)


@dataclass
class ControlsNode:
    """Whether a positive and a negative control run along, and the rate of the positive one's planted fault."""

    enabled: bool = False
    rate: float = 0.5


@dataclass
class PlanNode:
    """What `isomatrix plan` forecasts: these rates of one arm, against the rate of the baseline and all others."""

    rates: list[float] = field(default_factory=lambda: [0.9, 0.5, 0.3])
    baseline_rate: float = 0.0


@dataclass
class LimitsNode:
    """When the runner ends a trial."""

    wall_s: float = 600.0
    stall_s: float | None = None
    memory_gb: float | None = None


@dataclass
class RunNode:
    """Where results go and how trials are started. `folder` and `round` are set by the sweeper."""

    name: str | None = None
    results: str = "results"
    seed: int = 1
    python: str | None = None
    limits: LimitsNode = field(default_factory=LimitsNode)
    folder: str = "."
    round: int = -1


def _settings_node() -> type:
    # Settings is frozen and OmegaConf makes frozen dataclasses read-only, so overrides would be refused.
    hints = typing.get_type_hints(Settings)
    fields: list[Any] = [
        (f.name, hints[f.name], field(default_factory=dict) if f.name == "env" else field(default=None))
        for f in dataclasses.fields(Settings)
    ]
    return dataclasses.make_dataclass("SettingsNode", fields)


_SettingsNode = _settings_node()


def node_fields() -> dict[str, list[str]]:
    """Names that the parts of the configuration have, for those parts whose names are fixed."""
    nodes = {
        "settings": Settings,
        "model": ModelNode,
        "probe": ProbeNode,
        "controls": ControlsNode,
        "stop": StopRule,
        "plan": PlanNode,
        "reference": ReferenceNode,
        "run": RunNode,
    }
    return {name: [f.name for f in dataclasses.fields(node)] for name, node in nodes.items()}


def register() -> None:
    """Make `schema` known to Hydra's configuration store."""
    node = dataclasses.make_dataclass(
        "IsomatrixConfig",
        [
            ("settings", _SettingsNode, field(default_factory=_SettingsNode)),
            ("model", ModelNode, field(default_factory=ModelNode)),
            ("probe", ProbeNode, field(default_factory=ProbeNode)),
            ("axes", dict[str, Any], field(default_factory=dict)),
            ("arms", dict[str, Any], field(default_factory=dict)),
            ("cross", list[str], field(default_factory=list)),
            ("load", dict[str, Any], field(default_factory=dict)),
            ("plant", dict[str, Any], field(default_factory=dict)),
            ("controls", ControlsNode, field(default_factory=ControlsNode)),
            ("stop", dict[str, Any], field(default_factory=dict)),
            ("plan", PlanNode, field(default_factory=PlanNode)),
            ("reference", ReferenceNode, field(default_factory=ReferenceNode)),
            ("thresholds", dict[str, Any], field(default_factory=dict)),
            ("run", RunNode, field(default_factory=RunNode)),
        ],
    )
    ConfigStore.instance().store(name="schema", node=node)
