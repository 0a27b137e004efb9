"""What `isomatrix plan` prints: the arms, and what the design can show at what cost.

A terminal gets tables. A pipe gets three parts with an empty line between them: the arms and the forecast as
tab-separated lines, then sentences.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ..matrix.forecast import Expected, Forecast
from ..matrix.plan import Plan
from ..matrix.plant import arm_label
from ..matrix.statistics.words import percent
from .duration import words
from .past_times import PastTime

__all__ = ["print_plan"]

_SEQUENTIAL = ("rate", "told apart", "runs per arm", "trials", "trials, 90 % at most", "fixed design, runs per arm")
_FIXED = ("rate", "told apart", "runs per arm", "trials", "runs per arm for 80 %")


def print_plan(plan: Plan, console: Console, forecast: Forecast, past: PastTime | None) -> None:
    """The arms, the forecast for each rate, the number of trials and the time they take."""
    arms = [
        (arm_label(arm), arm.changes_text, "" if arm is plan.baseline or arm.control else arm.reference)
        for arm in plan.arms
    ]
    _print_rows(console, ("arm", "changes from the baseline", "compared with"), arms, heading=False)
    if forecast.expected:
        console.print(Text(""))
        headings = _SEQUENTIAL if forecast.kind == "sequential" else _FIXED
        _print_rows(console, headings, [_cells(found, forecast) for found in forecast.expected], heading=True)
    if not console.is_terminal:
        console.print(Text(""))
    for sentence in _sentences(plan, forecast, past):
        console.print(Text(sentence), soft_wrap=not console.is_terminal)


def _print_rows(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]], *, heading: bool) -> None:
    if not console.is_terminal:
        lines = [headings, *rows] if heading else rows
        console.file.write("".join("\t".join(line) + "\n" for line in lines))
        return
    grid = RichTable(*headings, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in grid.columns:
        column.overflow = "fold"
    for row in rows:
        grid.add_row(*map(Text, row))
    console.print(grid)


def _cells(expected: Expected, forecast: Forecast) -> list[str]:
    design = expected.for_power
    needed = "none: equal rates" if design is None else f"{'' if design.exact else 'about '}{design.runs}"
    p90 = [] if expected.trials_p90 is None else [f"{expected.trials_p90:.0f}"]
    return [
        f"{expected.rate:g}",
        percent(expected.differs),
        f"{expected.runs:.0f}",
        f"{expected.trials:.0f}",
        *p90,
        needed,
    ]


def _sentences(plan: Plan, forecast: Forecast, past: PastTime | None) -> list[str]:
    return [
        *(f"* {note}" for note in plan.notes),
        *_scenario(forecast),
        *forecast.sentences,
        _trials(forecast),
        _time(forecast, past),
    ]


def _scenario(forecast: Forecast) -> list[str]:
    if not forecast.expected:
        return []
    others = "" if forecast.family == 1 else " and every other arm"
    how = (
        f"mean of {forecast.repeats} simulated runs"
        if forecast.repeats is not None
        else "exact power, Boschloo at alpha / contrasts"
    )
    return [
        f"Each line: one arm is corrupt at that rate, the baseline{others} at {forecast.baseline_rate:g} ({how}). "
        "Other rates: plan.rates=[0.2,0.1] plan.baseline_rate=0.02"
    ]


def _trials(forecast: Forecast) -> str:
    most = "at most " if forecast.kind == "sequential" else ""
    contrasts = f"{forecast.contrasts} contrast{'' if forecast.contrasts == 1 else 's'}"
    families = f" in {forecast.families} families that share alpha" if forecast.families > 1 else ""
    budget = ""
    if forecast.most_trials < forecast.arms * forecast.rounds:
        budget = f", ended at {forecast.most_trials:,} by stop.max_trials"
    return (
        f"{forecast.arms} arms x {most}{forecast.rounds} rounds = {most}{forecast.arms * forecast.rounds} trials"
        f"{budget}; {contrasts}{families}"
    )


def _time(forecast: Forecast, past: PastTime | None) -> str:
    if past is None:
        return "No stored trial of this model and probe yet, so no estimate of the time."
    most = "at most " if forecast.kind == "sequential" else "about "
    seconds = f"{past.seconds:.2f} s a trial (median of {past.trials} in {past.result})"
    means = [found.trials for found in forecast.expected if found.trials_p90 is not None]
    expected = ""
    if means:
        expected = f", expected {words(min(means) * past.seconds)} to {words(max(means) * past.seconds)}"
    return f"Time: {most}{words(forecast.most_trials * past.seconds)}{expected}, at {seconds}"
