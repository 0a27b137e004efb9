"""How a trial comes to its end: the reason, the escalation of signals, and the outcome that follows.

Whoever ends a process records the reason before the first signal leaves, and the first reason stands.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from ..matrix.outcome import Outcome

__all__ = ["Conclusion", "EndReason", "Ending", "ExitStatus", "Facts", "conclude"]


class EndReason(str, Enum):
    """Who ended the process and why; a process that ended by itself has none."""

    WALL_LIMIT = "wall_limit"
    STALL_LIMIT = "stall_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_FLOOD = "output_flood"
    CLOSED_PIPE = "closed_pipe"
    CANCELLED = "cancelled"
    KERNEL_OOM = "kernel_oom"


_OUTCOMES = {
    EndReason.WALL_LIMIT: Outcome.TIMEOUT,
    EndReason.STALL_LIMIT: Outcome.TIMEOUT,
    EndReason.MEMORY_LIMIT: Outcome.OUT_OF_MEMORY,
    EndReason.OUTPUT_FLOOD: Outcome.NO_RESULT,
    EndReason.CLOSED_PIPE: Outcome.NO_RESULT,
    EndReason.CANCELLED: Outcome.INTERRUPTED,
    EndReason.KERNEL_OOM: Outcome.OUT_OF_MEMORY,
}


@dataclass(frozen=True)
class ExitStatus:
    """Exit value or signal, never both; neither when the process could not be reaped."""

    exit_code: int | None
    signal: int | None

    @classmethod
    def from_wait(cls, status: int) -> ExitStatus:
        """From the status word of `os.wait4`."""
        value = os.waitstatus_to_exitcode(status)
        return cls(None, -value) if value < 0 else cls(value, None)

    def __str__(self) -> str:
        if self.signal is not None:
            return f"signal {self.signal} ({_signal_name(self.signal)})"
        if self.exit_code is not None:
            return f"exit value {self.exit_code}"
        return "still running after SIGKILL"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "real-time or unknown"


class Ending:
    """Ends one process group: interrupt, terminate, kill, each followed by a bounded wait.

    The interrupt gives wrappers (profilers, recorders) the chance to write what they have; a process that
    fills memory gets no such chance, because it would fill more in the meantime.
    """

    def __init__(self, send: Callable[[int], None], grace_s: float, kill_wait_s: float) -> None:
        self._send = send
        self._grace_s = grace_s
        self._kill_wait_s = kill_wait_s
        self._left: list[int] = []
        self.reason: EndReason | None = None
        self.detail = ""
        self.sent: set[int] = set()
        self.due: float | None = None
        self.gave_up = False

    def begin(self, reason: EndReason, detail: str, now: float) -> None:
        """Record the reason and send the first signal; later reasons change nothing."""
        if self.reason is not None:
            return
        self.reason, self.detail = reason, detail
        gentle = [signal.SIGINT, signal.SIGTERM] if reason is not EndReason.MEMORY_LIMIT else []
        self._left = [*gentle, signal.SIGKILL]
        self._step(now)

    def advance(self, now: float) -> None:
        """Send the next signal when its time has come; after the last wait, give up."""
        if self.due is None or now < self.due:
            return
        if self._left:
            self._step(now)
        else:
            self.gave_up = True

    def _step(self, now: float) -> None:
        number = self._left.pop(0)
        self.sent.add(int(number))
        self._send(number)
        self.due = now + (self._grace_s if self._left else self._kill_wait_s)


@dataclass(frozen=True)
class Facts:
    """All that is known of a finished process when its outcome is decided."""

    status: ExitStatus
    complete: bool
    """The answer ended with `done` and is consistent."""
    broken: str | None = None
    """What is wrong with the answer, where something is."""
    failure: tuple[Outcome, str] | None = None
    """The failure that the worker itself reported."""
    reason: EndReason | None = None
    detail: str = ""
    signals_sent: frozenset[int] = field(default_factory=frozenset)
    oom_killed: bool = False
    """The kernel's count of processes killed for memory rose during the trial."""
    progress: str = ""
    """How far the worker came, in words."""
    last_line: str = ""
    """The telling line of the native log."""


@dataclass(frozen=True)
class Conclusion:
    """What the record says about the end."""

    outcome: Outcome
    end_reason: EndReason | None
    error: str | None


def conclude(facts: Facts) -> Conclusion:
    """The outcome of a finished process.

    In order: what the worker reported itself; a reason recorded by the runner; a signal of somebody else;
    then the completeness of the answer. Exit value 0 alone proves nothing (llama.cpp's own tools exit with
    0 on NaN), and a complete answer followed by a crash is a crash.
    """
    foreign_signal = facts.status.signal is not None and facts.status.signal not in facts.signals_sent
    if facts.failure is not None:
        return Conclusion(facts.failure[0], facts.reason, facts.failure[1])
    if foreign_signal and facts.reason in (None, EndReason.CLOSED_PIPE):
        return _signalled(facts)
    if facts.reason is not None:
        ended = "" if facts.status.signal is not None else f"; {facts.status}"
        return Conclusion(_OUTCOMES[facts.reason], facts.reason, f"{facts.detail}{_context(facts)}{ended}")
    if facts.complete and facts.status.exit_code == 0:
        return Conclusion(Outcome.OK, None, None)
    what = "after a complete answer" if facts.complete else "without a complete answer"
    broken = f" ({facts.broken})" if facts.broken else ""
    return Conclusion(Outcome.NO_RESULT, None, f"{facts.status} {what}{broken}{_context(facts)}")


def _signalled(facts: Facts) -> Conclusion:
    if facts.status.signal == getattr(signal, "SIGKILL", None) and facts.oom_killed:
        text = f"{facts.status} by the kernel's out-of-memory killer, whose count rose during the trial"
        return Conclusion(Outcome.OUT_OF_MEMORY, EndReason.KERNEL_OOM, text + _context(facts))
    return Conclusion(Outcome.CRASH, None, f"{facts.status}{_context(facts)}")


def _context(facts: Facts) -> str:
    progress = f"; {facts.progress}" if facts.progress else ""
    return progress + (f"; last log line: {facts.last_line}" if facts.last_line else "")
