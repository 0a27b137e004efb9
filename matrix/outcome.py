"""How a trial ended, what it means, and which meanings count as corruption."""

from __future__ import annotations

from enum import Enum

__all__ = ["CORRUPT", "FAILED", "SEVERITY", "Outcome", "Verdict"]


class Outcome(str, Enum):
    """How the worker process ended. Says nothing about whether its answer was right."""

    OK = "ok"
    CRASH = "crash"  # ended by a signal that the runner did not send
    TIMEOUT = "timeout"  # ended by the runner: wall time or stalled progress
    OUT_OF_MEMORY = "out_of_memory"  # ended by the runner's memory limit, the OS, or a failed allocation
    BACKEND_ERROR = "backend_error"  # the library reported a failed computation
    LOAD_FAILURE = "load_failure"  # library, model, projector or context could not be loaded
    REFUSED = "refused"  # this build has no such setting, or does not accept the level
    NO_RESULT = "no_result"  # the process ended by itself without a complete answer
    INTERRUPTED = "interrupted"  # the user ended the run; such a trial is never stored as finished


class Verdict(str, Enum):
    """What a trial means against the reference."""

    IDENTICAL = "identical"  # the same logits digests at every position
    DRIFT = "drift"  # other digests, within numeric noise
    DIVERGENT = "divergent"  # other tokens, not explained by noise
    GARBAGE = "garbage"  # divergent, and the text side agrees
    FAILED = "failed"  # the outcome is not ok
    UNJUDGED = "unjudged"  # there is no reference to judge against


CORRUPT = frozenset({Verdict.DIVERGENT, Verdict.GARBAGE})
"""The verdicts that count as corruption; failures are counted beside it."""

FAILED = frozenset(outcome for outcome in Outcome if outcome is not Outcome.OK)

SEVERITY = {
    Verdict.IDENTICAL: 0,
    Verdict.DRIFT: 1,
    Verdict.DIVERGENT: 2,
    Verdict.GARBAGE: 3,
}
"""Order of the verdicts that come from comparing; a trial with several requests takes its worst one."""
