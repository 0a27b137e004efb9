"""From rows to answers: verdicts, counts, decisions and the table, as one pure function of plan and rows."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from .arm import Arm
from .controls import Control, Status, judge_controls
from .counts import ArmLabel, count_arms
from .effect import agreeing_arms, clamped_settings, equivalent_arms
from .findings import Findings, findings_of
from .outcome import Verdict
from .plan import Plan
from .plant import MARK, plant_of, plant_words
from .reading import contrast_sentences, few_words
from .reference import FoundReference, ReferenceChoice, find_reference, reference_of_result
from .statistics.rule import StopRule, stop_rule_from_mapping
from .statistics.sequential import Decision, decide
from .statistics.sequential import Row as DecisionRow
from .table import Table, arms_table
from .thresholds import thresholds_from_mapping
from .trials import trials_of
from .verdict import judge_table

__all__ = ["Analysis", "analyse", "decisions_of", "reference_choice"]


@dataclass(frozen=True)
class Analysis:
    """What the rows of one result say.

    `trials` has its verdict columns filled, `arms` is by `arms_schema()`. `decisions` has one entry per arm
    with a declared contrast; `reference` says what counted as right, or why nothing could.
    """

    plan: Plan
    trials: pa.Table
    arms: pa.Table
    decisions: Mapping[str, Decision]
    reference: str
    equivalent: tuple[tuple[str, ...], ...]
    agreeing: tuple[tuple[str, ...], ...]
    baseline_clamped: tuple[str, ...]
    controls: tuple[Control, ...] = ()

    @property
    def open_arms(self) -> frozenset[str]:
        """Arms that another round must run: the undecided ones, what they are compared with, and the controls."""
        undecided = {arm for arm, decision in self.decisions.items() if not decision.closed}
        controls = {arm.name for arm in self.plan.arms if arm.control and undecided}
        return frozenset(undecided | controls | {self.plan.arm(arm).reference for arm in undecided})

    @cached_property
    def findings(self) -> Findings:
        """What the rows say beside the declared contrasts; worked out on first use, since a run need not know it."""
        return findings_of(self.plan, self.trials, self.arms.to_pylist())

    @property
    def invalid(self) -> bool:
        """Whether a control failed, so that the whole result counts for nothing."""
        return any(control.status is Status.FAILED for control in self.controls)

    def readings(self) -> dict[str, str]:
        """What each declared contrast shows, in a sentence with its numbers."""
        return {arm: decision.reason for arm, decision in self.decisions.items()}

    def _short_readings(self) -> dict[str, str]:
        """The same in the few words of a cell; the sentences stand below the table."""
        rule = stop_rule_from_mapping(self.plan.stop)
        return {
            arm: "no effect here" if arm in self._inert else few_words(decision, rule)
            for arm, decision in self.decisions.items()
        }

    @cached_property
    def _inert(self) -> frozenset[str]:
        """Arms that did nothing here: their counts are those of the baseline and no finding about the setting."""
        return frozenset(row["arm"] for row in self.arms.to_pylist() if row["effect"] == "inert")

    def verdict_counts(self) -> dict[str, dict[str, int]]:
        """Trials by arm and verdict."""
        counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for arm, verdict in zip(*(self.trials.column(c).to_pylist() for c in ("arm", "verdict")), strict=True):
            counts[arm][verdict] += 1
        return {arm: dict(verdicts) for arm, verdicts in counts.items()}

    def table(self, title: str, provenance: Sequence[str] = ()) -> Table:
        """The isolation table."""
        return arms_table(
            title,
            self.arms.to_pylist(),
            readings=self._short_readings(),
            summary=self._summary(),
            notes=self._notes(),
            provenance=provenance,
            exploratory=self.findings.exploratory(),
        )

    def _summary(self) -> list[str]:
        return [
            *self._warnings(),
            *self.findings.warnings(),
            self.counts_words(),
            *contrast_sentences(self.plan, self.decisions, self._inert),
            *self.findings.headlines(),
        ]

    def counts_words(self) -> str:
        """Trials, corrupt and failed, planted arms counted apart."""
        rows = self.arms.to_pylist()
        real, planted = [row for row in rows if not row["planted"]], [row for row in rows if row["planted"]]
        parts = [_count(real)] if real or not planted else []
        parts += [_count(planted, f" {MARK}")] if planted else []
        return "; ".join(parts) + "."

    def _warnings(self) -> list[str]:
        """What must be read before anything else: a failed control, and a baseline that is broken on purpose."""
        lines = []
        if self.invalid:
            failed = [control for control in self.controls if control.status is Status.FAILED]
            lines.append(f"INVALID, nothing below counts: {'. '.join(str(control) for control in failed)}.")
        if self._ids_miss():
            lines.append(
                "Every trial differs from the given ids at the first token: they may belong to another prompt, model "
                "or tokenizer, and then nothing below counts."
            )
        plant = plant_of(self.plan.baseline)
        if plant is not None:
            lines.append(
                f"The baseline is {MARK} ({plant_words(plant)}): nothing below is a finding about model or build."
            )
        return lines

    def _ids_miss(self) -> bool:
        """Whether ids were given and no judged trial begins as they do."""
        if self.plan.reference.get("ids") is None:
            return False
        names = ("corrupt", "first_divergent_position")
        columns = zip(*(self.trials.column(name).to_pylist() for name in names), strict=True)
        firsts = [first for corrupt, first in columns if corrupt is not None]
        return bool(firsts) and all(first == 0 for first in firsts)

    def _uncompared_ids(self) -> list[str]:
        ids = self.plan.reference.get("ids")
        longest = max((count for count in self.trials.column("n_generated").to_pylist() if count), default=0)
        if ids is None or not longest or len(ids) <= longest:
            return []
        return [f"Of the {len(ids)} given ids the first {longest} were compared: no answer is longer."]

    def _notes(self) -> list[str]:
        notes = [f"Reference: {self.reference}.", *_pass_notes(self.trials), *_noise_notes(self.arms.to_pylist())]
        notes += _limit_notes(self.plan, self.trials)
        if self.plan.thresholds:
            moved = ", ".join(f"{name} {value:g}" for name, value in sorted(self.plan.thresholds.items()))
            notes.append(f"Judged with limits of the user's: {moved}.")
        notes += self._uncompared_ids()
        notes += [f"{control}." for control in self.controls]
        notes += _silent_plants(self.trials)
        notes += [f"The baseline is not what was asked: {words}." for words in self.baseline_clamped]
        rows = self.arms.to_pylist()
        inert = [row["arm"] for row in rows if row["effect"] == "inert" and not (row["control"] or row["planted"])]
        if inert:
            notes.append(
                f"Inert here (every trial bitwise equal to the baseline, and the same evidence): {', '.join(inert)}. "
                "Such an arm says nothing about the setting's effect elsewhere."
            )
        notes += [
            f"Contradicted: {row['arm']}: {row['effect_reason']}." for row in rows if row["effect"] == "contradicted"
        ]
        notes += [
            f"Equivalent (equal digests, other than the baseline's): {', '.join(group)}." for group in self.equivalent
        ]
        notes += [
            f"Equal token ids, other than the baseline's: {', '.join(group)}."
            for group in self.agreeing
            if group not in self.equivalent
        ]
        notes += [_unstable(row) for row in rows if (row["n_distinct_digests"] or 0) > 1 and not row["planted"]]
        arms_by_reason: dict[str, list[str]] = defaultdict(list)
        for arm, reason in self.readings().items():
            if arm not in self._inert:
                arms_by_reason[reason].append(arm)
        notes += self.findings.notes()
        notes += [f"{', '.join(arms)}: {reason}." for reason, arms in arms_by_reason.items()]
        return [*notes, *self.plan.notes]


def _count(rows: Sequence[Mapping[str, Any]], mark: str = "") -> str:
    total = sum(row["n"] + row["n_failed"] + row["n_unjudged"] for row in rows)
    corrupt, failed = (sum(row[name] for row in rows) for name in ("n_corrupt", "n_failed"))
    return f"{total:,} trials in {len(rows)} arm{'s' * (len(rows) != 1)}{mark}: {corrupt} corrupt, {failed} failed"


def _silent_plants(trials: pa.Table) -> list[str]:
    """A planted fault that was due and struck nothing is told, once for each arm and reason."""
    names = ("arm", "plant_fired", "plant_report")
    if any(name not in trials.column_names for name in names):
        return []
    counts: Counter[tuple[str, str]] = Counter()
    for arm, fired, report in zip(*(trials.column(name).to_pylist() for name in names), strict=True):
        note = json.loads(report).get("note") if fired is False and report else None
        if note and not note.startswith("not drawn"):
            counts[arm, note] += 1
    return [
        f"The fault planted in {arm} did not fire in {count} trials: {note}."
        for (arm, note), count in sorted(counts.items())
    ]


def _pass_notes(judged: pa.Table) -> list[str]:
    """How many trials the teacher-forced pass speaks of, and why it says nothing about others."""
    names = ("verdict", "noise_nmse", "teacher_reference", "teacher_note")
    skipped = (Verdict.FAILED.value, Verdict.UNJUDGED.value)
    columns = zip(*(judged.column(name).to_pylist() for name in names), strict=True)
    rows = [row for row in columns if row[0] not in skipped]
    scored = sum(nmse is not None for _, nmse, *_ in rows)
    notes = [f"Teacher-forced pass: {scored} of {len(rows)} judged trials."] if scored else []
    stale = sum(nmse is None and reference is not None for _, nmse, reference, _ in rows)
    if stale:
        notes.append(
            f"Teacher-forced pass of {stale} trials left out: the recorded logits are not those of the reference."
        )
    reasons = Counter(note for *_, note in rows if note)
    most = sorted(reasons.items(), key=lambda found: (-found[1], found[0]))[:3]  # not in the order of the rows
    return notes + [f"{reason[:1].upper()}{reason[1:]} ({count} trials)." for reason, count in most]


def _noise_notes(arms: Sequence[Mapping[str, Any]]) -> list[str]:
    """Noise of every arm that has any, so that neighbouring levels can be compared."""
    words = [
        f"{arm['arm']} {arm['noise']:.2g}" + ("" if arm["noise_nmse"] is None else f" / {arm['noise_nmse']:.2g}")
        for arm in arms
        if arm["noise"]
    ]
    what = "largest logit difference / NMSE of trials that are not corrupt"
    return [f"Noise against the reference ({what}): {'; '.join(words)}."] if words else []


def _limit_notes(plan: Plan, judged: pa.Table) -> list[str]:
    """What is wrong by measured noise, where the user said which arms are harmless."""
    harmless = plan.reference.get("harmless") or ()
    stored = next((text for text in judged.column("thresholds").to_pylist() if text), None)
    if not harmless or stored is None:
        return []
    used = json.loads(stored)
    limits = f"NMSE {used['wrong_nmse']:.2g}, KL {used['wrong_kl']:.2g} nats at the median position"
    return [f"Limits from the measured noise of {', '.join(harmless)}: {limits}."]


def _unstable(row: Mapping[str, Any]) -> str:
    ok = sum(row[f"n_{name}"] for name in ("identical", "drift", "divergent", "garbage", "unjudged"))
    return (
        f"Does not repeat: {row['arm']} gave {row['n_distinct_digests']} different logits and "
        f"{row['n_distinct_tokens']} different token sequences in {ok} trials."
    )


def reference_choice(plan: Plan, rows: pa.Table | None = None) -> ReferenceChoice | FoundReference:
    """The reference that the plan declares: ids given by the user, another result's rows, else an arm's consensus."""
    ids, result = plan.reference.get("ids"), plan.reference.get("result")
    if ids is not None:
        return ReferenceChoice(ids=tuple(ids))
    if result is not None:
        return reference_of_result(result, rows)
    return ReferenceChoice(arm=plan.arm(plan.reference.get("arm") or plan.baseline.name).name)


def analyse(
    plan: Plan,
    trials: pa.Table,
    thresholds: Mapping[str, Any] | None = None,
    *,
    harmless: Sequence[str] = (),
    reference_rows: pa.Table | None = None,
) -> Analysis:
    """Judge, count and decide. The same rows give the same answer in whatever order they come.

    `thresholds` changes some of the plan's, and `harmless` names other arms than the plan whose noise sets limits.
    `reference_rows` are those of another result, where that is the reference. Raises `ThresholdError`, and
    `PlanError` for a harmless arm that there is not.
    """
    if harmless:
        arms = [plan.arm(name).name for name in harmless]
        plan = dataclasses.replace(plan, reference={**plan.reference, "harmless": arms})
    baseline = plan.baseline.name
    choice = reference_choice(plan, reference_rows)
    plan = dataclasses.replace(plan, thresholds={**plan.thresholds, **(thresholds or {})})
    limits = thresholds_from_mapping(plan.thresholds)
    judged = judge_table(trials, baseline, choice, limits, harmless=plan.reference.get("harmless") or ())
    rows = trials_of(judged)
    labels = [_label(arm) for arm in plan.arms]
    rule = stop_rule_from_mapping(plan.stop)
    return Analysis(
        plan=plan,
        trials=judged,
        arms=count_arms(judged, labels, baseline, confidence=1 - rule.alpha, always=rule.kind == "sequential"),
        decisions=decisions_of(plan, judged),
        reference=find_reference(judged, baseline, choice).reason,
        equivalent=tuple(equivalent_arms(rows, baseline)),
        agreeing=tuple(agreeing_arms(rows, baseline)),
        baseline_clamped=tuple(clamped_settings(rows, baseline)),
        controls=judge_controls(plan.arms, judged),
    )


def _label(arm: Arm) -> ArmLabel:
    plant = plant_of(arm)
    planted = None if plant is None else plant_words(plant)
    return ArmLabel(arm.name, arm.axis, arm.level, arm.changes_text, planted, arm.control)


def decisions_of(plan: Plan, judged: pa.Table) -> dict[str, Decision]:
    """Decisions on every declared contrast; controls are none.

    A crossed design has several reference arms. Each of them and the arms compared with it are a family of
    their own, and the families share alpha equally. A wall budget counts the time of the trials, so that the rows
    alone know when it was used up.
    """
    rule = stop_rule_from_mapping(plan.stop)
    families: dict[str, list[Arm]] = defaultdict(list)
    for arm in plan.arms:
        if arm is not plan.baseline and not arm.control:
            families[arm.reference].append(arm)
    shared = dataclasses.replace(rule, alpha=rule.alpha / max(1, len(families)))
    rows = _rows(judged)
    budget = _Spent(
        math.fsum(seconds for seconds in judged.column("wall_s").to_pylist() if seconds is not None),
        Counter(number for number, *_ in rows),
    )
    decisions: dict[str, Decision] = {}
    for reference, arms in families.items():
        decisions |= _family(reference, [arm.name for arm in arms], rows, shared, budget)
    return {arm.name: decisions[arm.name] for arm in plan.arms if arm.name in decisions}


@dataclass(frozen=True)
class _Spent:
    """What a run has used of its budgets, all families and controls together."""

    wall_s: float
    trials_by_round: Mapping[int, int]


def _family(
    reference: str, arms: list[str], rows: list[DecisionRow], rule: StopRule, spent: _Spent
) -> dict[str, Decision]:
    members = {reference, *arms}
    return decide(
        [row for row in rows if row[1] in members],
        baseline=reference,
        rule=rule,
        family=arms,
        wall_s=spent.wall_s,
        trials_by_round=spent.trials_by_round,
    )


def _rows(judged: pa.Table) -> list[DecisionRow]:
    columns = (judged.column(name).to_pylist() for name in ("round", "arm", "corrupt", "verdict"))
    return [
        (number, arm, None if verdict in (Verdict.FAILED.value, Verdict.UNJUDGED.value) else corrupt)
        for number, arm, corrupt, verdict in zip(*columns, strict=True)
    ]
