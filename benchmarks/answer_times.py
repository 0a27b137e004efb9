"""How long the statistics make a user wait: start-up, the forecast of a plan, and the findings of a result.

    python benchmarks/answer_times.py

Rows are made up, with verdicts in them: what is timed is everything after the judge. CPU seconds of one process
(start-up: wall seconds, the best of five), in Markdown.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from isomatrix.matrix.analysis import decisions_of
from isomatrix.matrix.arm import Arm
from isomatrix.matrix.counts import count_arms
from isomatrix.matrix.findings import findings_of
from isomatrix.matrix.forecast import forecast
from isomatrix.matrix.plan import Plan
from isomatrix.matrix.schema import trials_schema

BASELINE = Arm("baseline", "", "", (), "baseline", {})
LOAD = Arm("load=cpu", "", "", (("load", "cpu"),), "baseline", {})


def plan(arms: int, rounds: int, kind: str, *, crossed: bool = False) -> Plan:
    """A baseline and `arms` more; crossed: the same arms again under a load."""
    members = [Arm(f"arm{n}", "", "", ((f"axis{n}", "1"),), "baseline", {}) for n in range(arms)]
    if crossed:
        again = [Arm(f"{m.name} & load=cpu", "", "", (*m.changes, *LOAD.changes), LOAD.name, {}) for m in members]
        members = [*members, LOAD, *again]
    return Plan(1, rounds, (BASELINE, *members), {"kind": kind, "rounds": rounds}, {})


def rows(design: Plan, failing: int) -> pa.Table:
    """Every arm in every round; the last `failing` arms are corrupt at rates from 0.1 to 0.6."""
    generator = np.random.default_rng(1)
    rates = np.zeros(len(design.arms))
    rates[len(rates) - failing :] = np.linspace(0.1, 0.6, failing)
    corrupt = generator.random((len(rates), design.rounds)) < rates[:, None]
    return pa.Table.from_pylist(
        [
            {
                "trial_id": f"{arm.name}-{number}",
                "arm": arm.name,
                "round": number,
                "outcome": "ok",
                "verdict": "divergent" if corrupt[index, number] else "identical",
                "corrupt": bool(corrupt[index, number]),
                "requests": [],
            }
            for index, arm in enumerate(design.arms)
            for number in range(design.rounds)
        ],
        schema=trials_schema(),
    )


def spent(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def start_up(code: str) -> float:
    """Wall seconds of a new interpreter that runs `code`, the best of five."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    """Print the tables."""
    print("| start-up | s |\n| --- | --- |")
    for name, code in (
        ("what `show` imports", "import isomatrix.runner.commands"),
        ("the same with scipy.stats, as a test needs it", "import isomatrix.runner.commands, scipy.stats"),
    ):
        print(f"| {name} | {start_up(code):.2f} |")
    print("\n| forecast of three rates | s |\n| --- | --- |")
    for kind, arms, rounds in (
        ("sequential", 6, 40),
        ("sequential", 30, 40),
        ("sequential", 10, 400),
        ("fixed", 10, 60),
    ):
        design = plan(arms, rounds, kind)
        print(f"| {kind}, {arms} arms, {rounds} rounds | {spent(lambda p=design: forecast(p, [0.9, 0.5, 0.3])):.2f} |")
    print("\n| result | decisions, s | findings, s |\n| --- | --- | --- |")
    for arms, rounds, failing, crossed in (
        (10, 40, 0, False),
        (10, 40, 3, False),
        (20, 100, 6, False),
        (10, 100, 6, True),
    ):
        design = plan(arms, rounds, "fixed", crossed=crossed)
        judged = rows(design, failing)
        counts = count_arms(judged, [arm.name for arm in design.arms]).to_pylist()
        decisions = spent(lambda p=design, t=judged: decisions_of(p, t))
        findings = spent(lambda p=design, t=judged, c=counts: findings_of(p, t, c))
        what = f"{len(design.arms)} arms{', crossed' if crossed else ''}, {rounds} rounds, {failing} failing"
        print(f"| {what} | {decisions:.2f} | {findings:.2f} |")


if __name__ == "__main__":
    main()
