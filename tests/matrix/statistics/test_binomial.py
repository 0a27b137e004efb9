"""Binomial and hypergeometric masses, against SciPy's."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from isomatrix.matrix.statistics.binomial import binomial_masses, hypergeometric_masses
from isomatrix.matrix.statistics.interval import clopper_pearson, lower_bound, upper_bound
from scipy import stats


@pytest.mark.parametrize("runs", [1, 7, 250, 1000])
def test_binomial_masses_at_all_rates(runs: int) -> None:
    rates = np.array([0.0, 1e-6, 0.03, 0.5, 0.97, 1.0])
    expected = stats.binom.pmf(np.arange(runs + 1)[None, :], runs, rates[:, None])
    assert binomial_masses(runs, rates) == pytest.approx(expected, rel=1e-6, abs=1e-100)


@pytest.mark.parametrize(("runs", "other", "bad"), [(3, 4, 0), (3, 4, 5), (3, 4, 7), (200, 150, 90)])
def test_hypergeometric_masses(runs: int, other: int, bad: int) -> None:
    expected = stats.hypergeom.pmf(np.arange(runs + 1), runs + other, bad, runs)
    assert hypergeometric_masses(runs, other, bad) == pytest.approx(expected, rel=1e-9, abs=1e-250)


@pytest.mark.parametrize(("bad", "runs"), [(0, 7), (1, 7), (7, 7), (8, 54), (3, 1000)])
@pytest.mark.parametrize("level", [0.9, 0.95, 0.9999])
def test_exact_ends_are_those_of_the_library(bad: int, runs: int, level: float) -> None:
    for own, side in ((clopper_pearson, "two-sided"), (upper_bound, "less"), (lower_bound, "greater")):
        expected = stats.binomtest(bad, runs, alternative=side).proportion_ci(level, method="exact")
        found = own(bad, runs, level)
        ends = (found.low, found.high) if side == "two-sided" else (found.value,)
        wanted = {"two-sided": tuple(expected), "less": (expected.high,), "greater": (expected.low,)}[side]
        assert ends == pytest.approx(wanted, rel=1e-8, abs=1e-12)


def test_reading_rows_does_not_wait_for_the_statistics_library() -> None:
    code = (
        "import sys, isomatrix.runner.commands, isomatrix.runner.plan_view\n"
        "from isomatrix.matrix.statistics.power import runs_for_power\n"
        "from isomatrix.matrix.statistics.interval import clopper_pearson\n"
        "clopper_pearson(0, 10), runs_for_power(0.9, 0.0)\n"
        "sys.exit(any(name.startswith('scipy') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
