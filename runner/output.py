"""What a worker prints, kept in bounded memory."""

from __future__ import annotations

__all__ = ["BoundedOutput", "telling_line"]


class BoundedOutput:
    """Keeps the first `head_bytes` and the last `tail_bytes` of a stream and counts the rest."""

    def __init__(self, head_bytes: int, tail_bytes: int) -> None:
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        """Bytes seen, the dropped ones included."""

    def add(self, data: bytes) -> None:
        """Append the next bytes of the stream."""
        self.total += len(data)
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Cutting only at twice the size moves every byte once on average.
        if len(self._tail) > 2 * self._tail_bytes:
            del self._tail[: len(self._tail) - self._tail_bytes]

    def text(self) -> str:
        """The kept bytes as UTF-8, invalid ones as U+FFFD, with a note where the middle was cut out."""
        tail = self._tail[-self._tail_bytes :] if self._tail_bytes else b""
        cut = self.total - len(self._head) - len(tail)
        note = f"\n[{cut} bytes cut]\n".encode() if cut else b""
        return bytes(self._head + note + tail).decode("utf-8", errors="replace")


_TELLING = ("GGML_ASSERT", "GGML_ABORT", "ggml_abort", "what():")


def telling_line(log: str, limit: int = 300) -> str:
    """The line of a log that says most about a crash: the last failed assertion, else the last line.

    `limit` is the most characters kept.
    """
    lines = [line.strip() for line in log[-16384:].splitlines() if line.strip()]
    if not lines:
        return ""
    telling = [line for line in lines if any(mark in line for mark in _TELLING)]
    line = (telling or lines)[-1]
    return line if len(line) <= limit else line[: limit - 3] + "..."
