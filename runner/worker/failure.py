"""Failures that the worker can name, and the exit value of each kind."""

from __future__ import annotations

__all__ = ["BAD_INPUT", "EXIT_VALUES", "NOBODY_READS", "STDIN_ENDED", "WorkerFailure", "bad_input"]

BAD_INPUT = "bad_input"

EXIT_VALUES = {
    BAD_INPUT: 2,
    "refused": 3,
    "load_failure": 4,
    "backend_error": 5,
    "out_of_memory": 6,
}
"""Exit value per `kind` of an `error` event."""

NOBODY_READS = 7
"""Exit value when the result pipe is broken: whoever asked is gone."""

STDIN_ENDED = 8
"""Exit value when a watched stdin reaches its end and the process leads no group that it could kill."""


class WorkerFailure(Exception):
    """The trial cannot go on, for a reason that can be told in one sentence.

    `kind` is a key of `EXIT_VALUES`; `where` names the field of the spec, or the step, that failed.
    """

    def __init__(self, kind: str, where: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.where = where
        self.message = message


def bad_input(where: str, message: str) -> WorkerFailure:
    """The spec or a file that it names is wrong; `message` continues the name of the field."""
    return WorkerFailure(BAD_INPUT, where, f"{where}: {message}")
