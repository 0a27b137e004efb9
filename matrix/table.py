"""The table model: what every renderer shows, decided once.

A `Table` holds finished words and the numbers behind them. Renderers (terminal, Markdown, CSV, JSON) only lay
it out, so that no two of them can disagree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .arm import BASELINE
from .outcome import Outcome
from .plant import MARK
from .statistics.words import percent

__all__ = ["EXPLORATORY", "Cell", "Row", "Table", "arms_table"]

EXPLORATORY = "Exploratory, declared by nobody beforehand"
"""Words above the list of such findings."""

HEADINGS = {
    "arm": "arm",
    "corrupt": "corrupt",
    "interval": "rate",
    "verdicts": "verdicts",
    "failed": "failed",
    "first": "first divergent",
    "effect": "effect",
    "reading": "reading",
    "time": "time",
}


@dataclass(frozen=True)
class Cell:
    """One cell: the words shown, and the value behind them for machine-readable output."""

    text: str
    value: Any = None


@dataclass(frozen=True)
class Row:
    """One arm. `mark` is `planted`, `baseline`, `corrupt`, `failed`, `inert` or empty, for renderers with colours."""

    cells: Mapping[str, Cell]
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """Summary sentences on top, one row per arm, notes and provenance below. `columns` are keys of cells.

    `exploratory` are findings that nobody declared beforehand; they stand apart and are marked so.
    """

    title: str
    summary: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    provenance: tuple[str, ...]
    exploratory: tuple[str, ...] = ()
    confidence: str = ""

    def heading(self, column: str) -> str:
        """The words above a column."""
        return (
            f"{HEADINGS[column]}, {self.confidence}" if column == "interval" and self.confidence else HEADINGS[column]
        )


def arms_table(
    title: str,
    arms: Sequence[Mapping[str, Any]],
    *,
    readings: Mapping[str, str] | None = None,
    summary: Sequence[str] = (),
    notes: Sequence[str] = (),
    provenance: Sequence[str] = (),
    exploratory: Sequence[str] = (),
) -> Table:
    """The isolation table from rows of `arms.parquet`, the baseline first.

    `readings` maps an arm to what its contrast shows, in a sentence with its numbers. Columns in which
    nothing was seen (no failure, no divergence, no reading) are left out.
    """
    ordered = sorted(arms, key=lambda arm: arm["arm"] != BASELINE)
    rows = tuple(_row(arm, (readings or {}).get(arm["arm"], "")) for arm in ordered)
    optional = {
        "failed": any(arm["n_failed"] for arm in ordered),
        "first": any(arm["first_divergent_position"] is not None for arm in ordered),
        "reading": bool(readings),
    }
    columns = tuple(name for name in HEADINGS if optional.get(name, True))
    return Table(
        title,
        tuple(summary),
        columns,
        rows,
        tuple(notes),
        tuple(provenance),
        tuple(exploratory),
        _confidence(ordered[0]) if ordered else "",
    )


def _confidence(arm: Mapping[str, Any]) -> str:
    """The level of intervals and bounds; those of a run that was watched hold at every round."""
    level = percent(arm["confidence"])
    return f"{level} at every round" if arm["always"] else level


def _row(arm: Mapping[str, Any], reading: str) -> Row:
    first = arm["first_divergent_position"]
    cells = {
        "arm": Cell(_arm_words(arm), arm["arm"]),
        "corrupt": Cell(f"{arm['n_corrupt']}/{arm['n']}", arm["n_corrupt"]),
        "interval": Cell(_interval(arm), arm["rate"]),
        "verdicts": Cell(_verdicts(arm)),
        "failed": Cell(_failures(arm), arm["n_failed"]),
        "first": Cell("" if first is None else f"token {first}", first),
        "effect": Cell("" if arm["arm"] == BASELINE else (arm["effect"] or ""), arm["effect"]),
        "reading": Cell(reading),
        "time": Cell("" if arm["median_wall_s"] is None else f"{arm['median_wall_s']:.2f} s", arm["median_wall_s"]),
    }
    return Row(cells, _mark(arm))


def _mark(arm: Mapping[str, Any]) -> str:
    if arm["planted"]:
        return "planted"
    if arm["n_corrupt"]:
        return "corrupt"
    if arm["n_failed"]:
        return "failed"
    if arm["arm"] == BASELINE:
        return "baseline"
    return "inert" if arm["effect"] == "inert" else ""


def _arm_words(arm: Mapping[str, Any]) -> str:
    if arm["planted"] and arm["arm"] == BASELINE:
        return f"{BASELINE} {MARK}: {arm['planted']}"
    if arm["arm"] in (BASELINE, arm["changes"]) or not arm["changes"]:
        return str(arm["arm"])
    return f"{arm['arm']}: {arm['changes']}" if arm["changes"] not in arm["arm"] else str(arm["arm"])


def _interval(arm: Mapping[str, Any]) -> str:
    if not arm["n"]:
        return "no trial counts"
    if not arm["n_corrupt"]:
        return f"below {percent(arm['rate_below'])}"  # one-sided: no failure is not a rate of zero
    if arm["n_corrupt"] == arm["n"]:
        return f"above {percent(arm['rate_above'])}"
    low, high = percent(arm["rate_low"]), percent(arm["rate_high"])
    return f"{percent(arm['rate'])} ({low.removesuffix(' %')} to {high})"


def _verdicts(arm: Mapping[str, Any]) -> str:
    names = ("identical", "drift", "divergent", "garbage", "unjudged")
    return ", ".join(f"{arm[f'n_{name}']} {name}" for name in names if arm[f"n_{name}"]) or "none"


def _failures(arm: Mapping[str, Any]) -> str:
    outcomes = json.loads(arm["outcomes"] or "{}")
    failed = {name: count for name, count in outcomes.items() if name != Outcome.OK.value and count}
    words = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(failed.items()))
    return words or "0"
