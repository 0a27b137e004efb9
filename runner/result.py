"""A stored result, read back and analysed: what `show`, `report` and `judge` have in common."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..matrix.analysis import Analysis, analyse
from ..matrix.plan import Plan, PlanError
from ..matrix.table import Table
from ..matrix.thresholds import ThresholdError
from .errors import UserError
from .provenance import provenance_lines
from .store import ResultFolder, StoreError, newest_result

__all__ = [
    "LoadedResult",
    "find_result",
    "load_result",
    "refuse_lost_trials",
    "stored_plan",
    "stored_provenance",
    "table_of",
]

RESULTS = Path("results")


@dataclass(frozen=True)
class LoadedResult:
    """A result folder with the analysis of its rows."""

    folder: ResultFolder
    analysis: Analysis
    provenance: Mapping[str, Any]

    def table(self) -> Table:
        """The isolation table of this result."""
        return table_of(self.analysis, self.folder.path.name, self.provenance)


def find_result(word: str | None) -> Path:
    """A folder, a name below `results/`, or the newest result there; `UserError` if there is none."""
    if word is None:
        return newest_result(RESULTS).path
    given = Path(word).expanduser()
    return given if given.exists() or not (RESULTS / word).exists() else RESULTS / word


def load_result(
    word: str | None,
    thresholds: Mapping[str, float] | None = None,
    harmless: Sequence[str] = (),
    *,
    reset: bool = False,
) -> LoadedResult:
    """Read and analyse a result, with other thresholds or harmless arms than its plan has.

    `reset` forgets what the plan says of both, before anything else.

    `UserError` where the result is missing or damaged, or where a threshold or an arm is unknown.
    """
    folder = ResultFolder.open(find_result(word))
    plan, trials, rows = stored_plan(folder), folder.read_trials(), folder.read_reference_rows()
    refuse_lost_trials(folder, trials)
    if reset:
        plan = dataclasses.replace(plan, thresholds={}, reference={**plan.reference, "harmless": []})
    try:
        analysis = analyse(plan, trials, thresholds, harmless=harmless, reference_rows=rows)
    except ThresholdError as error:
        raise UserError(f"--set: {error}") from error
    except PlanError as error:
        raise UserError(f"--harmless: {error}") from error
    return LoadedResult(folder, analysis, stored_provenance(folder))


def stored_plan(folder: ResultFolder) -> Plan:
    """The plan of a result; `UserError` if it cannot be read."""
    try:
        return Plan.from_json(folder.read_plan())
    except PlanError as error:
        raise UserError(f"{folder.plan_file}: {error}; restore it from a copy") from error


def stored_provenance(folder: ResultFolder) -> Mapping[str, Any]:
    """The provenance of a result; empty where it is missing or damaged, which costs the footer and no row."""
    try:
        stored = json.loads(folder.read_provenance())
    except (StoreError, json.JSONDecodeError):
        return {}
    return stored if isinstance(stored, dict) and stored.get("models") else {}


def refuse_lost_trials(folder: ResultFolder, trials: pa.Table) -> None:
    """`UserError` for a result that counted trials once and has none now."""
    if not trials.num_rows and folder.arms_file.exists():
        lost, counted = folder.trials_file, folder.arms_file.name
        raise UserError(f"{lost} is gone, though {counted} has counts; restore it from a copy, or delete the folder")


def table_of(analysis: Analysis, name: str, provenance: Mapping[str, Any]) -> Table:
    """The table with its title and provenance footer."""
    builds = sorted({build for build in analysis.trials.column("build").to_pylist() if build})
    probe = analysis.plan.baseline.configuration["probe"]["kind"]
    if not provenance:
        return analysis.table(f"{name}: {probe} probe", ["provenance.json is missing or cannot be read"])
    model = provenance["models"][0]["name"]
    return analysis.table(f"{name}: {model}, {probe} probe", provenance_lines(provenance, builds))
