"""A stored result, read back and analysed: what `show`, `report` and `judge` have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..matrix.analysis import Analysis, analyse
from ..matrix.plan import Plan, PlanError
from ..matrix.table import Table
from ..matrix.thresholds import ThresholdError
from .errors import UserError
from .provenance import provenance_lines
from .store import ResultFolder, newest_result

__all__ = ["LoadedResult", "find_result", "load_result", "table_of"]

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
    word: str | None, thresholds: Mapping[str, float] | None = None, harmless: Sequence[str] = ()
) -> LoadedResult:
    """Read and analyse a result, with other thresholds or harmless arms than its plan has.

    `UserError` where the result is missing or damaged, or where a threshold or an arm is unknown.
    """
    folder = ResultFolder.open(find_result(word))
    try:
        plan = Plan.from_json(folder.read_plan())
    except PlanError as error:
        raise UserError(f"{folder.path}/plan.json: {error}") from error
    trials, rows = folder.read_trials(), folder.read_reference_rows()
    try:
        analysis = analyse(plan, trials, thresholds, harmless=harmless, reference_rows=rows)
    except ThresholdError as error:
        raise UserError(f"--set: {error}") from error
    except PlanError as error:
        raise UserError(f"--harmless: {error}") from error
    return LoadedResult(folder, analysis, json.loads(folder.read_provenance()))


def table_of(analysis: Analysis, name: str, provenance: Mapping[str, Any]) -> Table:
    """The table with its title and provenance footer."""
    builds = sorted({build for build in analysis.trials.column("build").to_pylist() if build})
    probe = analysis.plan.baseline.configuration["probe"]["kind"]
    model = provenance["models"][0]["name"] if provenance["models"] else "?"
    return analysis.table(f"{name}: {model}, {probe} probe", provenance_lines(provenance, builds))
