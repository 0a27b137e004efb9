"""One round: the task of one Hydra job. It runs the scheduled trials that have no row yet, and writes the rows."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from ..matrix.arm import Arm
from ..matrix.outcome import Outcome
from ..matrix.plan import Plan, PlannedTrial
from ..matrix.plant import plant_of
from . import session
from .errors import UserError
from .load import LoadSpec
from .provenance import machine_id
from .reference_logits import WorkerReference, prepared, read_reference_logits, record
from .store import ResultFolder
from .trial import BadInput, Limits, TrialRequest, run_trial

__all__ = ["run_round", "trial_request"]

_WORKER = Path(__file__).parent / "worker"
_SPEC_VERSION = 1


def run_round(config: DictConfig) -> None:
    """Run what `schedule/` lists for `run.round` in the result `run.folder`.

    Raises `UserError` when the worker finds the input itself wrong: then no further trial can do better.
    """
    folder = ResultFolder.open(Path(config.run.folder))
    plan = Plan.from_json(folder.read_plan())
    current = session.current()
    finished = folder.finished_trials()
    open_arms = folder.read_schedule(config.run.round)
    if not _reference_decided(folder, plan):
        return
    with prepared(folder) as reference:
        for planned in plan.round_trials(config.run.round, open_arms):
            if current.cancel.is_set():
                return
            if planned.trial_id in finished:
                continue
            if current.on_start:
                current.on_start(planned.arm)
            row = _row(plan, planned, reference)
            if row["outcome"] == Outcome.INTERRUPTED.value:
                return  # ended by the user: not a result, and a resumed run does it again
            folder.write_part(row)
            if current.on_trial:
                current.on_trial(row)


def _reference_decided(folder: ResultFolder, plan: Plan) -> bool:
    """Record the reference's logits, here where the trials run, unless that was done; false if the user ended it."""
    if read_reference_logits(folder) is not None:
        return True
    current = session.current()
    if current.on_note:
        current.on_note("reference logits: recording the reference arm until two trials agree")
    logits = record(plan, folder, trial_request, functools.partial(_run, plan))
    if logits is not None and current.on_note:
        current.on_note(f"{logits} ({logits.seconds:.1f} s)")
    return logits is not None


def _run(plan: Plan, arm: Arm, request: TrialRequest) -> dict[str, Any]:
    try:
        return run_trial(request, cancel=session.current().cancel)
    except BadInput as error:
        where = "" if arm is plan.baseline else f"arm '{arm.name}': "
        raise UserError(f"{where}{error}") from error


def _row(plan: Plan, planned: PlannedTrial, reference: WorkerReference) -> dict[str, Any]:
    arm = plan.arm(planned.arm)
    row = _run(plan, arm, trial_request(arm, planned.trial_id, reference.section(arm)))
    return {**row, **reference.columns(arm, row), **_identity(arm, planned), "machine": _machine()}


@functools.cache
def _machine() -> str:
    return machine_id()


def _identity(arm: Arm, planned: PlannedTrial) -> dict[str, Any]:
    model, probe = arm.configuration["model"], arm.configuration["probe"]
    return {
        "trial_id": planned.trial_id,
        "arm": arm.name,
        "axis": arm.axis,
        "level": arm.level,
        "changes": arm.changes_text,
        "round": planned.round,
        "position": planned.position,
        "model_sha256": model["sha256"],
        "mmproj_sha256": model["mmproj_sha256"],
        "media_sha256": probe["media_sha256"],
        "plant": None if (plant := plant_of(arm)) is None else json.dumps(dict(plant)),
    }


def trial_request(arm: Arm, trial_id: str, teacher: Mapping[str, Any] | None = None) -> TrialRequest:
    """What the trial runner needs to run one trial of an arm; `teacher` is that section of the worker's spec."""
    configuration = arm.configuration
    files, limits, load = configuration["files"], configuration["limits"], configuration["load"]
    memory_gb = limits["memory_gb"]
    return TrialRequest(
        trial_id=trial_id,
        command=(files["python"], str(_WORKER)),
        spec={**_spec(configuration, trial_id), "teacher": None if teacher is None else dict(teacher)},
        environment=configuration["settings"]["env"],
        limits=Limits(
            wall_s=limits["wall_s"],
            stall_s=limits["stall_s"],
            memory_bytes=None if memory_gb is None else int(memory_gb * 2**30),
        ),
        load=LoadSpec(load["kind"], load["parameters"]),
    )


def _spec(configuration: Mapping[str, Any], trial_id: str) -> dict[str, Any]:
    files, probe = configuration["files"], configuration["probe"]
    return {
        "spec_version": _SPEC_VERSION,
        "trial_id": trial_id,
        "model": {"path": files["model"], "mmproj": files["mmproj"]},
        "settings": configuration["settings"],
        "probe": {
            "kind": probe["kind"],
            "prompt": probe["prompt"],
            "media": files["media"],
            "requests": probe["requests"],
            "top_k_recorded": probe["top_k_recorded"],
            "add_special": True,
            "ignore_eos": probe["ignore_eos"],
        },
        "limits": {},
        "plant": configuration.get("plant"),
    }
