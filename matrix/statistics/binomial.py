"""Binomial probabilities of all counts at many rates at once, and hypergeometric ones of all counts."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["binomial_masses", "hypergeometric_masses", "log_choose"]

Array = NDArray[np.float64]


def binomial_masses(runs: int, rates: Array) -> Array:
    """Probability of every count 0..`runs` at every rate, shape (rates, runs + 1); for up to 1,000 runs.

    The same as SciPy's `binom.pmf` without its checks, which cost more than the numbers here.
    """
    counts = np.arange(runs + 1)
    rates = rates[:, None]
    masses: Array = _choose(runs) * rates**counts * (1 - rates) ** (runs - counts)
    return masses


@lru_cache(maxsize=512)
def _choose(n: int) -> Array:
    """Binomial coefficients n over k for k = 0..n, each rounded once."""
    values = [1]
    for k in range(n):
        values.append(values[-1] * (n - k) // (k + 1))
    return np.array([float(value) for value in values])


def log_choose(n: int) -> Array:
    """Logarithm of n over k for k = 0..n."""
    logs = np.concatenate([np.zeros(1), np.cumsum(np.log(np.arange(1, n + 1)))])
    values: Array = logs[n] - logs - logs[::-1]
    return values


def hypergeometric_masses(runs: int, reference_runs: int, bad: int) -> Array:
    """Probability of 0..`runs` corrupt trials of the arm if `bad` corrupt ones fall on both arms at random."""
    masses = np.zeros(runs + 1)
    own = np.arange(max(0, bad - reference_runs), min(runs, bad) + 1)
    log_mass = log_choose(runs)[own] + log_choose(reference_runs)[bad - own] - log_choose(runs + reference_runs)[bad]
    masses[own] = np.exp(log_mass)
    return masses
