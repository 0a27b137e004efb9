"""Markdown that pastes into an issue: summary, table, notes, and the provenance folded away."""

from __future__ import annotations

from ...matrix.table import EXPLORATORY, Table

__all__ = ["render_markdown"]


def render_markdown(table: Table) -> str:
    """The table as GitHub Markdown, ending in a newline."""
    lines = [f"### {_escaped(table.title)}", ""]
    lines += [line for sentence in table.summary for line in (_escaped(sentence), "")]
    lines += _pipe_table(table)
    if table.notes:
        lines += ["", *(f"* {_escaped(note)}" for note in table.notes)]
    if table.exploratory:
        lines += ["", f"{EXPLORATORY}:", "", *(f"* {_escaped(line)}" for line in table.exploratory)]
    if table.provenance:
        lines += ["", "<details><summary>provenance</summary>", ""]
        lines += [f"* {_escaped(line)}" for line in table.provenance]
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _pipe_table(table: Table) -> list[str]:
    numbers = {"corrupt", "interval", "first", "time"}
    head = [table.heading(column) for column in table.columns]
    rule = ["---:" if column in numbers else "---" for column in table.columns]
    body = [[_escaped(row.cells[column].text) for column in table.columns] for row in table.rows]
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *body)]


def _escaped(text: str) -> str:
    """Text that cannot break out of a cell or be read as markup."""
    for mark in ("\\", "|", "*", "_", "`", "<", "["):
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
