"""Binomial probabilities of all counts at many rates at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

__all__ = ["binomial_masses"]

Array = NDArray[np.float64]


def binomial_masses(runs: int, rates: Array) -> Array:
    """Probability of every count 0..`runs` at every rate, shape (rates, runs + 1); for up to 1,000 runs.

    The same as SciPy's `binom.pmf` without its checks, which cost more than the numbers here.
    """
    counts = np.arange(runs + 1)
    rates = rates[:, None]
    masses: Array = special.comb(runs, counts) * rates**counts * (1 - rates) ** (runs - counts)
    return masses
