"""What `isomatrix assess` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ..matrix.assess import Assessment

__all__ = ["print_assessment"]


def print_assessment(assessment: Assessment, console: Console) -> None:
    """The summary, what each arm's counts bound, and each declared contrast; exploratory ones only if one differs."""
    for sentence in assessment.summary:
        console.print(Text(f"{sentence}."), soft_wrap=True)
    _print_rows(console, ("arm", "what the counts say"), [(arm.arm, arm.sentence) for arm in assessment.arms])
    declared = [(f"{c.arm} against {c.reference}", c.sentence) for c in assessment.contrasts]
    _print_rows(console, ("declared contrast", "reading"), declared)
    found = [(f"{c.arm} against {c.reference}", c.sentence) for c in assessment.exploratory if c.differs]
    if found:
        _print_rows(console, ("exploratory contrast (not declared beforehand)", "reading"), found)


def _print_rows(console: Console, headings: Sequence[str], rows: Sequence[tuple[str, str]]) -> None:
    if not rows:
        return
    if not console.is_terminal:
        console.file.write("\n" + "".join(f"{name}\t{sentence}\n" for name, sentence in rows))
        return
    grid = RichTable(*headings, box=box.SIMPLE_HEAD, pad_edge=False)
    for name, sentence in rows:
        grid.add_row(Text(name), Text(sentence))
    console.print(grid)
