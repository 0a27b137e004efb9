"""What the declared contrasts come to, in the few words of a cell and in the two sentences above the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from .arm import BASELINE
from .plan import Plan
from .statistics.rule import StopRule, stop_rule_from_mapping
from .statistics.sequential import Decision, Kind
from .statistics.words import counts_words, e_words, p_words, percent

__all__ = ["contrast_sentences", "few_words"]

_NAMED = 6
"""Arms named in a sentence; the table has the rest."""


def few_words(decision: Decision, rule: StopRule) -> str:
    """The decision for a cell: `differs (e = 41)`, `rate below 15 %`, `undecided: needs about 34 runs`."""
    if decision.kind is Kind.DIFFERS:
        return f"differs ({_evidence(decision)})"
    if decision.kind is Kind.CLEAN_BELOW_BOUND:
        return f"rate below {percent(rule.clean_bound or 0)}"
    if decision.kind is Kind.EQUIVALENT:
        return f"equivalent within {100 * (rule.equivalence_margin or 0):g} points"
    if not decision.closed:
        return "open"
    return "undecided" if decision.needed_runs is None else f"undecided: needs about {decision.needed_runs:,} runs"


def contrast_sentences(plan: Plan, decisions: Mapping[str, Decision], inert: Collection[str]) -> list[str]:
    """Two sentences: what differs, with counts and evidence; then what is shown of the others, and what is not.

    `inert` arms did nothing here, so that their counts are no finding about the setting; they are told apart.
    Empty without a declared contrast.
    """
    if not decisions:
        return []
    rule = stop_rule_from_mapping(plan.stop)
    live = {arm: decision for arm, decision in decisions.items() if arm not in inert}
    differing = {arm: decision for arm, decision in decisions.items() if decision.kind is Kind.DIFFERS}
    parts = [
        *_shown(live, rule),
        *_undecided(live, rule),
        *_still_open(live),
        *_did_nothing([arm for arm in decisions if arm in inert and arm not in differing]),
    ]
    second = [f"{'; '.join(parts)}."] if parts else []
    return [_differs(plan, differing, len(decisions)), *(sentence[:1].upper() + sentence[1:] for sentence in second)]


def _evidence(decision: Decision) -> str:
    if decision.e_adjusted is not None:
        return e_words(decision.e_adjusted)
    return "" if decision.p_adjusted is None else p_words(decision.p_adjusted)


def _differs(plan: Plan, differing: Mapping[str, Decision], contrasts: int) -> str:
    if not differing:
        return f"No arm was shown to differ from its reference arm ({contrasts} contrast{'s' * (contrasts > 1)})."
    told = [_difference(arm, plan.arm(arm).reference, decision) for arm, decision in differing.items()]
    rest = f"; and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
    return f"{'; '.join(told[:_NAMED])}{rest}."


def _difference(arm: str, reference: str, decision: Decision) -> str:
    own = counts_words(decision.bad, decision.runs)
    other = counts_words(decision.baseline_bad, decision.baseline_runs)
    against = "the baseline" if reference == BASELINE else reference
    return f"{arm} differs from {against}: {own} against {other} corrupt ({_evidence(decision)})"


def _shown(decisions: Mapping[str, Decision], rule: StopRule) -> list[str]:
    parts = []
    below = [arm for arm, decision in decisions.items() if decision.kind is Kind.CLEAN_BELOW_BOUND]
    if below:
        bound = f"{percent(rule.clean_bound or 0)} ({percent(1 - rule.alpha)})"
        parts.append(f"shown to have a rate below {bound}: {_names(below)}")
    level = [arm for arm, decision in decisions.items() if decision.kind is Kind.EQUIVALENT]
    if level:
        points = f"{100 * (rule.equivalence_margin or 0):g} points of rate"
        parts.append(f"shown to lie within {points} of the reference arm: {_names(level)}")
    return parts


def _undecided(decisions: Mapping[str, Decision], rule: StopRule) -> list[str]:
    """Undecided arms, those that need the same runs for the same reason together."""
    groups: dict[str, list[str]] = defaultdict(list)
    for arm, decision in decisions.items():
        if decision.kind is Kind.UNDECIDED and decision.closed:
            groups[_need(decision, rule)].append(arm)
    return [f"undecided: {_names(arms)} ({need})" for need, arms in groups.items()]


def _need(decision: Decision, rule: StopRule) -> str:
    if decision.needed_runs is None:
        if not decision.runs:
            return f"no judged trial in {decision.failed}"
        own = counts_words(decision.bad, decision.runs)
        return f"{own} against {counts_words(decision.baseline_bad, decision.baseline_runs)}"
    runs = f"about {decision.needed_runs:,} runs per arm"
    if decision.needed_for is Kind.CLEAN_BELOW_BOUND:
        return f"{runs} without a corrupt one would show a rate below {percent(rule.clean_bound or 0)}"
    rates = sorted((decision.bad / decision.runs, decision.baseline_bad / decision.baseline_runs))
    return f"{runs} would tell {percent(rates[1])} from {percent(rates[0])}"


def _still_open(decisions: Mapping[str, Decision]) -> list[str]:
    waiting = [arm for arm, decision in decisions.items() if not decision.closed]
    return [f"not decided yet: {_names(waiting)}"] if waiting else []


def _did_nothing(inert: Sequence[str]) -> list[str]:
    return [f"without any effect here, so that nothing is known about the setting: {_names(inert)}"] if inert else []


def _names(arms: Sequence[str]) -> str:
    rest = len(arms) - _NAMED
    return ", ".join(arms) if rest <= 0 else f"{', '.join(arms[:_NAMED])} and {rest} more"
