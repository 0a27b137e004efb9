"""Watches one worker until it is reaped: its answer, its output, its limits, its end.

The loop sleeps in one selector on the answer, the output and the end of the process, and wakes by itself only
for the next deadline.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .ending import Conclusion, Ending, EndReason, ExitStatus, Facts, conclude
from .memory import WorkerMemory
from .messages import LineReader, OversizedLine, Transcript
from .output import BoundedOutput, telling_line
from .process import ChildProcess, Reaped, kernel_oom_kills

__all__ = ["EventCallback", "Limits", "Watch"]

EventCallback = Callable[[Mapping[str, Any]], None]

_READ_BYTES = 1 << 16
_STDOUT_KEPT_BYTES = 4096
_MEMORY_EVERY_S = 0.05
_CANCEL_EVERY_S = 0.1
_DRAIN_LIMIT_S = 2.0
_KILL_WAIT_S = 10.0


@dataclass(frozen=True)
class Limits:
    """What a trial may use. Each limit has a reason of its own in the record."""

    wall_s: float = 600.0
    """Wall time from the start of the process, seconds."""
    stall_s: float | None = None
    """Longest time between two events of the worker, seconds."""
    memory_bytes: int | None = None
    """Resident set of the worker with its children, mapped model files included; sampled every 50 ms."""
    log_bytes: int = 256 * 1024
    """Native log kept in the record: the first and the last half; the middle is cut out."""
    output_bytes: int = 64 * 1024 * 1024
    """Output on stdout and stderr together before the trial is ended."""
    closed_pipe_s: float = 5.0
    """Time that a worker may live on after it closed the result pipe without a complete answer, seconds."""
    grace_s: float = 1.0
    """Wait after the interrupt and again after the terminate signal, seconds."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise ValueError(f"limits.{name}: {value!r} is not above 0")


