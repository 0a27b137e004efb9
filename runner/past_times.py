"""How long a trial takes, from results that are stored already."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..matrix.outcome import Outcome
from ..matrix.plan import Plan, PlanError
from .store import ResultFolder, StoreError, stored_results

__all__ = ["PastTime", "past_trial_time"]

_log = logging.getLogger(__name__)

_LOOKED_AT = 50
"""Results that are looked at, newest first: a plan is asked for in a moment, not in minutes."""


@dataclass(frozen=True)
class PastTime:
    """Median wall time of the ok trials of one stored result, in seconds."""

    seconds: float
    trials: int
    result: str


def past_trial_time(results: Path, plan: Plan) -> PastTime | None:
    """Trial time of the newest result below `results` with this plan's model and probe; None if there is none."""
    wanted = _question(plan.baseline.configuration)
    for folder in stored_results(results)[:_LOOKED_AT]:
        try:
            stored = Plan.from_json(folder.read_plan())
            if _question(stored.baseline.configuration) != wanted:
                continue
            times = _wall_times(folder)
        except (StoreError, PlanError) as error:
            _log.info("%s is passed over: %s", folder.path, error)
            continue
        if times:
            return PastTime(statistics.median(times), len(times), folder.path.name)
    return None


def _question(configuration: Mapping[str, Any]) -> tuple[Any, ...]:
    """What decides most about a trial's time: the model, and what it is asked."""
    probe = configuration["probe"]
    asked = (probe.get(name) for name in ("kind", "prompt", "media_sha256", "requests"))
    return (configuration["model"], configuration["settings"].get("max_tokens"), *asked)


def _wall_times(folder: ResultFolder) -> list[float]:
    columns = folder.read_trials(["outcome", "wall_s"]).to_pydict()
    return [
        seconds
        for outcome, seconds in zip(columns["outcome"], columns["wall_s"], strict=True)
        if outcome == Outcome.OK.value and seconds is not None
    ]
