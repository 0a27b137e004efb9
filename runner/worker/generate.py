"""Generation, one token at a time, with a record of every position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .channel import Progress
from .engine import Engine
from .rows import Row, describe_row
from .sampling import Sampler

__all__ = ["Evaluated", "Generation", "generate"]


class Evaluated(NamedTuple):
    """An evaluated prompt."""

    n_tokens: int
    """Positions that the prompt takes, media included."""
    position: int
    """Position of the next token."""
    n_cells: int
    """Cells that the prompt takes in the cache; with M-RoPE not the same as positions."""
    projector_digest: str | None


class Generation(NamedTuple):
    """When to stop, and how much of each row to keep."""

    max_tokens: int
    ignore_eos: bool
    k: int


class _Record:
    """Columns of a request record, grown position by position."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.rows: list[Row] = []
        self.logprobs: list[float] = []

    def add(self, token: int, logit: float, row: Row) -> None:
        self.ids.append(token)
        self.rows.append(row)
        self.logprobs.append(logit - row.log_normalizer)

    def fields(self, engine: Engine, stop_reason: str) -> dict[str, Any]:
        text = b"".join(map(engine.piece, self.ids)).decode("utf-8", "replace")
        return {
            "n_generated": len(self.ids),
            "stop_reason": stop_reason,
            "token_ids": self.ids,
            "logprobs": self.logprobs,
            "margins": [row.margin for row in self.rows],
            "top_ids": [row.top_ids for row in self.rows],
            "top_logits": [row.top_logits for row in self.rows],
            "logits_digests": [row.digest for row in self.rows],
            "nan_counts": [row.nan_count for row in self.rows],
            "prompt_digest": self.rows[0].digest,
            "text": text,
        }


def generate(
    engine: Engine,
    sampler: Sampler,
    prompt: Evaluated,
    how: Generation,
    progress: Progress,
    keep: Callable[[Any], None] | None = None,
) -> dict[str, Any]:
    """Fields of the request record that come from generating after an evaluated prompt.

    The first token comes from the prompt's last logits row; the token that ends the answer is kept, so that
    every list has one entry per sampled token. `keep` is called with every logits row. Raises `WorkerFailure`
    of kind `backend_error` if an evaluation fails, with its code and position.
    """
    record = _Record()
    while True:
        logits = engine.logits()
        row = describe_row(logits, how.k)
        if keep is not None:
            keep(logits)
        token = sampler.sample(engine.context)
        record.add(token, logits[token], row)
        done = len(record.ids)
        reason = _stop_reason(engine, how, token, done, prompt.n_cells + done)
        progress.report(done, last=reason is not None)
        if reason is not None:
            return record.fields(engine, reason)
        position = prompt.position + done - 1
        code = engine.decode([token], position, want_logits=True)
        if code != 0:
            what = f"llama_decode returned {code} at generated token {done - 1}, position {position}"
            raise engine.library.failure("generate", what, "backend_error")


def _stop_reason(engine: Engine, how: Generation, token: int, done: int, cells: int) -> str | None:
    """Why to stop after `done` tokens, the last of which would need cell number `cells`, or null."""
    if engine.ends_generation(token) and not how.ignore_eos:
        return "eos"
    if done >= how.max_tokens:
        return "max_tokens"
    return "context_full" if cells > engine.n_ctx else None
