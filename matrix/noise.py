"""Numeric noise between two answers, from the stored top-k logits alone, and whether it explains a flip."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .answer import Answer, Array, TopK
from .teacher import TeacherPass, judge_pass
from .thresholds import Thresholds

__all__ = ["Flip", "explain_flip", "logit_differences", "logit_spread", "top_gap"]


def logit_differences(reference: Answer, trial: Answer, positions: int) -> Array | None:
    """Largest known difference of raw logits at each of the first `positions` positions, in logits.

    Only positions with equal contexts are comparable: those up to and including the first differing id.
    Exact for ids in both top-k lists. For an id in one list only, the other list's smallest entry bounds its
    logit, so the value is a lower bound of the true largest difference. Infinite where one side is NaN or
    infinite and the other is not. `None` if the logits of either side were not recorded.
    """
    if reference.top is None or trial.top is None:
        return None
    count = min(positions, len(reference.top.ids), len(trial.top.ids))
    if count <= 0:
        return np.empty(0, dtype=np.float64)
    left = _cut(reference.top, count)
    right = _cut(trial.top, count)
    if left.ids.shape[1] == 0 or right.ids.shape[1] == 0:
        return None
    if left.ids.shape != right.ids.shape:
        return _pairwise_differences(left, right)
    aligned = (left.ids == right.ids).all(axis=1)
    with np.errstate(invalid="ignore"):
        largest: Array = np.abs(left.logits - right.logits).max(axis=1)
    rest = np.flatnonzero(~aligned | ~np.isfinite(largest))
    if len(rest):
        largest[rest] = _pairwise_differences(_at(left, rest), _at(right, rest))
    return largest


def _at(top: TopK, positions: Array) -> TopK:
    return TopK(top.ids[positions], top.logits[positions])


def _pairwise_differences(left: TopK, right: TopK) -> Array:
    """As `logit_differences`, for lists in any order."""
    same = (left.ids[:, :, None] == right.ids[:, None, :]) & (left.ids[:, :, None] >= 0)
    with np.errstate(invalid="ignore"):
        pairs = np.abs(left.logits[:, :, None] - right.logits[:, None, :])
        equal = left.logits[:, :, None] == right.logits[:, None, :]
    equal |= np.isnan(left.logits)[:, :, None] & np.isnan(right.logits)[:, None, :]
    pairs = np.where(equal, 0.0, np.where(np.isnan(pairs), np.inf, pairs))
    exact = np.where(same, pairs, 0.0).max(axis=(1, 2))
    one_sided = np.maximum(_beyond(left, right, same.any(axis=2)), _beyond(right, left, same.any(axis=1)))
    largest: Array = np.maximum(exact, one_sided)
    return largest


def _cut(top: TopK, count: int) -> TopK:
    return TopK(top.ids[:count], top.logits[:count].astype(np.float64))


def _beyond(here: TopK, there: TopK, matched: Array) -> Array:
    """How far the ids of one list that miss in the other lie above the other's smallest entry."""
    with np.errstate(invalid="ignore"):
        floor = np.where(there.ids >= 0, there.logits, np.inf).min(axis=1, keepdims=True)
        above = here.logits - floor
    above = np.where(np.isnan(above), np.inf, above)
    excess: Array = np.where(matched | (here.ids < 0), 0.0, above).max(axis=1)
    return np.maximum(excess, 0.0)


@lru_cache(maxsize=32)
def logit_spread(reference: Answer) -> float:
    """The scale of an answer's logits: the median distance from the first to the last of its top-k.

    0 where it cannot be known. Noise that is a good part of it reorders everything.
    """
    if reference.top is None or reference.top.logits.size == 0:
        return 0.0
    logits = reference.top.logits.astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # rows of NaN only
        spread = float(np.nanmedian(np.nanmax(logits, axis=1) - np.nanmin(logits, axis=1)))
    return spread if np.isfinite(spread) else 0.0


def _logit_of(top: TopK, position: int, token: int) -> float | None:
    found = np.flatnonzero(top.ids[position] == token)
    return float(top.logits[position, found[0]]) if len(found) else None


def top_gap(reference: Answer, position: int, token: int | None) -> float | None:
    """How far the reference puts its own token above `token` at a position, in logits.

    A token outside the reference's top-k gives the distance to its last entry, a lower bound. Falls back to
    the top-2 margin where the lists were not recorded or the other token is not known; `None` without both.
    """
    top = reference.top
    if top is not None and token is not None and position < len(top.ids) and position < len(reference.token_ids):
        own = _logit_of(top, position, int(reference.token_ids[position]))
        if own is not None:
            other = _logit_of(top, position, token)
            listed = top.logits[position][top.ids[position] >= 0]
            return own - (float(listed.min()) if other is None else other)
    if reference.margins is not None and position < len(reference.margins):
        return float(reference.margins[position])
    return None


