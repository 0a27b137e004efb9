"""Rounds as blocks: a contrast within rounds (or machines), and a watch on a baseline that drifts.

The exact conditional test fixes the number of corrupt trials of every stratum; under equal rates within each
stratum the arm's share of them is hypergeometric, and the shares of all strata add up (their exact
convolution). With one trial per arm and round this is McNemar's exact test: the binomial test on the rounds
in which the two arms differ. It stays valid where rates move from round to round or from machine to machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .binomial import hypergeometric_masses
from .contrast import ExactTest, boschloo
from .eprocess import Block
from .words import counts_words, p_words, percent

__all__ = ["Drift", "baseline_drift", "stratified_exact"]

_TIE = 1e-9


def stratified_exact(strata: Sequence[Block]) -> ExactTest:
    """Exact conditional test of equal rates within every stratum (a round, a machine, a level of a load).

    `two_sided` is twice the smaller side, at most 1. Strata that lack one of the arms carry no information
    and are passed over; `ValueError` if no stratum has both.
    """
    complete = [block for block in strata if block.complete]
    if not complete:
        raise ValueError("no stratum has a judged trial of both arms; the contrast cannot be tested within strata")
    mass = np.ones(1)
    for block in complete:
        bad = block.bad + block.reference_bad
        mass = np.convolve(mass, hypergeometric_masses(block.runs, block.reference_runs, bad))
    observed = sum(block.bad for block in complete)
    higher = min(1.0, float(mass[observed:].sum()))
    lower = min(1.0, float(mass[: observed + 1].sum()))
    return ExactTest("stratified exact", min(1.0, 2 * min(higher, lower)), higher, lower)


@dataclass(frozen=True)
class Drift:
    """Baseline counts of the first and the second half of the rounds, and whether they differ."""

    first_bad: int
    first_runs: int
    second_bad: int
    second_runs: int
    p: float
    moved: bool
    sentence: str


def baseline_drift(
    by_round: Mapping[int, tuple[int, int]], alpha: float = 0.05, *, arm: str = "baseline"
) -> Drift | None:
    """Compare the baseline's rate (bad, runs per round) in the first and second half of its rounds.

    Boschloo, two-sided. None where a half has no judged trial. If `moved`, contrasts should be read from the
    test within rounds.
    """
    rounds = sorted(number for number, (_, runs) in by_round.items() if runs)
    middle = len(rounds) // 2
    if middle == 0:
        return None
    (first_bad, first_runs), (second_bad, second_runs) = (
        (sum(by_round[number][0] for number in half), sum(by_round[number][1] for number in half))
        for half in (rounds[:middle], rounds[middle:])
    )
    p = boschloo(first_bad, first_runs, second_bad, second_runs).two_sided
    moved = p <= alpha + _TIE
    counts = (
        f"{counts_words(first_bad, first_runs)} ({percent(first_bad / first_runs)}) in the first half of its "
        f"rounds, {counts_words(second_bad, second_runs)} ({percent(second_bad / second_runs)}) in the second"
    )
    sentence = f"{arm}: {counts}, {p_words(p)}"
    if moved:
        moving = "the baseline's rate" if arm == "baseline" else f"the rate of reference arm {arm}"
        sentence = f"{moving} moved: {counts}, {p_words(p)}; read the contrasts within rounds"
    return Drift(first_bad, first_runs, second_bad, second_runs, p, moved, sentence)
