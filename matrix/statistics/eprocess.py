"""Two arms, looked at after every round: an e-process against "both have the same rate".

Turner, Ly and Grünwald, "Generic E-variables for exact sequential k-sample tests that allow for optional
stopping" (arXiv 2106.02693). The trials of one round form a block of n_a trials of the arm and n_b of the
reference. The block's e value is the likelihood of two rates over that of their pooled rate,

    p(y_a; q_a) p(y_b; q_b) / (p(y_a; q_0) p(y_b; q_0)),    q_0 = (n_a q_a + n_b q_b) / (n_a + n_b),

whose mean is at most 1 under every common rate, whatever q_a and q_b are, as long as they come from earlier
blocks. Here they are posterior means under a Beta(g, g) prior with g = 0.18, the paper's choice for blocks
of one trial each. The product over rounds may be looked at after every one: the chance that it ever reaches
1 / alpha is at most alpha (Ville). The common rate may even change from round to round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

__all__ = ["PRIOR", "Block", "TwoStreams", "two_streams"]

PRIOR = 0.18
"""Both parameters of the Beta prior of the two plug-in rates."""


@dataclass(frozen=True)
class Block:
    """Judged trials of one round: corrupt and all, of the arm and of its reference."""

    bad: int
    runs: int
    reference_bad: int
    reference_runs: int

    def __post_init__(self) -> None:
        for name, bad, runs in (
            ("arm", self.bad, self.runs),
            ("reference arm", self.reference_bad, self.reference_runs),
        ):
            if not 0 <= bad <= runs:
                raise ValueError(f"block, {name}: {bad} bad of {runs} trials is impossible")

    @property
    def complete(self) -> bool:
        """Whether both arms have a judged trial; a one-sided block compares nothing."""
        return self.runs > 0 and self.reference_runs > 0


@dataclass(frozen=True)
class TwoStreams:
    """The e-process after some blocks. A value: `after` returns the next one, so rows rebuild it at will."""

    bad: int = 0
    runs: int = 0
    reference_bad: int = 0
    reference_runs: int = 0
    log_e: float = 0.0
    blocks: int = 0
    prior: float = PRIOR

    def after(self, block: Block) -> TwoStreams:
        """State after one more block; a block that lacks one of the arms changes nothing."""
        if not block.complete:
            return self
        rate = self._estimate(self.bad, self.runs)
        reference_rate = self._estimate(self.reference_bad, self.reference_runs)
        trials = block.runs + block.reference_runs
        pooled = (block.runs * rate + block.reference_runs * reference_rate) / trials
        log_ratio = (
            _log_likelihood(block.bad, block.runs, rate)
            + _log_likelihood(block.reference_bad, block.reference_runs, reference_rate)
            - _log_likelihood(block.bad + block.reference_bad, trials, pooled)
        )
        return replace(
            self,
            bad=self.bad + block.bad,
            runs=self.runs + block.runs,
            reference_bad=self.reference_bad + block.reference_bad,
            reference_runs=self.reference_runs + block.reference_runs,
            log_e=self.log_e + log_ratio,
            blocks=self.blocks + 1,
        )

    def _estimate(self, bad: int, runs: int) -> float:
        return (bad + self.prior) / (runs + 2 * self.prior)

    @property
    def e(self) -> float:
        """Evidence against equal rates; compare with 1 / alpha. Capped where a float would overflow."""
        return math.exp(min(self.log_e, 700.0))

    @property
    def difference(self) -> float:
        """Observed rate of the arm minus that of its reference; 0 before the first block."""
        if self.blocks == 0:
            return 0.0
        return self.bad / self.runs - self.reference_bad / self.reference_runs


def two_streams(blocks: Iterable[Block], prior: float = PRIOR) -> TwoStreams:
    """The e-process after all `blocks`, which must come in the order of their rounds."""
    state = TwoStreams(prior=prior)
    for block in blocks:
        state = state.after(block)
    return state


def _log_likelihood(bad: int, runs: int, rate: float) -> float:
    # The prior keeps every rate strictly between 0 and 1.
    return bad * math.log(rate) + (runs - bad) * math.log1p(-rate)
