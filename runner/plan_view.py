"""What `isomatrix plan` prints."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ..matrix.plan import Plan
from ..matrix.plant import arm_label
from .duration import words

__all__ = ["print_plan"]


def print_plan(plan: Plan, console: Console, seconds_per_trial: float | None = None) -> None:
    """The arms, the number of trials, and the estimated time where a stored result allows one."""
    if console.is_terminal:
        grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in ("arm", "changes from the baseline", "compared with"):
            grid.add_column(heading, overflow="fold")
        for arm in plan.arms:
            reference = "" if arm is plan.baseline else arm.reference
            grid.add_row(Text(arm_label(arm)), Text(arm.changes_text), Text(reference))
        console.print(grid)
    else:
        for arm in plan.arms:
            console.file.write(f"{arm_label(arm)}\t{arm.changes_text}\t{arm.reference}\n")
    for note in plan.notes:
        console.print(Text(f"* {note}"))
    trials = len(plan.arms) * plan.rounds
    most = "at most " if plan.stop.get("kind") == "sequential" else ""
    line = f"{len(plan.arms)} arms x {most}{plan.rounds} rounds = {most}{trials} trials"
    if seconds_per_trial is not None:
        line += f"; about {words(trials * seconds_per_trial)} at {seconds_per_trial:.2f} s a trial"
    console.print(Text(line))
