"""From the `reference` group of the configuration to the plan: which arm, ids or stored result count as right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from omegaconf import OmegaConf

from ..matrix.analysis import analyse
from ..matrix.outcome import Outcome
from ..matrix.plan import Plan, PlanError
from ..matrix.schema import TRIALS
from ..matrix.trials import trials_of
from .builds import find_build
from .errors import UserError
from .reference_logits import ReferenceLogits
from .store import ResultFolder

__all__ = ["SAFE", "check_result", "import_reference", "plan_reference", "safe_changes"]

SAFE = "safe"
"""The arm that `reference.arm=safe` adds where the user declared none of that name."""

_SAFE_LEVELS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "n_gpu_layers": (0, ("n_gpu_layers",)),
    "op_offload": (False, ("op_offload", "op_offloat")),  # misspelt in 0.3.12 to 0.3.14
    "offload_kqv": (False, ("offload_kqv",)),
    "projector_device": ("cpu", ("use_gpu",)),
    "n_threads": (1, ("n_threads",)),
    "n_threads_batch": (1, ("n_threads_batch",)),
}
"""Everything on the CPU, one thread: the level of each setting, and the fields of the library that carry it."""

_QUESTION = ("kind", "prompt", "media_sha256", "ignore_eos")


def safe_changes(base: Any) -> dict[str, Any]:
    """The changes of the safe arm for a composed configuration; settings that its build lacks are left unset."""
    fields = find_build(base.run.python, {str(name): value for name, value in base.settings.env.items()}).fields
    reached = {name for name in _SAFE_LEVELS if name != "projector_device" or base.probe.kind != "text"}
    return {
        name: level for name, (level, carriers) in _SAFE_LEVELS.items() if name in reached and fields & set(carriers)
    }


def plan_reference(node: Any, moved: Mapping[str, str]) -> dict[str, Any]:
    """The plan's `reference` from the configuration's; `moved` maps arms that were left out or renamed to others.

    Raises `UserError` for more than one kind of reference, and where a stored result cannot serve as one.
    """
    ids = _reference_ids(node.ids)
    if node.max_mb < 0:
        raise UserError(f"reference.max_mb: {node.max_mb} is below 0")
    if ids is not None and node.result is not None:
        raise UserError("reference: give either ids or a result, not both")
    common = {"max_mb": node.max_mb, "harmless": [moved.get(arm, arm) for arm in node.harmless]}
    if node.result is None:
        return {"arm": moved.get(node.arm, node.arm), "ids": ids, "result": None, **common}
    stored = _Stored.read(Path(str(node.result)))
    return {"arm": None, "ids": stored.ids, "result": stored.name, **common}


def _reference_ids(ids: Any) -> list[int] | None:
    """Token ids from a list, or from a file of whitespace- or comma-separated numbers."""
    if ids is None:
        return None
    plain = OmegaConf.to_container(ids) if OmegaConf.is_config(ids) else ids
    if isinstance(plain, str):
        plain = _ids_in_file(plain)
    if not isinstance(plain, list) or not plain or not all(type(item) is int and item >= 0 for item in plain):
        raise UserError(f"reference.ids: {plain!r} is not a list of token ids, nor a file of them")
    return plain


def _ids_in_file(text: str) -> list[int]:
    path = Path(text).expanduser()
    if not path.is_file():
        raise UserError(f"reference.ids: no file at {path.absolute()}, and not a list like [785,4024]")
    words = re.split(r"[\s,\[\]]+", path.read_text(errors="replace"))
    wrong = [word for word in words if word and not word.isdigit()]
    if wrong:
        raise UserError(f"reference.ids: {path} has '{wrong[0][:40]}', which is not a token id")
    return [int(word) for word in words if word]


# Another result


@dataclass(frozen=True)
class _Stored:
    """Another result as a reference: its own reference's rows, or its ids."""

    folder: ResultFolder
    plan: Plan
    name: str
    ids: list[int] | None

    @classmethod
    def read(cls, path: Path) -> _Stored:
        folder = ResultFolder.open(path.expanduser())
        try:
            plan = Plan.from_json(folder.read_plan())
        except PlanError as error:
            raise UserError(f"reference.result: {path}/plan.json: {error}") from error
        ids = plan.reference.get("ids")
        return cls(folder, plan, folder.path.absolute().name, None if ids is None else list(ids))

    def rows(self) -> pa.Table:
        """The ok rows whose consensus is the reference there, without their logs, which were judged already."""
        if self.plan.reference.get("result") is not None:
            rows = self.folder.read_reference_rows()
            if rows is None:
                raise UserError(f"reference.result: {self.folder.path} has lost the rows of its own reference")
            return rows
        arm = self.plan.reference.get("arm") or self.plan.baseline.name
        judged = analyse(self.plan, self.folder.read_trials()).trials
        outcomes = trials_of(judged).judged_outcomes
        arms = judged.column("arm").to_pylist()
        wanted = [outcome is Outcome.OK and own == arm for outcome, own in zip(outcomes, arms, strict=True)]
        rows = judged.filter(pa.array(wanted))
        column = next(column for column in TRIALS if column.name == "native_log")
        place = rows.column_names.index(column.name)
        return rows.set_column(place, rows.schema.field(place), pa.nulls(rows.num_rows, column.type))


def check_result(plan: Plan, source: Path) -> None:
    """`UserError` if the stored result `source` was asked something else than this plan asks."""
    stored = _Stored.read(source)
    ours, theirs = (one.baseline.configuration["probe"] for one in (plan, stored.plan))
    other = [name for name in _QUESTION if ours.get(name) != theirs.get(name)]
    if other:
        raise UserError(
            f"reference.result: {stored.name} asked something else (probe.{other[0]} is {theirs.get(other[0])!r} there "
            f"and {ours.get(other[0])!r} here), so its answer says nothing about this run"
        )


def import_reference(source: Path, folder: ResultFolder) -> None:
    """Copy the reference of the stored result `source` into `folder`, so that it stands on its own.

    Raises `UserError` if that result has not enough trials to agree.
    """
    stored = _Stored.read(source)
    rows = stored.rows()
    if rows.num_rows < 2:
        raise UserError(f"reference.result: {source} has fewer than two ok trials of its reference arm")
    logits = stored.folder.read_reference()
    if logits is None:
        logits = ReferenceLogits(False, f"the stored result '{stored.name}' has no logits of its reference").as_json()
    if stored.folder.reference_logits_file.exists():
        folder.write_reference_logits(stored.folder.read_reference_logits())
    folder.write_reference_rows(rows)
    folder.write_reference(logits)
