"""One child process: start it, notice its end without reaping it, end its whole group, reap it once.

The end is noticed *before* the process is reaped, because an unreaped leader keeps its process id: the group
can be killed without any chance of hitting a stranger that got the same number.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from .ending import ExitStatus

__all__ = ["RSS_UNIT", "ChildProcess", "ExitWatch", "Reaped", "end_marked_processes", "kernel_oom_kills"]

RSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""`ru_maxrss` is in bytes on macOS and in KiB elsewhere."""


def _watch_by_thread(pid: int) -> tuple[int, Callable[[], None]]:
    reading, writing = os.pipe()

    def wait() -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.close(writing)

    threading.Thread(target=wait, name=f"wait-{pid}", daemon=True).start()
    return reading, lambda: os.close(reading)


def _watch_by_kernel(pid: int) -> tuple[int, Callable[[], None]]:
    """By pidfd or kqueue. Raises OSError where the kernel or a sandbox refuses."""
    if sys.platform == "darwin":
        queue = select.kqueue()
        event = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
        try:
            queue.control([event], 0)
        except ProcessLookupError:  # a process that has ended already cannot be watched
            queue.close()
            reading, writing = os.pipe()
            os.close(writing)
            return reading, lambda: os.close(reading)
        return queue.fileno(), queue.close
    if sys.platform == "linux":
        descriptor = os.pidfd_open(pid)
        return descriptor, lambda: os.close(descriptor)
    raise OSError("no way to watch a process on this system")


class ExitWatch:
    """A file descriptor that becomes readable when a child process has ended; it does not reap.

    A pidfd on Linux and a kqueue on macOS; where those are refused (old kernels, some sandboxes), a thread
    that waits without reaping.
    """

    def __init__(self, pid: int, *, by_thread: bool = False) -> None:
        try:
            watch = _watch_by_thread if by_thread else _watch_by_kernel
            self._fd, self._close = watch(pid)
        except OSError:
            self._fd, self._close = _watch_by_thread(pid)

    def fileno(self) -> int:
        """The descriptor, for a selector."""
        return self._fd

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds; returns whether the process has ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._fd, selectors.EVENT_READ)
            return bool(selector.select(timeout_s))

    def close(self) -> None:
        """Give the descriptor back."""
        self._close()


@dataclass(frozen=True)
class Reaped:
    """What the OS says about a process when it is reaped."""

    status: ExitStatus
    cpu_s: float
    """User plus system time of the process and of the children that it waited for."""
    max_rss_bytes: int
    """Largest resident set; on Linux the image before `exec`, the parent's own, counts too."""


class ChildProcess:
    """A process in a session and group of its own, with pipes on all its standard streams.

    Use as a context manager: on leaving it, whatever is left of the group is killed, and the process is
    reaped. Raises OSError where the program cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        pass_fds: tuple[int, ...] = (),
        keep_stderr: bool = True,
    ) -> None:
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if keep_stderr else None,
            env=None if environment is None else dict(environment),
            cwd=folder,
            pass_fds=pass_fds,
            start_new_session=True,
            bufsize=0,
        )
        self.pid = self._popen.pid
        try:
            self.exit_watch = ExitWatch(self.pid)
        except BaseException:
            self._popen.kill()
            self._popen.communicate()
            raise
        self.reaped: Reaped | None = None

    @property
    def stdout_fd(self) -> int:
        """Read end of the process's stdout."""
        assert self._popen.stdout is not None
        return self._popen.stdout.fileno()

    @property
    def stderr_fd(self) -> int:
        """Read end of the process's stderr."""
        assert self._popen.stderr is not None
        return self._popen.stderr.fileno()

    def close_stdin(self) -> None:
        """Let the process see end of file on its stdin."""
        if self._popen.stdin is not None:
            self._popen.stdin.close()

    def signal_group(self, number: int) -> None:
        """Send a signal to every process of the group, as long as the leader is not reaped."""
        if self.reaped is None:
            # macOS answers EPERM for a group that holds nothing but a zombie.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def reap(self) -> Reaped:
        """Kill what is left of the group and collect the process, which has ended."""
        if self.reaped is None:
            self.signal_group(signal.SIGKILL)
            _, status, usage = os.wait4(self.pid, 0)
            self._popen.returncode = os.waitstatus_to_exitcode(status)  # so that Popen does not wait again
            self.reaped = Reaped(
                status=ExitStatus.from_wait(status),
                cpu_s=usage.ru_utime + usage.ru_stime,
                max_rss_bytes=usage.ru_maxrss * RSS_UNIT,
            )
        return self.reaped

    def end(self, wait_s: float = 5.0) -> None:
        """Kill and reap the process unless that is done.

        The wait is bounded, because a process that hangs inside a driver does not die of SIGKILL either.
        """
        if self.reaped is None:
            self.signal_group(signal.SIGKILL)
            if self.exit_watch.wait(wait_s):
                self.reap()

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self.exit_watch.close()
        for stream in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            if stream is not None:
                stream.close()


def kernel_oom_kills() -> int | None:
    """Processes that Linux killed for want of memory since boot, control groups included; None elsewhere."""
    try:
        text = Path("/proc/vmstat").read_text(encoding="ascii")
    except OSError:
        return None
    _, found, rest = text.partition("\noom_kill ")
    return int(rest.split(None, 1)[0]) if found else None


def end_marked_processes(name: str, value: str, known: Iterable[int]) -> list[int]:
    """Kill every process whose environment holds `name=value`, and return their ids.

    Finds grandchildren that left the group and session of their trial. `known` are ids that existed before
    the trial and need no look.
    """
    ended: list[int] = []
    for _ in range(3):  # a process can fork while it is being looked for
        found = [pid for pid in set(psutil.pids()).difference(known, ended) if _end_if_marked(pid, name, value)]
        if not found:
            break
        ended += found
    return ended


def _end_if_marked(pid: int, name: str, value: str) -> bool:
    try:
        process = psutil.Process(pid)
        if process.environ().get(name) != value or process.status() == psutil.STATUS_ZOMBIE:
            return False
        process.kill()  # psutil compares the start time first: no stranger with a reused id is hit
    except (psutil.Error, OSError):  # it has ended, or belongs to somebody else
        return False
    return True
