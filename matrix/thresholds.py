"""The numbers that a verdict depends on, stored beside every verdict and free to change afterwards."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .settings import closest

__all__ = ["ThresholdError", "Thresholds", "thresholds_from_mapping"]


class ThresholdError(ValueError):
    """A threshold is unknown, no number, or out of range."""


@dataclass(frozen=True)
class Thresholds:
    """Limits of the judges. Logit differences are in logits, shares run from 0 to 1.

    Where the logit defaults come from is in docs/verdicts.md: benign pairs and known faults, measured on tiny
    random models and on Gemma 3 270M.
    """

    margin_factor: float = 2.0
    """A flip needs both logits to move: a gap up to this many times the noise is within noise."""
    noise_floor: float = 1e-5
    """Noise is never taken for smaller than this: float32 rounding."""
    benign_logit: float = 0.02
    """Noise up to this is benign."""
    benign_logit_coarse_cache: float = 0.2
    """The same where the K or V cache is a 4-bit type, in the trial or in the reference."""
    corrupt_logit: float = 0.5
    """Noise from here on excuses nothing, however small the margin; or from `corrupt_share` on, if larger."""
    corrupt_share: float = 0.5
    """The same as a share of the reference's spread: the median distance of its first and last top-k logit."""
    jump_factor: float = 4.0
    """Between benign and corrupt, noise at the flip may be this many times the noise before it."""
    wrong_nmse: float = 0.01
    """Teacher-forced: NMSE of the median position from which the computation is wrong, although ids may be equal."""
    wrong_kl: float = 0.05
    """The same for KL(reference || trial), nats."""
    single_position_factor: float = 10.0
    """The same limits for the worst position are this many times as high."""
    coarse_cache_factor: float = 10.0
    """All of these limits are this many times as high where the K or V cache is a 4-bit type."""
    calibration_factor: float = 10.0
    """From harmless arms: this many times their measured noise is wrong."""
    run_tokens: float = 8
    """Length from which repeats of one token, or a short cycle, are a sign."""
    cycle_share: float = 0.5
    """Share of the output that a repeating stretch must cover to be a sign."""
    relative_factor: float = 2.0
    """A sign must be this many times as strong as in the reference."""
    replacement_share: float = 0.05
    """Share of U+FFFD among characters that is a sign."""
    foreign_share: float = 0.2
    """Share of letters in scripts that the reference does not use that is a sign, if several scripts mix."""
    control_tokens: float = 3
    """Special tokens and control characters, beyond the reference's, that are a sign."""
    doubled_share: float = 0.15
    """Share of words that repeat the word before that is a sign."""

    def __post_init__(self) -> None:
        """Refuse what is no number, is negative, or puts the benign limit above the corrupt one."""
        for name, value in dataclasses.asdict(self).items():
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or math.isnan(value) or value < 0:
                raise ThresholdError(f"thresholds.{name}: {value!r} is not a number of at least 0")
        for name in ("benign_logit", "benign_logit_coarse_cache"):
            low, high = getattr(self, name), self.corrupt_logit
            if low > high:
                raise ThresholdError(f"thresholds.{name}: {low:g} is above corrupt_logit ({high:g})")

    def benign(self, coarse_cache: bool) -> float:
        """Largest logit difference that is benign."""
        return self.benign_logit_coarse_cache if coarse_cache else self.benign_logit

    def corrupt(self, spread: float) -> float:
        """Smallest logit difference that no margin excuses, for a reference whose top-k logits spread so far."""
        return max(self.corrupt_logit, self.corrupt_share * spread)

    def wrong(self, coarse_cache: bool) -> tuple[float, float]:
        """NMSE and KL (nats) of the median teacher-forced position from which a computation is wrong."""
        factor = self.coarse_cache_factor if coarse_cache else 1.0
        return factor * self.wrong_nmse, factor * self.wrong_kl

    def changed(self, **values: float) -> Thresholds:
        """A copy with some of them changed and checked."""
        return dataclasses.replace(self, **values)

    def as_json(self) -> str:
        """All thresholds as one line of JSON, keys sorted."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


def thresholds_from_mapping(values: Mapping[str, Any]) -> Thresholds:
    """Thresholds from plain data, the others at their defaults.

    Raises `ThresholdError`, naming the field and the nearest known one.
    """
    known = [field.name for field in dataclasses.fields(Thresholds)]
    for name in values:
        if name not in known:
            raise ThresholdError(f"unknown threshold '{name}'{closest(name, known)}")
    return Thresholds(**values)
