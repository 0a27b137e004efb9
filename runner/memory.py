"""Resident memory of a worker: the current one against a limit, and the largest one for the record."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import psutil

from .process import RSS_UNIT, Reaped

__all__ = ["WorkerMemory", "own_peak_rss_bytes"]

_PEAK_EVERY_S = 0.05
_CHILDREN_EVERY_S = 0.5


def own_peak_rss_bytes() -> int:
    """Largest resident set of this process so far, from the OS."""
    import resource  # not on Windows, where this module must still import

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT


def _high_water_mark(pid: int) -> int:
    """`VmHWM` of a process from Linux's /proc, bytes; 0 where it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    _, found, rest = text.partition("\nVmHWM:")
    return int(rest.split(None, 1)[0]) * 1024 if found else 0


class WorkerMemory:
    """Memory of one worker, made right after its start."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._runner_peak = own_peak_rss_bytes()
        self._seen = 0
        self._noted_s = 0.0
        self._tree: list[psutil.Process] = []
        self._tree_s = 0.0

    def sample(self, now: float) -> int:
        """Bytes that the worker and its children have resident now."""
        used = 0
        with contextlib.suppress(psutil.NoSuchProcess):
            if not self._tree or now - self._tree_s >= _CHILDREN_EVERY_S:
                worker = psutil.Process(self._pid)
                self._tree, self._tree_s = [worker, *worker.children(recursive=True)], now
        for process in self._tree:
            with contextlib.suppress(psutil.Error):
                used += int(process.memory_info().rss)
        return used

    def note_peak(self, now: float, *, force: bool) -> None:
        """Read the kernel's high-water mark, at most every 50 ms unless forced."""
        if force or now - self._noted_s >= _PEAK_EVERY_S:
            self._noted_s = now
            self._seen = max(self._seen, _high_water_mark(self._pid))

    def peak(self, reaped: Reaped | None) -> int | None:
        """The largest resident set, None where it could not be told.

        Linux counts the image before `exec`, which is the runner's own, into the value at reaping. Only a
        value above the runner's own peak is therefore the worker's; below it the high-water mark read at the
        last event stands, which can miss what came after that event.
        """
        if reaped is not None and (sys.platform != "linux" or reaped.max_rss_bytes > self._runner_peak):
            return reaped.max_rss_bytes
        return self._seen or None
