"""`run` and `plan`: hand the words to Hydra, and turn what comes back into an exit value."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal

import hydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from . import session
from .errors import ExitCode, UserError

if TYPE_CHECKING:
    from ..matrix.plan import Plan

__all__ = ["run_or_plan"]

_HYDRA_CHATTER = (
    "full_key:",
    "object_type=",
    "reference_type=",
    "Config search path",
    "provider=",
    "To append to",
)


def run_or_plan(verb: str, arguments: Sequence[str]) -> int:
    """One multirun of Hydra with our sweeper; returns the exit value of the command."""
    Plugins.instance()  # scan first: the scan would load the sweeper's module a second time
    from hydra_plugins.isomatrix_sweeper import install

    from .compose import check_setting_name, hydra_word

    install()
    for word in arguments:
        check_setting_name(word.split("=")[0].lstrip("+"))
    current = session.begin("plan" if verb == "plan" else "run")
    words = [hydra_word(word) for word in arguments]
    with _hydra_arguments(verb, words), _interruptible(current):
        try:
            _entry()
        except UserError:
            raise
        except (HydraException, OmegaConfBaseException) as error:
            raise UserError(_one_sentence(error)) from error
    if verb == "plan" and current.plan is not None and current.config is not None:
        _print_plan(current.plan, current.config)
    return current.finished.exit_code if current.finished else ExitCode.OK


def _print_plan(plan: Plan, config: DictConfig) -> None:
    from ..matrix.forecast import ForecastError, forecast
    from .past_times import past_trial_time
    from .plan_view import print_plan

    try:
        expected = forecast(plan, list(config.plan.rates), config.plan.baseline_rate)
    except ForecastError as error:
        raise UserError(str(error)) from error
    print_plan(plan, Console(), expected, past_trial_time(Path(config.run.results).expanduser(), plan))


@hydra.main(version_base="1.3", config_path="pkg://isomatrix.conf", config_name="config")
def _entry(config: DictConfig) -> None:
    """One Hydra job is one round."""
    from .round import run_round

    run_round(config)


@contextmanager
def _hydra_arguments(verb: Literal["run", "plan"] | str, words: list[str]) -> Iterator[None]:
    # Hydra reads sys.argv, and with HYDRA_FULL_ERROR it raises instead of printing and exiting.
    argv, full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    # Told that it is a multirun, Hydra names the word that is wrong; else it blames the first axis.
    asks = any(word.startswith("-") and word not in ("-cd", "--config-dir") for word in words)
    sys.argv = [f"isomatrix {verb}", *([] if asks else ["--multirun"]), *words]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)


@contextmanager
def _interruptible(current: session.Session) -> Iterator[None]:
    """First Ctrl-C or SIGTERM ends the trial in flight and the run keeps what it has; the second one ends at once."""

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        if current.cancel.is_set():
            raise KeyboardInterrupt
        current.cancel.set()
        sys.stderr.write(
            "\nisomatrix: ending the trial in flight and keeping the rest; press Ctrl-C again to stop at once\n"
        )

    # A run started in the background of a script has SIGINT ignored, and Ctrl-C is not meant for it.
    heard = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, ask_to_stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _one_sentence(error: BaseException) -> str:
    """Hydra's explanation on one line, with its cause where it hides one."""
    cause = error.__cause__
    texts = [str(error)] + ([str(cause)] if cause is not None and str(cause) not in str(error) else [])
    lines = [line.strip() for text in texts for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith(_HYDRA_CHATTER)]
    return "; ".join(dict.fromkeys(kept))
