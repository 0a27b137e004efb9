"""The verbs that need no Hydra: show, report, replay, judge, assess, doctor."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from .errors import ExitCode, UserError
from .render.data import render_csv, render_json
from .render.markdown import render_markdown
from .render.terminal import print_table
from .result import LoadedResult, load_result

__all__ = ["assess", "doctor", "judge", "replay", "report", "show"]


def show(arguments: argparse.Namespace) -> int:
    """Print the table of a result, finished or running."""
    print_table(load_result(arguments.result).table(), Console())
    return ExitCode.OK


def report(arguments: argparse.Namespace) -> int:
    """Write the table as Markdown, CSV or JSON."""
    result = load_result(arguments.result)
    text = _rendered(result, arguments.format)
    if arguments.output is None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UserError(f"standard output cannot be written: {error.strerror}") from error
        return ExitCode.OK
    path = Path(arguments.output).expanduser()
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--output: {path} cannot be written: {error.strerror}") from error
    return ExitCode.OK


def _rendered(result: LoadedResult, form: str) -> str:
    if form == "md":
        return render_markdown(result.table())
    analysis = result.analysis
    arms, readings = analysis.arms.to_pylist(), analysis.readings()
    if form == "csv":
        return render_csv(arms, readings)
    decisions = {arm: asdict(decision) for arm, decision in analysis.decisions.items()}
    return render_json(result.table(), arms, readings, decisions, analysis.findings.as_data())


def judge(arguments: argparse.Namespace) -> int:
    """Judge stored rows again, store limits, verdicts and counts, and print the table."""
    limits = _thresholds(arguments.thresholds)
    result = load_result(arguments.result, limits, arguments.harmless, reset=arguments.reset)
    with result.folder.lock():
        result.folder.compact(result.analysis.trials)
        result.folder.write_arms(result.analysis.arms)
        result.folder.write_plan(result.analysis.plan.as_json())  # `show` and `report` judge by the same limits
    print_table(result.table(), Console())
    return ExitCode.OK


def _thresholds(words: list[str]) -> dict[str, float]:
    values = {}
    for word in words:
        name, equals, value = word.partition("=")
        try:
            values[name] = float(value)
        except ValueError:
            raise UserError(
                f"--set {word}: give NAME=NUMBER" if not equals else f"--set {name}: {value!r} is not a number"
            ) from None
    return values


def replay(arguments: argparse.Namespace) -> int:
    """Run one stored trial again and say whether it gave the same answer."""
    from .replay import replay_trial

    return replay_trial(load_result(arguments.result), arguments.trial, Console())


def assess(arguments: argparse.Namespace) -> int:
    """The honest reading of a hand-made table of counts."""
    from ..matrix.assess import CountsError, read_counts
    from ..matrix.assess import assess as assess_counts
    from .assess_view import print_assessment
    from .files import existing_file

    path = existing_file("counts", arguments.counts)
    try:
        counts = read_counts(path.read_text(encoding="utf-8", errors="replace"))
        result = assess_counts(counts, baseline=arguments.baseline or counts[0].arm, alpha=arguments.alpha)
    except (CountsError, ValueError) as error:
        raise UserError(f"{path}: {error}") from error
    print_assessment(result, Console())
    return ExitCode.OK


def doctor(arguments: argparse.Namespace) -> int:
    """What this interpreter, build and machine can do, found out by running the tiny model."""
    from .doctor import print_doctor

    return print_doctor(arguments.python, Console())
