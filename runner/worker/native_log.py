"""The native log: everything the library says goes to stderr as it is said, and its last lines are kept."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from typing import Any

__all__ = ["NativeLog"]

_WARN, _ERROR, _CONTINUED = 3, 4, 5  # enum ggml_log_level
_OUT_OF_MEMORY = (
    "out of memory",
    "outofdevicememory",
    "outofhostmemory",
    "failed to allocate",
    "unable to allocate",
    "insufficient memory",
    "bad_alloc",
)


class NativeLog:
    """A log callback that loses nothing: unbuffered, all levels, continued lines included."""

    def __init__(self) -> None:
        self._last: deque[tuple[int, str]] = deque(maxlen=40)
        self._level = 0
        # the prototype equals the binding's own, but does not need the binding to be there yet
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        self.callback: Any = prototype(self._write)

    def _write(self, level: int, text: bytes, _user_data: Any) -> None:
        rest = text or b""
        try:
            while rest:
                rest = rest[os.write(2, rest) :]
        except OSError:  # nobody reads stderr; the answer still counts
            pass
        if level != _CONTINUED:
            self._level = level
        self._last.append((self._level, (text or b"").decode("utf-8", "replace")))

    def last_words(self, lines: int = 3) -> str:
        """The last errors in one line; the last warnings or other lines where there were no errors."""
        for least in (_ERROR, _WARN, 0):
            found = _lines([text for level, text in self._last if level >= least])
            if found:
                return " | ".join(found[-lines:])
        return "the library logged nothing"

    def tells_of_memory(self) -> bool:
        """Whether the last errors say that memory could not be had."""
        said = "".join(text for level, text in self._last if level >= _ERROR).lower()
        return any(word in said for word in _OUT_OF_MEMORY)


def _lines(texts: list[str]) -> list[str]:
    return [line.strip() for line in "".join(texts).splitlines() if line.strip(" .\t")]
