"""What keeps a worker from leaving things behind: no core dumps, no life after its runner."""

from __future__ import annotations

import _thread
import os
import signal

from .failure import STDIN_ENDED

__all__ = ["no_core_dumps", "watch_stdin"]


def no_core_dumps() -> None:
    """Forbid core dumps: a crash is data here, and its dump would fill the disk."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _die_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(STDIN_ENDED)


def watch_stdin() -> None:
    """End the process, and the group that it leads, as soon as stdin reaches its end."""
    _thread.start_new_thread(_die_with_stdin, ())  # `threading` would cost start-up time and add nothing
