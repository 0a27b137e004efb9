"""The table in the terminal, with colours that only repeat what the words say."""

from __future__ import annotations

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from ...matrix.table import EXPLORATORY, Table
from .markdown import render_markdown

__all__ = ["print_table", "terminal_table"]

_STYLES = {"corrupt": "bold red", "failed": "yellow", "baseline": "bold", "inert": "dim", "planted": "magenta", "": ""}
_NUMBERS = ("corrupt", "first", "time")


def terminal_table(table: Table) -> RenderableType:
    """The table as a rich renderable."""
    grid = RichTable(box=box.SIMPLE_HEAD, title=table.title, title_justify="left", title_style="bold", pad_edge=False)
    for column in table.columns:
        grid.add_column(
            table.heading(column),
            justify="right" if column in _NUMBERS else "left",
            no_wrap=column in _NUMBERS,
            overflow="fold",
        )
    for row in table.rows:
        grid.add_row(*(Text(row.cells[column].text) for column in table.columns), style=_STYLES[row.mark])
    parts: list[RenderableType] = [Text(sentence) for sentence in table.summary]
    parts.append(grid)
    parts += [Text(f"* {note}") for note in table.notes]
    if table.exploratory:
        parts += [Text(f"{EXPLORATORY}:"), *(Text(f"* {line}") for line in table.exploratory)]
    parts += [Text(line, style="dim") for line in table.provenance]
    return Group(*parts)


def print_table(table: Table, console: Console) -> None:
    """For a person: the terminal table. For a pipe: Markdown, which has no colours and no width."""
    if console.is_terminal:
        console.print(terminal_table(table))
    else:
        console.file.write(render_markdown(table))
