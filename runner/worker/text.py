"""The text probe: a prompt of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from .channel import Progress
from .engine import Engine
from .failure import WorkerFailure, bad_input
from .generate import Evaluated

__all__ = ["check_fits", "evaluate_text", "evaluate_tokens"]


def check_fits(engine: Engine, n_tokens: int) -> None:
    """Raises `WorkerFailure` of kind `bad_input` if a prompt of `n_tokens` is empty or does not fit.

    Where cells were kept, for which no user can be blamed, the kind is `backend_error`.
    """
    if n_tokens == 0:
        raise bad_input("probe.prompt", "has no tokens; write a longer prompt or set probe.add_special")
    if n_tokens > engine.n_ctx:
        raise bad_input(
            "probe.prompt",
            f"takes {n_tokens} tokens, more than the context of {engine.n_ctx}; raise settings.n_ctx",
        )
    kept = engine.kept.cells
    if n_tokens + kept > engine.n_ctx:
        what = f"no room for {n_tokens} tokens in a context of {engine.n_ctx}, of which {kept} cells are still taken"
        raise WorkerFailure("backend_error", "prompt", what)


def evaluate_tokens(
    engine: Engine, tokens: Sequence[int], position: int, progress: Progress, *, want_logits: bool
) -> int:
    """Evaluate `tokens` from `position` on in pieces of `n_batch`; returns the position after them.

    Raises `WorkerFailure` of kind `backend_error` with the code and the position if a piece fails.
    """
    for start in range(0, len(tokens), engine.n_batch):
        piece = tokens[start : start + engine.n_batch]
        is_last = start + len(piece) == len(tokens)
        code = engine.decode(piece, position + start, want_logits=want_logits and is_last)
        if code != 0:
            what = f"llama_decode returned {code} at prompt position {position + start}"
            raise engine.library.failure("prompt", what, "backend_error")
        progress.report(position + start + len(piece), last=want_logits and is_last)
    return position + len(tokens)


def evaluate_text(engine: Engine, prompt: str, add_special: bool, progress: Progress) -> Evaluated:
    """Tokenize and evaluate a prompt. Raises `WorkerFailure` if it does not fit or if evaluation fails."""
    tokens: list[int] = engine.tokenize(prompt, add_special)
    check_fits(engine, len(tokens))
    progress.report(0)
    end = evaluate_tokens(engine, tokens, engine.kept.position, progress, want_logits=True)
    return Evaluated(len(tokens), end, engine.kept.cells + len(tokens), None)
