"""What one command is doing, shared between the command line, the sweeper and the round's task.

Hydra returns nothing from a multirun and calls the sweeper and the task by itself, so this is the one place
where they meet. A launcher that runs rounds in another process finds an empty session there, and the round's
task then only writes its rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ..matrix.plan import Plan
    from .experiment import Finished

__all__ = ["Session", "begin", "current"]


@dataclass
class Session:
    """State of one command in this process."""

    verb: Literal["run", "plan"] = "run"
    cancel: threading.Event = field(default_factory=threading.Event)
    on_trial: Callable[[Mapping[str, Any]], None] | None = None
    on_start: Callable[[str], None] | None = None
    on_note: Callable[[str], None] | None = None
    plan: Plan | None = None
    config: DictConfig | None = None  # of the baseline, beside `plan`
    finished: Finished | None = None


_current = Session()


def begin(verb: Literal["run", "plan"]) -> Session:
    """Start a new session in this process."""
    global _current
    _current = Session(verb=verb)
    return _current


def current() -> Session:
    """The session of this process."""
    return _current