class Watch:
    """Follows one worker from its start until it is reaped, and keeps what is needed for the row.

    `start_s` is the monotonic clock just before the process was started, `oom_kills` the kernel's count then.
    """

    def __init__(
        self,
        child: ChildProcess,
        result_fd: int,
        limits: Limits,
        *,
        start_s: float,
        oom_kills: int | None,
        cancel: threading.Event | None,
        on_event: EventCallback | None,
    ) -> None:
        self._child = child
        self._result_fd = result_fd
        self._limits = limits
        self._start_s = start_s
        self._oom_kills = oom_kills
        self._cancel = cancel
        self._on_event = on_event
        self._reader = LineReader()
        half = limits.log_bytes // 2
        self._stderr = BoundedOutput(half, limits.log_bytes - half)
        self._stdout = BoundedOutput(0, _STDOUT_KEPT_BYTES)
        self._memory = WorkerMemory(child.pid)
        self._ending = Ending(child.signal_group, limits.grace_s, _KILL_WAIT_S)
        self._selector = selectors.DefaultSelector()
        self._first_event_s: float | None = None
        self._last_event_s = start_s
        self._closed_s: float | None = None
        self._exited = False
        self._failure_stands = False
        self._last_line: str | None = None
        self.transcript = Transcript()
        self.reaped: Reaped | None = None
        self.wall_s = 0.0

    def run(self) -> None:
        """Watch until the process has ended or cannot be ended; then reap it and read the rest."""
        with self._selector:
            self._register()
            while not self._exited and not self._ending.gave_up:
                self._turn()
            if self._exited:
                self._selector.unregister(self._child.exit_watch.fileno())
                self.reaped = self._child.reap()
            self.wall_s = time.monotonic() - self._start_s
            self._drain()
        if self._reader.pending:
            self.transcript.mark_broken(f"the answer ends within a line, {self._reader.pending} bytes into it")

    @property
    def bad_input(self) -> str | None:
        """The user's mistake that the worker reported, if that is how the trial ended."""
        return self.transcript.bad_input if self._failure_stands else None

    def conclusion(self) -> Conclusion:
        """The outcome, from all that was seen."""
        oom_kills = kernel_oom_kills()
        return conclude(
            Facts(
                status=self.status,
                complete=self.transcript.complete,
                broken=self.transcript.broken,
                failure=self.transcript.failure if self._failure_stands else None,
                reason=self._ending.reason,
                detail=self._ending.detail,
                signals_sent=frozenset(self._ending.sent),
                oom_killed=None not in (oom_kills, self._oom_kills) and oom_kills != self._oom_kills,
                progress=self.transcript.progress(),
                last_line=telling_line(self._stderr.text()) if self._last_line is None else self._last_line,
            )
        )

    @property
    def status(self) -> ExitStatus:
        """How the process ended."""
        return ExitStatus(None, None) if self.reaped is None else self.reaped.status

    def fields(self) -> dict[str, Any]:
        """The columns of the record that were measured or kept here."""
        return {
            "exit_code": self.status.exit_code,
            "signal": self.status.signal,
            "wall_s": self.wall_s,
            "start_s": None if self._first_event_s is None else self._first_event_s - self._start_s,
            "cpu_s": None if self.reaped is None else self.reaped.cpu_s,
            "peak_rss_bytes": self._memory.peak(self.reaped),
            "native_log": self._stderr.text(),
            "stdout_tail": self._stdout.text() or None,
        }

    def _register(self) -> None:
        for descriptor, handler in (
            (self._result_fd, self._read_result),
            (self._child.stdout_fd, self._read_stdout),
            (self._child.stderr_fd, self._read_stderr),
        ):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ, handler)
        self._selector.register(self._child.exit_watch.fileno(), selectors.EVENT_READ, self._note_exit)

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._sleep_s(time.monotonic())):
            key.data(key.fd)
        if self._exited:
            return
        now = time.monotonic()
        if self._ending.reason is None:
            self._check_limits(now)
        else:
            self._ending.advance(now)

    def _sleep_s(self, now: float) -> float:
        if self._ending.due is not None:
            return max(self._ending.due - now, 0.0)
        deadlines = [self._start_s + self._limits.wall_s]
        if self._limits.stall_s is not None:
            deadlines.append(self._last_event_s + self._limits.stall_s)
        if self._closed_s is not None:
            deadlines.append(self._closed_s + self._limits.closed_pipe_s)
        if self._limits.memory_bytes is not None:
            deadlines.append(now + _MEMORY_EVERY_S)
        if self._cancel is not None:
            deadlines.append(now + _CANCEL_EVERY_S)
        return max(min(deadlines) - now, 0.0)

    def _check_limits(self, now: float) -> None:
        limits = self._limits
        if self._cancel is not None and self._cancel.is_set():
            self._end(EndReason.CANCELLED, "cancelled by the user", now)
        elif now - self._start_s >= limits.wall_s:
            self._end(EndReason.WALL_LIMIT, f"wall time limit of {limits.wall_s:g} s", now)
        elif limits.stall_s is not None and now - self._last_event_s >= limits.stall_s:
            self._end(EndReason.STALL_LIMIT, f"no event for {limits.stall_s:g} s", now)
        elif self._stdout.total + self._stderr.total > limits.output_bytes:
            self._end(EndReason.OUTPUT_FLOOD, f"more than {limits.output_bytes} bytes of output", now)
        elif self._closed_s is not None and now - self._closed_s >= limits.closed_pipe_s:
            waited = f"still running {limits.closed_pipe_s:g} s later"
            self._end(EndReason.CLOSED_PIPE, f"result pipe closed without a complete answer, {waited}", now)
        elif limits.memory_bytes is not None:
            used = self._memory.sample(now)
            if used > limits.memory_bytes:
                detail = f"memory limit of {limits.memory_bytes} bytes, {used} in use"
                self._end(EndReason.MEMORY_LIMIT, detail, now)

    def _end(self, reason: EndReason, detail: str, now: float) -> None:
        if self._ending.reason is not None:
            return
        # A failure that the worker reported earlier came first, and stays the cause.
        self._failure_stands = self._failure_stands or self.transcript.failure is not None
        # What a worker logs on our signals (Python: a traceback) stays in the log and explains nothing.
        self._last_line = telling_line(self._stderr.text())
        self._ending.begin(reason, detail, now)

    def _note_exit(self, _: int) -> None:
        self._exited = True
        if self._ending.reason is None:
            self._failure_stands = True  # also one that is still in the pipe

    def _read(self, descriptor: int) -> bytes | None:
        """The next bytes; none at end of file; None where there is nothing to read yet."""
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return None
        if not data:
            self._selector.unregister(descriptor)
        return data

    def _read_stdout(self, descriptor: int) -> None:
        self._stdout.add(self._read(descriptor) or b"")

    def _read_stderr(self, descriptor: int) -> None:
        self._stderr.add(self._read(descriptor) or b"")

    def _read_result(self, descriptor: int) -> None:
        now = time.monotonic()
        data = self._read(descriptor)
        if data is None:
            return
        if not data and not self.transcript.complete:
            self._closed_s = now
        try:
            for line in self._reader.feed(data):
                self._take_event(line, now)
        except OversizedLine as error:
            self.transcript.mark_broken(str(error))
            self._selector.unregister(descriptor)
            self._end(EndReason.OUTPUT_FLOOD, str(error), now)

    def _take_event(self, line: bytes, now: float) -> None:
        event = self.transcript.add(line)
        if event is None:
            return
        self._last_event_s = now
        if self._first_event_s is None:
            self._first_event_s = now
        self._memory.note_peak(now, force=event["event"] != "progress")
        if self._on_event is not None:
            self._on_event(event)

    def _drain(self) -> None:
        """Read what the dead process left in its pipes; a survivor that holds them open is not waited for."""
        deadline = time.monotonic() + _DRAIN_LIMIT_S
        while self._selector.get_map() and time.monotonic() < deadline:
            ready = self._selector.select(0)
            if not ready:
                return
            for key, _ in ready:
                key.data(key.fd)
