"""What a published or hand-made matrix of counts shows: one interval per arm, one exact test per contrast.

Input is nothing but counts (arm, bad, runs), all of them collected before anyone looked: these are fixed-size
tests. A run of isomatrix itself is read by `statistics.sequential`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from .statistics.contrast import ExactTest, boschloo, fisher, smallest_p
from .statistics.difference import Difference, difference_interval
from .statistics.interval import Interval, check_counts, check_level, clopper_pearson, upper_bound
from .statistics.multiplicity import holm
from .statistics.power import Design, clean_runs, runs_for_power
from .statistics.words import (
    counts_words,
    difference_words,
    needed_words,
    p_words,
    percent,
    rate_words,
    reach_words,
)

__all__ = [
    "ArmCounts",
    "AssessedArm",
    "AssessedContrast",
    "Assessment",
    "CountsError",
    "assess",
    "read_counts",
]

COLUMNS = ("arm", "bad", "runs")


class CountsError(ValueError):
    """A table of counts cannot be read; the message names line and column."""


@dataclass(frozen=True)
class ArmCounts:
    """Counts of one arm: corrupt trials and all judged trials."""

    arm: str
    bad: int
    runs: int


@dataclass(frozen=True)
class AssessedArm:
    """One arm: exact two-sided interval, one-sided upper bound (0..1) and the sentence for its cell."""

    arm: str
    bad: int
    runs: int
    interval: Interval
    upper: float
    sentence: str


@dataclass(frozen=True)
class AssessedContrast:
    """One arm against another: exact tests, p within the family, difference, and what would be needed."""

    arm: str
    reference: str
    boschloo: ExactTest
    fisher: ExactTest
    p_adjusted: float  # Holm over the family, two-sided Boschloo
    differs: bool
    reachable: bool  # whether any table of this size could pass its first Holm step
    smallest_p: float
    difference: Difference
    needed: Design | None  # fixed design for the observed rates; None where they are equal
    declared: bool  # False: an exploratory pair
    sentence: str


@dataclass(frozen=True)
class Assessment:
    """The reading of a whole matrix."""

    arms: tuple[AssessedArm, ...]
    contrasts: tuple[AssessedContrast, ...]  # the declared family: each arm against the baseline
    exploratory: tuple[AssessedContrast, ...]  # all pairs, a family of their own; not declared beforehand
    baseline: str | None
    alpha: float
    summary: tuple[str, ...]


def read_counts(text: str) -> list[ArmCounts]:
    """Rows from CSV text with the columns arm, bad and runs, in any order; other columns are passed over.

    Names with commas are quoted. Raises `CountsError` that names line and column.
    """
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff")), skipinitialspace=True)
    header = [cell.strip().lower() for cell in next(reader, [])]
    for column in COLUMNS:
        if header.count(column) != 1:
            how = "is missing" if column not in header else "stands there twice"
            raise CountsError(f"line 1: column '{column}' {how}; the first line must name arm, bad and runs")
    rows: list[ArmCounts] = []
    lines: dict[str, int] = {}
    for cells in reader:
        if not any(cell.strip() for cell in cells):
            continue
        line = reader.line_num
        if len(cells) != len(header):
            raise CountsError(
                f"line {line}: {len(cells)} columns where the first line names {len(header)}; "
                "put names that hold a comma in double quotes"
            )
        row = _row(line, dict(zip(header, (cell.strip() for cell in cells), strict=True)))
        if row.arm in lines:
            raise CountsError(f"line {line}, column 'arm': {row.arm!r} stands in line {lines[row.arm]} already")
        lines[row.arm] = line
        rows.append(row)
    if not rows:
        raise CountsError("line 2: no counts follow the first line")
    return rows


def _row(line: int, cells: dict[str, str]) -> ArmCounts:
    if not cells["arm"]:
        raise CountsError(f"line {line}, column 'arm': the name is empty")
    counts = {}
    for column in ("bad", "runs"):
        if not cells[column].isascii() or not cells[column].isdigit():
            raise CountsError(f"line {line}, column '{column}': {cells[column]!r} is not a whole number")
        counts[column] = int(cells[column])
    if counts["runs"] == 0:
        raise CountsError(f"line {line}, column 'runs': no runs, so there is no rate; leave the arm out")
    if counts["bad"] > counts["runs"]:
        raise CountsError(f"line {line}, column 'bad': {counts['bad']} bad of {counts['runs']} runs is impossible")
    return ArmCounts(cells["arm"], counts["bad"], counts["runs"])


def assess(
    counts: Sequence[ArmCounts | tuple[str, int, int]],
    *,
    baseline: str | None = None,
    alpha: float = 0.05,
    exploratory: bool = True,
) -> Assessment:
    """Assess counts (arm, bad, runs).

    `baseline` names the arm that all others are declared to be compared with; without it there are
    exploratory pairs only. Intervals have level 1 - alpha. Raises `ValueError` for impossible counts, a name
    that occurs twice or an unknown baseline.
    """
    check_level(1 - alpha)
    rows = [row if isinstance(row, ArmCounts) else ArmCounts(*row) for row in counts]
    by_name = {row.arm: row for row in rows}
    if len(by_name) != len(rows):
        raise ValueError("two arms have the same name; every arm needs its own")
    for row in rows:
        check_counts(row.bad, row.runs, where=f"arm {row.arm!r}")
    if baseline is not None and baseline not in by_name:
        raise ValueError(f"baseline {baseline!r} is not among the arms: {', '.join(by_name)}")
    arms = tuple(_arm(row, 1 - alpha) for row in rows)
    declared = [] if baseline is None else [(row, by_name[baseline]) for row in rows if row.arm != baseline]
    contrasts = _family(declared, alpha, declared=True)
    pairs = list(combinations(rows, 2)) if exploratory else []
    only_declared = len(pairs) == len(declared)  # two arms with a baseline: nothing is left to explore
    others = () if only_declared else _family(pairs, alpha, declared=False)
    summary = _summary(arms, contrasts, others, alpha)
    return Assessment(arms, contrasts, others, baseline, alpha, summary)


def _arm(row: ArmCounts, level: float) -> AssessedArm:
    interval = clopper_pearson(row.bad, row.runs, level)
    upper = upper_bound(row.bad, row.runs, level).value
    return AssessedArm(row.arm, row.bad, row.runs, interval, upper, rate_words(row.bad, row.runs, level))


def _family(
    pairs: Sequence[tuple[ArmCounts, ArmCounts]], alpha: float, *, declared: bool
) -> tuple[AssessedContrast, ...]:
    tests = [boschloo(arm.bad, arm.runs, other.bad, other.runs) for arm, other in pairs]
    adjusted = holm([test.two_sided for test in tests])
    step = alpha / max(1, len(pairs))
    return tuple(
        _contrast(arm, other, test, p_adjusted, alpha, step, declared)
        for (arm, other), test, p_adjusted in zip(pairs, tests, adjusted, strict=True)
    )


def _contrast(
    arm: ArmCounts,
    other: ArmCounts,
    test: ExactTest,
    p_adjusted: float,
    alpha: float,
    step: float,
    declared: bool,
) -> AssessedContrast:
    table = (arm.bad, arm.runs, other.bad, other.runs)
    rates = arm.bad / arm.runs, other.bad / other.runs
    differs = p_adjusted <= alpha
    smallest = smallest_p(arm.runs, other.runs)
    fisher_test = fisher(*table)
    needed = None if differs else runs_for_power(*rates, alpha=step)
    difference = difference_interval(*table, 1 - alpha)
    against = " against ".join(f"{_quoted(row.arm)} {counts_words(row.bad, row.runs)}" for row in (arm, other))
    if differs:
        ends = f"difference {_points(difference.low)} to {_points(difference.high)} points of rate"
        where = difference_words(*rates, _quoted(other.arm))
        verdict = f"differs ({p_words(p_adjusted)} within the family): {where}; {ends}"
    else:
        verdict = needed_words(needed, *rates)
        if smallest > step:
            verdict = f"{reach_words(arm.runs, other.runs, smallest, step)}; {verdict}"
    values = (
        f"{p_words(fisher_test.one_sided)} one-sided (Fisher; Boschloo {test.one_sided:.3g}), "
        f"{p_words(test.two_sided)} two-sided (Boschloo)"
    )
    sentence = f"{against}: {values}: {verdict}"
    return AssessedContrast(
        arm.arm,
        other.arm,
        test,
        fisher_test,
        p_adjusted,
        differs,
        smallest <= step,
        smallest,
        difference,
        needed,
        declared,
        sentence,
    )


def _quoted(name: str) -> str:
    """The name as it can stand in a sentence: one that holds a comma in double quotes."""
    return f'"{name}"' if "," in name else name


def _points(difference: float) -> str:
    return f"{100 * difference:+.0f}"


def _summary(
    arms: Sequence[AssessedArm],
    contrasts: Sequence[AssessedContrast],
    others: Sequence[AssessedContrast],
    alpha: float,
) -> tuple[str, ...]:
    lines = []
    if contrasts:
        lines.append(_family_words(contrasts, f"against {_quoted(contrasts[0].reference)}", alpha))
    if others:
        lines.append(_family_words(others, "over all pairs (exploratory)", alpha))
    unseen = [arm for arm in arms if arm.bad == 0]
    if unseen:
        widest = max(unseen, key=lambda arm: arm.upper)
        level = percent(1 - alpha)
        lines.append(
            f"{len(unseen)} of {len(arms)} arms show no failure; the least tested of them, "
            f"{_quoted(widest.arm)}, {rate_words(0, widest.runs, 1 - alpha)}; "
            f"a rate below 10 % ({level}) needs {clean_runs(0.1, 1 - alpha)} runs without a failure"
        )
    return tuple(lines)


def _family_words(family: Sequence[AssessedContrast], what: str, alpha: float) -> str:
    if len(family) == 1:
        return family[0].sentence
    differing = [contrast for contrast in family if contrast.differs]
    if differing:
        named = ", ".join(
            f"{_quoted(contrast.arm)} against {_quoted(contrast.reference)} ({p_words(contrast.p_adjusted)})"
            for contrast in differing
        )
        return f"{len(differing)} of {len(family)} contrasts {what} differ at {alpha:g} after Holm: {named}"
    smallest = min(family, key=lambda contrast: contrast.p_adjusted)
    out_of_reach = sum(not contrast.reachable for contrast in family)
    sentence = (
        f"none of {len(family)} contrasts {what} differs at {alpha:g} after Holm "
        f"(smallest {p_words(smallest.p_adjusted)})"
    )
    if out_of_reach:
        sentence += f"; {out_of_reach} of them could not have passed with any counts at these sizes"
    needs = [contrast.needed.runs for contrast in family if contrast.needed is not None]
    if needs:
        sentence += f"; the observed rates would need {_span(needs)} runs per arm (80 % power)"
    return sentence


def _span(needs: Sequence[int]) -> str:
    low, high = min(needs), max(needs)
    return f"about {low:,}" if low == high else f"about {low:,} to {high:,}"
