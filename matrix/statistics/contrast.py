"""Two arms: exact tests of equal rates from two counts, with both sample sizes fixed beforehand.

Boschloo, "Raised conditional level of significance for the 2x2-table when testing the equality of two
probabilities", Statistica Neerlandica 24 (1970): exact for two independent binomial counts, and at least as
powerful as Fisher's test at every size. SciPy does the arithmetic. SciPy wants the arms as columns (the
transposed table has another answer) and returns `nan` for an arm without trials; both are taken care of here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .interval import check_counts

__all__ = ["ExactTest", "boschloo", "fisher", "smallest_p"]


@dataclass(frozen=True)
class ExactTest:
    """p values of one table. `higher`: one-sided for arm above reference; `lower`: for arm below it.

    `two_sided` is twice the smaller of both (at most 1) for Boschloo, and the sum of all tables that are at
    most as likely for Fisher, as SciPy defines them.
    """

    test: str
    two_sided: float
    higher: float
    lower: float

    @property
    def one_sided(self) -> float:
        """The smaller one-sided value: for description only, since it picks its side from the data."""
        return min(self.higher, self.lower)


def boschloo(bad: int, runs: int, reference_bad: int, reference_runs: int) -> ExactTest:
    """Boschloo's exact test of an arm against its reference. Raises `ValueError` if either arm is empty."""
    _check(bad, runs, reference_bad, reference_runs)
    return _boschloo(int(bad), int(runs), int(reference_bad), int(reference_runs))


def fisher(bad: int, runs: int, reference_bad: int, reference_runs: int) -> ExactTest:
    """Fisher's exact test, for readers who expect it beside Boschloo's. Raises as `boschloo` does."""
    from scipy import stats  # here, as in `_boschloo`

    _check(bad, runs, reference_bad, reference_runs)
    table = _columns(bad, runs, reference_bad, reference_runs)
    two_sided, higher, lower = (
        min(1.0, float(stats.fisher_exact(table, alternative=side).pvalue)) for side in ("two-sided", "greater", "less")
    )
    return ExactTest("fisher", two_sided, higher, lower)


def smallest_p(runs: int, reference_runs: int) -> float:
    """Smallest two-sided Boschloo p that any table of these sizes can reach.

    It belongs to all bad against none bad, whose null probability q^n1 (1 - q)^n2 is largest at
    q = n1 / (n1 + n2). A family of m contrasts can only pass its first Holm step if this is <= alpha / m.
    """
    _check(0, runs, 0, reference_runs)
    total = runs + reference_runs
    log_p = runs * math.log(runs / total) + reference_runs * math.log(reference_runs / total)
    return min(1.0, 2 * math.exp(log_p))


def _check(bad: int, runs: int, reference_bad: int, reference_runs: int) -> None:
    check_counts(bad, runs, where="arm")
    check_counts(reference_bad, reference_runs, where="reference arm")


def _columns(bad: int, runs: int, reference_bad: int, reference_runs: int) -> NDArray[np.int64]:
    return np.array([[bad, reference_bad], [runs - bad, reference_runs - reference_bad]], dtype=np.int64)


@lru_cache(maxsize=4096)
def _boschloo(bad: int, runs: int, reference_bad: int, reference_runs: int) -> ExactTest:
    if bad + reference_bad in (0, runs + reference_runs):
        return ExactTest("boschloo", 1.0, 1.0, 1.0)  # every trial ended alike: no table is less extreme
    # Imported here: it takes seconds, and the commonest table, without any corrupt trial, does not need it.
    from scipy import stats

    table = _columns(bad, runs, reference_bad, reference_runs)
    higher, lower = (
        min(1.0, float(stats.boschloo_exact(table, alternative=side).pvalue)) for side in ("greater", "less")
    )
    return ExactTest("boschloo", min(1.0, 2 * min(higher, lower)), higher, lower)
