"""Errors that are the user's to mend: one sentence that names the field and the fix, no traceback."""

from __future__ import annotations

__all__ = ["ExitCode", "UserError"]

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit values of the command line, for scripts and CI jobs."""

    OK = 0
    INTERNAL = 1  # a fault of isomatrix itself, with its traceback
    USAGE = 2  # bad input: nothing wrong was run
    UNUSABLE = 3  # the run ended without a usable table: the baseline cannot be loaded, or no trial was ok
    INTERRUPTED = 130


class UserError(Exception):
    """Bad input, or a surrounding that does not allow the work. The text is shown as it is."""

    def __init__(self, message: str, code: ExitCode = ExitCode.USAGE) -> None:
        """`code` becomes the exit value of the command."""
        super().__init__(message)
        self.code = code
