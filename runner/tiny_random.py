"""Random numbers that are the same on every machine and with every NumPy release.

NumPy promises a stable stream for a bit generator's raw integers, but not for the distributions built on top
(NEP 19), and logarithms and cosines differ between C libraries. So normal deviates are approximated here by the
sum of four 16-bit uniform integers (Irwin-Hall), which needs exact integer sums and one rounded product only.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt

__all__ = ["Float32", "Stream"]

Float32 = npt.NDArray[np.float32]

_TERMS = 4
_LEVELS = 1 << 16
_CENTRE = _TERMS * (_LEVELS - 1) / 2
_UNIT = 1 / math.sqrt(_TERMS * (_LEVELS**2 - 1) / 12)


class Stream:
    """Independent random arrays by name: changing or adding one array leaves all others as they were."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def bell(self, name: str, shape: tuple[int, ...], deviation: float) -> Float32:
        """Bell-shaped values of mean 0 and the given standard deviation, at most 3.47 deviations from 0."""
        key = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        raw = np.random.PCG64(int.from_bytes(key[:16], "little")).random_raw(math.prod(shape))
        sums = np.zeros(raw.shape, dtype=np.int64)
        for term in range(_TERMS):
            sums += ((raw >> np.uint64(16 * term)) & np.uint64(_LEVELS - 1)).astype(np.int64)
        values = (sums - _CENTRE) * (_UNIT * deviation)
        return values.astype(np.float32).reshape(shape)
