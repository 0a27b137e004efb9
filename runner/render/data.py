"""The table for programs: CSV of the arms, JSON of everything."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...matrix.schema import ARMS
from ...matrix.table import Table

__all__ = ["render_csv", "render_json"]


def render_csv(arms: Sequence[Mapping[str, Any]], readings: Mapping[str, str]) -> str:
    """One line per arm with every column of `arms.parquet`, and the reading of its contrast."""
    names = [column.name for column in ARMS]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*names, "reading"])
    writer.writerows([*(arm[name] for name in names), readings.get(arm["arm"], "")] for arm in arms)
    return out.getvalue()


def render_json(
    table: Table,
    arms: Sequence[Mapping[str, Any]],
    readings: Mapping[str, str],
    decisions: Mapping[str, Any],
    findings: Mapping[str, Any],
) -> str:
    """Title, summary, arms with all their numbers, decisions, findings beside them, notes and provenance."""
    content = {
        "title": table.title,
        "summary": list(table.summary),
        "arms": [{**arm, "reading": readings.get(arm["arm"])} for arm in arms],
        "decisions": list(decisions.values()),
        "findings": findings,
        "notes": list(table.notes),
        "exploratory": list(table.exploratory),
        "provenance": list(table.provenance),
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
