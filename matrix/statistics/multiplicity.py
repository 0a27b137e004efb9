"""A declared family of contrasts: adjusted p values and adjusted e values.

Holm: Scandinavian Journal of Statistics 6 (1979), valid under any dependence.
e-Holm: closure of the arithmetic mean, Vovk and Wang, "E-values: calibration, combination and
applications", Annals of Statistics 49 (2021), algorithm 1; valid under any dependence, and over time as
well, because a mean of e-processes is an e-process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["e_bonferroni", "e_holm", "holm"]


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm-adjusted p values, in the order given; reject those at or below alpha.

    Raises `ValueError` for a value outside 0..1 (a `nan` among them).
    """
    for position, p in enumerate(p_values):
        if not 0 <= p <= 1:
            raise ValueError(f"p value {position} of the family is {p!r}, not in 0..1")
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for step, position in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - step) * p_values[position]))
        adjusted[position] = largest
    return tuple(adjusted)


def e_bonferroni(e_values: Sequence[float]) -> tuple[float, ...]:
    """E values divided by the size of the family; reject those at or above 1 / alpha."""
    _check_e(e_values)
    return tuple(e / len(e_values) for e in e_values)


def e_holm(e_values: Sequence[float]) -> tuple[float, ...]:
    """Closed e values: for each member the smallest mean over all subsets of the family that hold it.

    Reject those at or above 1 / alpha. Never below `e_bonferroni`, so nothing is lost against it.
    """
    _check_e(e_values)
    return tuple(float(value) for value in e_holm_rows(np.asarray(e_values, dtype=float)[None, :])[0])


def _check_e(e_values: Sequence[float]) -> None:
    for position, e in enumerate(e_values):
        if math.isnan(e) or e < 0:
            raise ValueError(f"e value {position} of the family is {e!r}; an e value is 0 or more")


def e_holm_rows(e_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """`e_holm` of every row of a (families, members) array at once."""
    members = e_values.shape[1]
    order = np.argsort(e_values, axis=1, kind="stable")
    ascending = np.take_along_axis(e_values, order, axis=1)
    # The worst subset of size j + 1 that holds a member is itself with the j smallest others, and adding
    # an other that is larger than the member cannot lower the mean: only the smaller ones need a look.
    below = np.concatenate([np.zeros((len(e_values), 1)), np.cumsum(ascending, axis=1)[:, :-1]], axis=1)
    means = (ascending[:, :, None] + below[:, None, :]) / np.arange(1, members + 1)
    means = np.where(np.tril(np.ones((members, members), dtype=bool)), means, np.inf)
    adjusted = np.empty_like(e_values)
    np.put_along_axis(adjusted, order, means.min(axis=2), axis=1)
    return adjusted
