"""The answer: one JSON object a line on a private file descriptor."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from .failure import NOBODY_READS

__all__ = ["Channel", "Progress"]

PROGRESS_INTERVAL_S = 0.1


class Channel:
    """Writes events. Every line is complete before `send` returns, so a later crash cannot lose it."""

    def __init__(self, descriptor: int, started: float) -> None:
        """`started` is the `time.monotonic()` that the events' `t` counts from."""
        self._descriptor = descriptor
        self._started = started

    def send(self, event: str, **fields: Any) -> None:
        """Write one event. Ends the process quietly if nobody reads any more."""
        line = {"event": event, "t": round(time.monotonic() - self._started, 6), **fields}
        rest = memoryview(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except BrokenPipeError:
            os._exit(NOBODY_READS)


class Progress:
    """Progress of one stage of one request: the first and the last report, and few in between."""

    def __init__(self, channel: Channel, stage: str, request: int) -> None:
        self._channel = channel
        self._stage = stage
        self._request = request
        self._next = 0.0
        self._sent = -1

    def report(self, done: int, *, last: bool = False) -> None:
        """`done` tokens of the stage are done. Sent at most every 100 ms, the first and the last always."""
        now = time.monotonic()
        if done == self._sent or (now < self._next and not last):
            return
        self._next = now + PROGRESS_INTERVAL_S
        self._sent = done
        self._channel.send("progress", stage=self._stage, request=self._request, done=done)