def _is_largest(answer: Answer, position: int) -> bool | None:
    """Whether the answer's token has the largest logit of its own row; `None` if not recorded."""
    if answer.top is None or position >= min(len(answer.top.ids), len(answer.token_ids)):
        return None
    own = _logit_of(answer.top, position, int(answer.token_ids[position]))
    largest = answer.top.logits[position][answer.top.ids[position] >= 0].max()
    return own is not None and own >= float(largest)


@dataclass(frozen=True)
class Flip:
    """Whether noise explains the first differing token, and why; `sure` where its size alone is benign."""

    explained: bool
    reason: str
    sure: bool = True


def explain_flip(
    reference: Answer,
    trial: Answer,
    position: int,
    differences: Array | None,
    *,
    greedy: bool,
    coarse_cache: bool,
    thresholds: Thresholds,
    teacher: TeacherPass | None = None,
) -> Flip:
    """Judge the first differing token; `differences` are the `logit_differences` up to and with it.

    For greedy sampling a flip always needs a gap of at most twice the difference of the two logits rows, so
    that test alone proves little at the position itself. What decides is the size of the difference: benign,
    corrupt (a good part of the spread of the top logits), or in between; there it must also be of the size
    seen before the flip. A teacher-forced pass knows more, if it gave the very logits of the flip: noise of
    the whole vocabulary there, and at all other positions.
    """
    sampler = _sampler_fault(reference, trial, position, greedy)
    if sampler is not None:
        return Flip(False, sampler)
    if differences is None or len(differences) == 0:
        return Flip(False, "no logits to measure noise with, so noise excuses nothing")
    noise = float(differences.max())
    around = None if teacher is None else teacher.around(position, trial)
    if around is not None and teacher is not None:
        excuse = _by_pass(reference, trial, position, teacher, around, greedy, coarse_cache, thresholds)
        if excuse is not None:
            return excuse
    limit = thresholds.corrupt(logit_spread(reference))
    if noise >= limit:
        return Flip(False, f"logits differ by {noise:.3g}, and from {limit:.3g} on no margin is an excuse")
    token = int(trial.token_ids[position]) if position < len(trial.token_ids) else None
    gap = top_gap(reference, position, token)
    if gap is None:
        return Flip(False, "the reference's margin there is not known")
    allowed = thresholds.margin_factor * max(noise, thresholds.noise_floor)
    if greedy and gap > allowed:
        factor = thresholds.margin_factor
        return Flip(False, f"the reference's margin {gap:.3g} is beyond {factor:g} x noise {noise:.3g}")
    return _by_size(differences, noise, gap, thresholds.benign(coarse_cache), thresholds, around)


def _by_pass(
    reference: Answer,
    trial: Answer,
    position: int,
    teacher: TeacherPass,
    around: tuple[float, float],
    greedy: bool,
    coarse_cache: bool,
    thresholds: Thresholds,
) -> Flip | None:
    """The flip explained by a pass that finds nothing wrong, and noise here of the size of noise elsewhere."""
    found = judge_pass(teacher, coarse_cache, thresholds)
    noise, elsewhere = around
    if found.wrong or noise > thresholds.jump_factor * max(elsewhere, thresholds.benign(coarse_cache)):
        return None
    token = int(trial.token_ids[position]) if position < len(trial.token_ids) else None
    gap = top_gap(reference, position, token)
    if gap is None or (greedy and gap > thresholds.margin_factor * max(noise, thresholds.noise_floor)):
        return None
    reason = f"the reference's margin {gap:.3g} lies within noise {noise:.3g}, as elsewhere ({elsewhere:.3g})"
    return Flip(True, reason, sure=found.within_noise)


def _sampler_fault(reference: Answer, trial: Answer, position: int, greedy: bool) -> str | None:
    if (
        reference.digests is not None
        and trial.digests is not None
        and position < min(len(reference.digests), len(trial.digests))
        and reference.digests[position] == trial.digests[position]
    ):
        return "the logits are bitwise equal there, so the token was not chosen by them"
    if greedy and _is_largest(trial, position) is False and _is_largest(reference, position) is not False:
        return "its own logits put another token first, so greedy sampling cannot have chosen it"
    return None


def _by_size(
    differences: Array,
    noise: float,
    gap: float,
    benign: float,
    thresholds: Thresholds,
    around: tuple[float, float] | None,
) -> Flip:
    within = f"the reference's margin {gap:.3g} lies within noise {noise:.3g}"
    if noise <= benign:
        return Flip(True, f"{within}, and noise up to {benign:g} is benign")
    if around is not None:
        last, before, where = *around, "elsewhere"
    elif len(differences) == 1:
        reason = f"{within}; above benign ({benign:g}), and nothing before it to compare with"
        return Flip(True, reason, sure=False)
    else:
        last, before, where = float(differences[-1]), float(differences[:-1].max()), "before"
    if last <= thresholds.jump_factor * max(before, benign):
        return Flip(True, f"{within}, which is of the size seen {where} ({before:.3g})", sure=False)
    return Flip(False, f"noise jumps to {last:.3g} there, from {before:.3g} {where}")
