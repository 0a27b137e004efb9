from __future__ import annotations

import io

import pytest
from isomatrix.matrix.table import Cell, Row, Table
from isomatrix.runner.render.markdown import render_markdown
from isomatrix.runner.render.terminal import print_table
from rich.console import Console

TABLE = Table(
    title="a_result",
    summary=("3 trials.",),
    columns=("arm", "corrupt"),
    rows=(
        Row({"arm": Cell("baseline"), "corrupt": Cell("0/3", 0)}, "baseline"),
        Row({"arm": Cell("x|y <b> [z]\n`w`"), "corrupt": Cell("3/3", 3)}, "corrupt"),
    ),
    notes=("a note",),
    provenance=("built *here*",),
)


def test_markdown_cannot_be_broken_by_what_stands_in_a_cell():
    lines = render_markdown(TABLE).splitlines()
    assert lines[0] == "### a\\_result"
    (row,) = [line for line in lines if line.startswith("| x")]
    assert row == "| x\\|y \\<b> \\[z] \\`w\\` | 3/3 |"
    assert "| arm | corrupt |" in lines
    assert "* built \\*here\\*" in lines


def test_markdown_folds_the_provenance_away():
    text = render_markdown(TABLE)
    assert text.index("a note") < text.index("<details>") < text.index("built") < text.index("</details>")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_pipe_gets_markdown_and_a_terminal_a_grid_with_the_same_words(terminal: bool):
    out = io.StringIO()
    print_table(TABLE, Console(file=out, force_terminal=terminal, width=100, color_system=None))
    assert ("| baseline | 0/3 |" in out.getvalue()) is not terminal
    assert all(word in out.getvalue() for word in ("3 trials.", "baseline", "3/3", "a note"))
