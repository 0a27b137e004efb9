"""Synthetic load that runs beside a trial, and how much of it was reached.

A kind of load is a subclass of `Load` in `LOADS`. A load is up before the trial starts, is always ended with
its whole process tree, and ends itself when the runner dies.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import selectors
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import psutil

from ..matrix.settings import closest
from .errors import UserError
from .process import ChildProcess

__all__ = [
    "LOADS",
    "CpuLoad",
    "Load",
    "LoadError",
    "LoadMeter",
    "LoadSpec",
    "NoLoad",
    "make_load",
    "start_load",
]


class LoadError(UserError):
    """The load is unknown, a parameter is wrong, or the load did not come up."""


@dataclass(frozen=True)
class LoadSpec:
    """A kind of load and its parameters; parameters left out take the kind's defaults."""

    kind: str = "none"
    parameters: Mapping[str, Any] = field(default_factory=dict)


class Load(ABC):
    """One load: checked when it is made, running between `start` and `stop`."""

    kind: ClassVar[str]

    @abstractmethod
    def asked(self) -> dict[str, Any]:
        """Every parameter with the value that applies, as plain data."""

    @abstractmethod
    def start(self) -> None:
        """Return once the load is really up. Raises `LoadError` where it does not come up."""

    @abstractmethod
    def stop(self) -> None:
        """End the load with its whole process tree; does nothing where it is not running."""

    @abstractmethod
    def cpu_s(self) -> float | None:
        """CPU seconds that the load's processes have used so far; None for a load without processes."""

    def asked_json(self) -> str:
        """`asked` as JSON with sorted keys."""
        return json.dumps(self.asked(), sort_keys=True, separators=(",", ":"))


class NoLoad(Load):
    """Nothing beside the trial."""

    kind = "none"

    def asked(self) -> dict[str, Any]:
        """No parameters."""
        return {}

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to end."""

    def cpu_s(self) -> None:
        """No processes."""


# The leader forks the busy processes, because that costs one interpreter start and not N. Every one of them
# watches stdin: its end of file means that the runner wants the load to end, or is dead.
_BUSY_PROGRAM = """
import os, signal, sys, _thread

def end_with_stdin():
    while os.read(0, 4096):
        pass
    os._exit(0)

def be_busy():
    _thread.start_new_thread(end_with_stdin, ())
    os.write(1, b"%d\\n" % os.getpid())
    while True:
        pass

pids = []
for _ in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        be_busy()
    pids.append(pid)
while os.read(0, 4096):
    pass
for pid in pids:
    os.kill(pid, signal.SIGKILL)
for pid in pids:
    os.waitpid(pid, 0)
"""


_START_LIMIT_S = 30.0


class CpuLoad(Load):
    """`processes` endless integer loops, each in a process of its own; by default one per CPU."""

    kind = "cpu"

    def __init__(self, processes: int | None = None) -> None:
        count = _cpu_count() if processes is None else processes
        if type(count) is not int or count < 1:  # a bool is an int to Python
            raise LoadError(f"load.processes: {processes!r} is not a whole number of at least 1")
        self._count = count
        self._leader: ChildProcess | None = None
        self._used: dict[int, float] = {}

    def asked(self) -> dict[str, Any]:
        """The number of processes."""
        return {"processes": self._count}

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the busy processes."""
        return tuple(self._used)

    def start(self) -> None:
        """Start the processes and wait until each has entered its loop."""
        command = [sys.executable, "-I", "-S", "-c", _BUSY_PROGRAM, str(self._count)]
        try:
            self._leader = ChildProcess(command, keep_stderr=False)
            self._used = dict.fromkeys(self._ready_pids(self._leader), 0.0)
        except OSError as error:
            self.stop()
            raise LoadError(f"load cpu: {self._count} processes cannot be started: {error}") from error

    def _ready_pids(self, leader: ChildProcess) -> list[int]:
        deadline_s = time.monotonic() + _START_LIMIT_S
        received = b""
        with selectors.DefaultSelector() as selector:
            selector.register(leader.stdout_fd, selectors.EVENT_READ)
            while received.count(b"\n") < self._count:
                if not selector.select(max(deadline_s - time.monotonic(), 0.0)):
                    raise OSError(f"only {received.count(10)} came up within {_START_LIMIT_S:g} s")
                data = os.read(leader.stdout_fd, 65536)
                if not data:
                    raise OSError(f"they ended at once; only {received.count(10)} came up")
                received += data
        return [int(line) for line in received.splitlines()]

    def stop(self) -> None:
        """Ask by end of file, wait at most a second, then kill the group."""
        leader, self._leader, self._used = self._leader, None, {}
        if leader is not None:
            with leader:
                leader.close_stdin()
                if leader.exit_watch.wait(1.0):
                    leader.reap()

    def cpu_s(self) -> float:
        """CPU seconds of the busy processes; one that is gone counts with its last known value."""
        for pid in self._used:
            with contextlib.suppress(OSError, psutil.Error):
                self._used[pid] = _process_cpu_s(pid)
        return sum(self._used.values())


