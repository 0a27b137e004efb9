"""What a user sees while a run goes on: a live table with a progress bar, or one line a round when piped."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable
from rich.text import Text

from ..matrix.plan import Plan
from ..matrix.plant import arm_label
from .duration import words

__all__ = ["Display"]


class _ArmTally:
    """What the live table shows of one arm."""

    def __init__(self) -> None:
        self.verdicts: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.seconds = 0.0

    def add(self, row: Mapping[str, Any]) -> None:
        self.outcomes[row["outcome"]] += 1
        self.seconds += row["wall_s"] or 0.0

    @property
    def trials(self) -> int:
        return self.outcomes.total()


class Display:
    """Live progress on standard error, so that standard output holds the final table alone."""

    def __init__(self, plan: Plan, title: str, *, done: int) -> None:
        """`done` is the number of trials that a resumed run has already."""
        self._plan = plan
        self._title = title
        self._console = Console(stderr=True)
        self._tallies = {arm.name: _ArmTally() for arm in plan.arms}
        self._labels = {arm.name: arm_label(arm) for arm in plan.arms}
        self._running = ""
        self._done = done
        self._started = time.monotonic()
        self._new_trials = 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("trials"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
        )
        self._task: TaskID | None = None
        self._live: Live | None = None

    def __enter__(self) -> Display:
        """Start the live view if standard error is a terminal."""
        self._task = self._progress.add_task(self._title, total=self._total(), completed=self._done, left="")
        if self._console.is_terminal:
            self._live = Live(self._view(), console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the live view; the final table is printed by whoever prints results."""
        if self._live:
            self._live.stop()

    def trial_started(self, arm: str) -> None:
        """A trial of this arm is on its way."""
        self._running = arm
        self._refresh()

    def note(self, text: str) -> None:
        """One line about something that is no trial."""
        self._console.print(Text(text), soft_wrap=True)

    def trial_finished(self, row: Mapping[str, Any]) -> None:
        """A trial has its row."""
        self._tallies[row["arm"]].add(row)
        self._done += 1
        self._new_trials += 1
        self._running = ""
        self._refresh()

    def judged(self, verdicts: Mapping[str, Mapping[str, int]], open_arms: int, rounds_left: int) -> None:
        """After a round: the verdicts of every arm so far, and how much can still be to come."""
        for arm, counts in verdicts.items():
            self._tallies[arm].verdicts = Counter(counts)
        if self._task is not None:
            self._progress.update(self._task, total=self._done + open_arms * rounds_left)
        self._refresh()

    def round_finished(self, index: int, rounds: int, summary: str) -> None:
        """One line a round for logs and pipes; the live view needs none."""
        if self._live is None:
            self._console.print(
                Text(f"round {index + 1}/{rounds}: {self._done} trials, {summary}{self._left()}"),
                soft_wrap=True,
            )

    def _total(self) -> int:
        return len(self._plan.arms) * self._plan.rounds

    def _left(self) -> str:
        task = self._progress.tasks[0]
        remaining = int((task.total or 0) - self._done)
        if not self._new_trials or remaining <= 0:
            return ""
        most = "at most " if self._plan.stop.get("kind") == "sequential" else ""
        seconds = (time.monotonic() - self._started) / self._new_trials * remaining
        return f", {most}{words(seconds)} left"

    def _refresh(self) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=self._done, left=self._left().removeprefix(", "))
        if self._live:
            self._live.update(self._view())

    def _view(self) -> Group:
        grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in ("arm", "corrupt/runs", "verdicts", "outcomes", "time"):
            grid.add_column(heading, justify="right" if heading in ("corrupt/runs", "time") else "left")
        for arm in self._plan.arms:
            grid.add_row(*self._cells(arm.name), style="bold" if arm.name == self._running else "")
        return Group(grid, self._progress)

    def _cells(self, arm: str) -> tuple[Text, ...]:
        tally = self._tallies[arm]
        corrupt = tally.verdicts["divergent"] + tally.verdicts["garbage"]
        judged = corrupt + tally.verdicts["identical"] + tally.verdicts["drift"]
        mean = f"{tally.seconds / tally.trials:.2f} s" if tally.trials else ""
        return (
            Text(f"> {self._labels[arm]}" if arm == self._running else f"  {self._labels[arm]}"),
            Text(f"{corrupt}/{judged}", style="bold red" if corrupt else ""),
            Text(_counted(tally.verdicts)),
            Text(_counted(tally.outcomes)),
            Text(mean),
        )


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.most_common() if count)
