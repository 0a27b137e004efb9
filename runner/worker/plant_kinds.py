"""The kinds of planted faults that need no look into the graph, and the table of all kinds."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from .failure import bad_input
from .plant import Armed
from .plant_node import NodeError

__all__ = ["KINDS"]

STAGES = ("load", "prompt", "generate")
RUBBISH = b'\xff\xfe\x00 planted rubbish \x1b[31m\xc3\x28 {"event":"done","n_requests":0}\n'
ALLOCATION_BYTES = 32 * 1024 * 1024
ALLOCATION_PAUSE_S = 0.02


class FlipToken(Armed):
    """Replaces one sampled token; the logits stay as they are."""

    parameters: ClassVar[dict[str, Any]] = {"request": 0, "position": 0, "rank": 5}

    def armed(self, engine: Any, sampler: Any) -> None:
        """Stand between sampler and record."""
        self._engine = engine
        self._request = self._position = -1
        sampler.replace = self._replace

    def before_prompt(self, request: int) -> None:
        """Count positions from the start of each request."""
        self._request, self._position = request, -1

    def _replace(self, token: int) -> int:
        self._position += 1
        if (self._request, self._position) != (self.values["request"], self.values["position"]):
            return token
        other = self._other(token)
        self._details = {"request": self._request, "position": self._position, "sampled": token, "given": other}
        self.struck(**self._details)
        return other

    def _other(self, token: int) -> int:
        """The token of the asked rank (1 is the likeliest); the next one where that is the sampled or an end."""
        logits = self._engine.logits()[:]
        ranked = sorted(range(len(logits)), key=lambda index: (-logits[index], index))
        usable = (t for t in ranked[self.values["rank"] - 1 :] if t != token and not self._engine.ends_generation(t))
        other = next(usable, None)
        if other is None:
            raise bad_input("plant.rank", f"the vocabulary of {len(logits)} has no token of this rank to give")
        return other

    def final(self) -> dict[str, Any]:
        """Where the flip was, and of what."""
        return self._details

    def missed(self) -> str:
        """The answer was shorter, or there was no such request."""
        return f"no token at position {self.values['position']} of request {self.values['request']}"


class KeepKv(Armed):
    """Keeps the previous request's cells; the next prompt comes after them, as if it went on."""

    def keeps_memory(self, request: int) -> bool:
        """Every request after the first."""
        if not self.active or request == 0:
            return False
        self.struck(request=request)
        return True

    def final(self) -> dict[str, Any]:
        """How many requests came after kept cells."""
        return {"requests": self.hits}

    def missed(self) -> str:
        """Only a process with several requests can keep anything."""
        return "the process answered one request; set process=persistent and probe.requests=2 or more"


class _AtStage(Armed):
    """A fault that strikes once, at a stage: after loading, before the prompt, or before the first token."""

    parameters: ClassVar[dict[str, Any]] = {"stage": "generate"}

    def __init__(self, values: Mapping[str, Any], trial_id: str, tell: Callable[..., None]) -> None:
        super().__init__(values, trial_id, tell)
        if values["stage"] not in STAGES:
            raise bad_input("plant.stage", f"{values['stage']!r} is not one of {', '.join(STAGES)}")

    def armed(self, engine: Any, sampler: Any) -> None:
        """Strike after loading, if that is the stage."""
        self._at("load")

    def before_prompt(self, request: int) -> None:
        """Strike before the first prompt, if that is the stage."""
        self._at("prompt")

    def before_tokens(self, request: int) -> None:
        """Strike before the first token, if that is the stage."""
        self._at("generate")

    def _at(self, stage: str) -> None:
        if self.active and stage == self.values["stage"] and not self.hits:
            self.struck(stage=stage)
            self.strike()

    def final(self) -> dict[str, Any]:
        """The stage again."""
        return {"stage": self.values["stage"]}

    def strike(self) -> None:
        """The fault itself."""
        raise NotImplementedError


class Abort(_AtStage):
    """Aborts the process, as a failed assertion of the library does."""

    def strike(self) -> None:
        """SIGABRT."""
        os.abort()


class Hang(_AtStage):
    """Never comes back, and does not hear an interrupt, like a call into a driver that hangs."""

    def strike(self) -> None:
        """Sleep until killed."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            time.sleep(3600)


class Allocate(_AtStage):
    """Takes memory, about 1 GB a second, until something ends it."""

    def strike(self) -> None:
        """Grow; every page is written, so that it is resident."""
        held = []
        while True:
            held.append(b"\xa5" * ALLOCATION_BYTES)
            time.sleep(ALLOCATION_PAUSE_S)


class Stdout(_AtStage):
    """Prints rubbish on stdout, which belongs to nobody in a worker."""

    def strike(self) -> None:
        """Bytes that are no text, with something in them that looks like an answer."""
        os.write(1, RUBBISH)


KINDS: dict[str, type[Armed]] = {
    "flip_token": FlipToken,
    "node_error": NodeError,
    "keep_kv": KeepKv,
    "abort": Abort,
    "hang": Hang,
    "allocate": Allocate,
    "stdout": Stdout,
}