LOADS: dict[str, type[Load]] = {load.kind: load for load in (NoLoad, CpuLoad)}
"""Every kind of load by name."""


def make_load(spec: LoadSpec) -> Load:
    """The load of a spec, checked and not started. Raises `LoadError` naming the field."""
    if spec.kind not in LOADS:
        known = ", ".join(LOADS)
        raise LoadError(f"load: {spec.kind!r} is not one of {known}{closest(str(spec.kind), list(LOADS))}")
    kind = LOADS[spec.kind]
    names = list(inspect.signature(kind).parameters)
    for name in spec.parameters:
        if name not in names:
            raise LoadError(f"load.{name}: load {spec.kind!r} has no such parameter{closest(str(name), names)}")
    return kind(**spec.parameters)


@contextlib.contextmanager
def start_load(spec: LoadSpec) -> Iterator[Load]:
    """Run a load for the time of a `with` block. Raises `LoadError`."""
    load = make_load(spec)
    load.start()
    try:
        yield load
    finally:
        load.stop()


class LoadMeter:
    """Measures shares of CPU time from its creation on."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._start_s = time.monotonic()
        self._start_cpu_s = load.cpu_s()
        self._start_system = _system_times()

    def read(self) -> dict[str, float | None]:
        """The columns `load_cpu_share` and `system_cpu_share`, both 0..1, over all CPUs.

        `system_cpu_share` rests on the kernel's clock ticks (usually 10 ms): over a window of 0.1 s on two
        CPUs it comes in steps of 5 %.
        """
        elapsed_s = time.monotonic() - self._start_s
        cpu_s = self._load.cpu_s()
        load_share = None
        if cpu_s is not None and self._start_cpu_s is not None and elapsed_s > 0:
            load_share = (cpu_s - self._start_cpu_s) / (elapsed_s * _cpu_count())
        busy, total = (now - then for now, then in zip(_system_times(), self._start_system, strict=True))
        return {
            "load_cpu_share": load_share,
            "system_cpu_share": min(max(busy / total, 0.0), 1.0) if total > 0 else None,
        }


def _cpu_count() -> int:
    return psutil.cpu_count() or 1


def _system_times() -> tuple[float, float]:
    """Busy and total seconds of all CPUs since boot."""
    times = psutil.cpu_times()
    # Linux counts guest time within user time and guest_nice within nice.
    guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    total = sum(times) - guest
    return total - times.idle - getattr(times, "iowait", 0.0), total


def _process_cpu_s(pid: int) -> float:
    if sys.platform == "linux":
        # The clock id of a process's CPU time, as glibc's clock_getcpuclockid(3) makes it: nanoseconds, where
        # /proc counts ticks of 10 ms. Raises OSError when the process is gone.
        return time.clock_gettime((~pid << 3) | 2)
    else:  # noqa: RET505  (mypy reads platforms only from the branches)
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
