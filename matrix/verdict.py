"""What a trial means: a pure function of its row, the reference and thresholds.

The rules, in order: a failed outcome is itself; without a reference a trial is unjudged; the same digests are
identical; the same ids with other digests are drift; other ids are drift if numeric noise explains the
first differing one, else divergent, and garbage if the text is visibly broken as well. A trial with several
requests takes the verdict of its worst one.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from .answer import Answer, Array, answers_of_row, requests_differ
from .log_markers import MarkerHit, faults, notable_markers
from .noise import Flip, explain_flip, logit_differences, logit_spread
from .outcome import CORRUPT, SEVERITY, Outcome, Verdict
from .reference import (
    Agreement,
    Circumstances,
    FoundReference,
    Reference,
    ReferenceChoice,
    circumstances,
    find_reference,
)
from .schema import VERDICT_COLUMNS
from .teacher import TeacherPass, calibrated, judge_pass, scored_against, teacher_of_row
from .text_signs import LOOPS, Sign, broken, compare_signs, observe_answer, observe_reference
from .thresholds import Thresholds
from .trials import Trials, trials_of

__all__ = [
    "Judgement",
    "RequestJudgement",
    "judge_answer",
    "judge_rows",
    "judge_table",
    "judge_trial",
    "worst",
]

_DEFAULTS = Thresholds()
_BASELINE = ReferenceChoice()


@dataclass(frozen=True)
class Judgement:
    """The verdict columns of one trial; the fields are those of `schema.VERDICT_COLUMNS`."""

    verdict: Verdict
    verdict_reason: str
    corrupt: bool | None = None
    first_divergent_request: int | None = None
    first_divergent_position: int | None = None
    first_digest_position: int | None = None
    noise: float | None = None
    noise_nmse: float | None = None
    noise_kl: float | None = None
    reference_margin: float | None = None
    reference: str | None = None
    text_signs: str | None = None
    log_markers: str | None = None
    off_mode: bool | None = None
    requests_differ: bool | None = None
    thresholds: str | None = None

    def as_row(self) -> dict[str, Any]:
        """The columns as plain data."""
        return {name: getattr(self, name) for name in _FIELDS} | {"verdict": self.verdict.value}


_FIELDS = tuple(field.name for field in dataclasses.fields(Judgement))


@dataclass(frozen=True)
class RequestJudgement:
    """The verdict of one request; positions count generated tokens from 0."""

    verdict: Verdict
    reason: str
    divergent_position: int | None = None
    digest_position: int | None = None
    noise: float | None = None
    reference_margin: float | None = None
    signs: tuple[Sign, ...] = ()


@dataclass(frozen=True)
class _Comparison:
    """Where an answer leaves the reference."""

    compared: int  # positions whose ids were compared
    position: int | None  # first differing position; may be `compared` if one answer ends there
    note: str  # what was left out of the comparison


def _budget_ended(answer: Answer) -> bool:
    return answer.stop_reason in ("max_tokens", "context_full")


def _first(flags: Array) -> int | None:
    """Index of the first true entry."""
    if not len(flags):
        return None
    place = int(flags.argmax())
    return place if flags[place] else None


def _compare(trial: Answer, reference: Answer, agreement: Agreement) -> _Comparison:
    ours, theirs = trial.token_ids, reference.token_ids
    shared = min(len(ours), len(theirs))
    differing = _first(ours[:shared] != theirs[:shared])
    if differing is not None:
        return _Comparison(shared, differing, "")
    if len(ours) == len(theirs):
        return _Comparison(shared, None, "")
    if len(ours) > len(theirs) and (agreement is Agreement.GIVEN or _budget_ended(reference)):
        return _Comparison(shared, None, f"; only the reference's {shared} tokens of {len(ours)} were compared")
    if len(ours) < len(theirs) and _budget_ended(trial):
        return _Comparison(shared, None, f"; only the trial's {shared} tokens of {len(theirs)} were compared")
    return _Comparison(shared, shared, "")


def _digest_position(trial: Answer, reference: Answer) -> int | None:
    if trial.digests is None or reference.digests is None:
        return None
    shared = min(len(trial.digests), len(reference.digests))
    return _first(trial.digests[:shared] != reference.digests[:shared])


def _largest(differences: Array | None) -> float | None:
    return None if differences is None or len(differences) == 0 else float(differences.max())


def judge_answer(
    trial: Answer,
    reference: Answer,
    agreement: Agreement,
    situation: Circumstances,
    thresholds: Thresholds,
    teacher: TeacherPass | None = None,
) -> RequestJudgement:
    """Judge one request against the reference's answer; `teacher` is a pass against this reference, if there is one."""
    comparison = _compare(trial, reference, agreement)
    if comparison.position is None:
        return _same_ids(trial, reference, agreement, comparison, thresholds)
    return _other_ids(trial, reference, comparison.position, situation, thresholds, teacher)


def _new_nan(trial: Answer, reference: Answer) -> int:
    return trial.n_nan if reference.n_nan == 0 else 0


def _same_ids(
    trial: Answer, reference: Answer, agreement: Agreement, comparison: _Comparison, thresholds: Thresholds
) -> RequestJudgement:
    count, note = comparison.compared, comparison.note
    if agreement is Agreement.GIVEN:
        reason = f"the same {count} token ids; digests have no reference{note}"
        return RequestJudgement(Verdict.IDENTICAL, reason)
    position = _digest_position(trial, reference)
    if agreement is Agreement.DIGESTS and trial.digests is not None and position is None:
        reason = f"the same logits digests at all {count} positions{note}"
        return RequestJudgement(Verdict.IDENTICAL, reason, noise=0.0)
    noise = _largest(logit_differences(reference, trial, count))
    size = "" if noise is None else f"; top-k logits differ by at most {noise:.3g}"
    if nan := _new_nan(trial, reference):
        reason = f"{nan} NaN or infinite logits where the reference has none, although token ids are equal"
        return RequestJudgement(Verdict.DIVERGENT, reason + note, None, position, noise)
    if agreement is Agreement.IDS:
        what = f"the same {count} token ids; the reference arm's own logits do not repeat"
    elif trial.digests is None or reference.digests is None:
        what = f"the same {count} token ids; digests were not recorded"
    else:
        what = f"the same {count} token ids, other logits from position {position} on"
    limit = thresholds.corrupt(logit_spread(reference))
    if noise is not None and noise >= limit:
        size += f", which reaches the corrupt limit ({limit:.3g}): equal tokens may hide a fault"
    return RequestJudgement(Verdict.DRIFT, what + size + note, None, position, noise)


def _greedy(situation: Circumstances, reference: Answer) -> bool:
    """Whether tokens are the largest logits; read off the reference where the settings do not say."""
    if situation.greedy is not None:
        return situation.greedy
    top = reference.top
    if top is None or len(top.ids) != len(reference.token_ids):
        return False
    return bool((top.ids[:, 0] == reference.token_ids).all()) if top.ids.shape[1] else False


def _other_ids(
    trial: Answer,
    reference: Answer,
    position: int,
    situation: Circumstances,
    thresholds: Thresholds,
    teacher: TeacherPass | None,
) -> RequestJudgement:
    differences = logit_differences(reference, trial, position + 1)
    noise = _largest(differences)
    margins = reference.margins
    margin = float(margins[position]) if margins is not None and position < len(margins) else None
    where = f"first other token at position {position}: "
    digest_position = _digest_position(trial, reference)
    if nan := _new_nan(trial, reference):
        reason = f"{where}{nan} NaN or infinite logits where the reference has none"
        return RequestJudgement(Verdict.GARBAGE, reason, position, digest_position, noise, margin)
    flip = explain_flip(
        reference,
        trial,
        position,
        differences,
        greedy=_greedy(situation, reference),
        coarse_cache=situation.coarse_cache,
        thresholds=thresholds,
        teacher=teacher,
    )
    signs = compare_signs(observe_answer(trial, since=position), observe_reference(reference), thresholds)
    verdict = _by_text(flip, signs)
    reason = where + flip.reason
    if verdict is not Verdict.DRIFT:
        reason += "".join(f"; {sign.sentence}" for sign in signs if sign.strong)
        if trial.kv_cells_before:
            reason += f"; {trial.kv_cells_before} KV cells were in use before the request"
    return RequestJudgement(verdict, reason, position, digest_position, noise, margin, signs)


def _by_text(flip: Flip, signs: Sequence[Sign]) -> Verdict:
    """What the text says about a flip. After a benign flip any model may loop, but none writes mojibake."""
    if flip.explained:
        impossible = not flip.sure and broken(sign for sign in signs if sign.name not in LOOPS)
        return Verdict.GARBAGE if impossible else Verdict.DRIFT
    return Verdict.GARBAGE if broken(signs) else Verdict.DIVERGENT


def worst(judgements: Sequence[RequestJudgement]) -> int:
    """Index of the most severe request; the first of equals."""
    return max(range(len(judgements)), key=lambda index: (SEVERITY[judgements[index].verdict], -index))


def _forced(decisive: RequestJudgement, teacher: TeacherPass, coarse: bool, thresholds: Thresholds) -> RequestJudgement:
    """The judgement of free generation, and what the teacher-forced pass has to say to it."""
    found = judge_pass(teacher, coarse, thresholds)
    if decisive.verdict in CORRUPT:
        return dataclasses.replace(decisive, reason=f"{decisive.reason}; teacher-forced: {found.reason}")
    if found.wrong:
        reason = f"teacher-forced: {found.reason}. Free generation alone: {decisive.reason}"
        return dataclasses.replace(decisive, verdict=Verdict.DIVERGENT, reason=reason)
    if decisive.verdict is Verdict.DRIFT:
        return dataclasses.replace(decisive, reason=f"{decisive.reason}; teacher-forced: {found.reason}")
    return decisive


def _noise_columns(judged: Sequence[RequestJudgement], teacher: TeacherPass | None) -> dict[str, float | None]:
    seen = [one.noise for one in judged if one.noise is not None]
    if teacher is None:
        return {"noise": max(seen, default=None), "noise_nmse": None, "noise_kl": None}
    noise = teacher.noise
    return {"noise": max([*seen, noise.logit]), "noise_nmse": noise.worst_nmse, "noise_kl": noise.worst_kl}


def _compared(
    answers: Sequence[Answer],
    reference: Reference,
    situation: Circumstances,
    thresholds: Thresholds,
    teacher: TeacherPass | None,
) -> dict[str, Any]:
    """The columns that come from comparing all requests, and the teacher-forced pass, with the reference."""
    teacher = scored_against(teacher, reference.request(0))
    judged = [
        judge_answer(answer, reference.request(index), reference.agreement, situation, thresholds, teacher)
        for index, answer in enumerate(answers)
    ]
    chosen = worst(judged)
    decisive = judged[chosen]
    if teacher is not None:
        decisive = _forced(decisive, teacher, situation.coarse_cache, thresholds)
    diverging = next((i for i, one in enumerate(judged) if one.divergent_position is not None), None)
    first = None if diverging is None else judged[diverging]
    prefix = f"request {chosen}: " if len(judged) > 1 and decisive.verdict is not Verdict.IDENTICAL else ""
    return {
        "verdict": decisive.verdict,
        "verdict_reason": prefix + decisive.reason,
        "corrupt": decisive.verdict in CORRUPT,
        "first_divergent_request": diverging,
        "first_divergent_position": None if first is None else first.divergent_position,
        "first_digest_position": next((one.digest_position for one in judged if one.digest_position is not None), None),
        **_noise_columns(judged, teacher),
        "reference_margin": None if first is None else first.reference_margin,
        "reference": reference.source,
        "text_signs": json.dumps([vars(sign) for sign in decisive.signs]) if decisive.signs else None,
    }


@dataclass(frozen=True)
class _Told:
    """What a row says besides its answers. An ok row is told apart by its answers, so its words are left out."""

    outcome: Outcome
    words: str | None  # the error, or who ended the process and why
    situation: Circumstances
    hits: tuple[MarkerHit, ...]

    @property
    def failed(self) -> bool:
        """Whether the trial has no answer to judge."""
        return self.outcome is not Outcome.OK or bool(faults(self.hits))


def _told(
    outcome: str, error: str | None, end_reason: str | None, settings: str | None, hits: tuple[MarkerHit, ...]
) -> _Told:
    if outcome == Outcome.OK.value:
        return _Told(Outcome.OK, None, circumstances(settings), hits)
    return _Told(Outcome(outcome), error or end_reason, Circumstances(), hits)


def _failure(told: _Told) -> tuple[Verdict, str]:
    found = faults(told.hits)
    if told.outcome is Outcome.OK:
        first = found[0]
        shown = f"'{first.name}' in line {first.line_number}: {first.line}"
        return Verdict.FAILED, f"{Outcome.BACKEND_ERROR.value}: the log shows {shown}"
    words = f": {told.words}" if told.words else ""
    marks = f"; the log says: {found[0].line}" if found else ""
    return Verdict.FAILED, told.outcome.value + words + marks


def _combined(own: Circumstances, reference: Reference) -> Circumstances:
    """A coarse cache on either side makes noise coarse; how tokens were chosen is the trial's own matter."""
    greedy = own.greedy if own.greedy is not None else reference.circumstances.greedy
    return Circumstances(greedy, own.coarse_cache or reference.circumstances.coarse_cache)


def _judgement(
    told: _Told,
    answers: Sequence[Answer],
    teacher: TeacherPass | None,
    differ: bool | None,
    found: FoundReference,
    stored: Thresholds,
) -> Judgement:
    """All columns that need no other trial of the arm."""
    markers = json.dumps([hit.as_data() for hit in told.hits]) if told.hits else None
    limits = _as_json(stored)
    if told.failed:
        return Judgement(*_failure(told), log_markers=markers, thresholds=limits)
    if found.reference is None or not answers:
        reason = found.reason if found.reference is None else "no completed request to judge"
        return Judgement(Verdict.UNJUDGED, reason, log_markers=markers, requests_differ=differ, thresholds=limits)
    situation = _combined(told.situation, found.reference)
    compared = _compared(answers, found.reference, situation, stored, teacher)
    return Judgement(**compared, log_markers=markers, requests_differ=differ, thresholds=limits)


@lru_cache(maxsize=8)
def _as_json(thresholds: Thresholds) -> str:
    return thresholds.as_json()


def judge_trial(
    row: Mapping[str, Any], reference: Reference | FoundReference | None, thresholds: Thresholds = _DEFAULTS
) -> Judgement:
    """The judgement of one stored row; `off_mode` needs the arm's other rows and stays null."""
    if not isinstance(reference, FoundReference):
        reference = FoundReference(reference, "no reference was given")
    answers = answers_of_row(row)
    told = _told(
        row["outcome"],
        row.get("error"),
        row.get("end_reason"),
        row.get("settings"),
        notable_markers(row.get("native_log")),
    )
    return _judgement(told, answers, teacher_of_row(row), requests_differ(answers), reference, thresholds)


@dataclass(frozen=True, eq=False)
class _Judged:
    """Distinct judgements, and which of them each trial has."""

    distinct: list[Judgement]
    which: list[int]
    off_mode: list[bool | None]


def _judge(trials: Trials, found: FoundReference, thresholds: Thresholds) -> _Judged:
    columns = [trials.values(name) for name in ("outcome", "error", "end_reason", "settings")]
    markers, groups, passes = trials.markers, trials.groups, trials.teacher_keys()
    tellings: dict[tuple[Any, ...], _Told] = {}
    equal: dict[_Told, _Told] = {}
    known: dict[tuple[Any, ...], int] = {}
    read: dict[tuple[bytes, int] | None, TeacherPass | None] = {None: None}
    distinct: list[Judgement] = []
    which: list[int] = []
    for index, words in enumerate(zip(*columns, strict=True)):
        row = (*words, markers.get(index, ()))
        told = tellings.get(row)
        if told is None:
            told = _told(*row)
            told = tellings[row] = equal.setdefault(told, told)
        key = (groups[index], passes[index], id(told)) if told.outcome is Outcome.OK else (id(told),)
        place = known.setdefault(key, len(distinct))
        if place == len(distinct):
            answers = () if told.failed else trials.answers(index)
            differ = None if told.failed else trials.requests_differ(index)
            if passes[index] not in read:
                read[passes[index]] = trials.teacher(index)
            distinct.append(_judgement(told, answers, read[passes[index]], differ, found, thresholds))
        which.append(place)
    return _Judged(distinct, which, _off_mode(trials))


def _off_mode(trials: Trials) -> list[bool | None]:
    """Per trial, whether it leaves its arm's most frequent digests; needs two equal trials, and no tie."""
    counts: defaultdict[str, Counter[bytes]] = defaultdict(Counter)
    keys: list[bytes | None] = []
    for index, (arm, outcome) in enumerate(zip(trials.arms, trials.outcomes, strict=True)):
        key = trials.digest_key(index) if outcome is Outcome.OK else None
        keys.append(key)
        if key is not None:
            counts[arm][key] += 1
    modes: dict[str, bytes] = {}
    for arm, counter in counts.items():
        top = counter.most_common(2)
        if top[0][1] > 1 and (len(top) == 1 or top[0][1] > top[1][1]):
            modes[arm] = top[0][0]
    return [
        None if key is None or arm not in modes else key != modes[arm]
        for arm, key in zip(trials.arms, keys, strict=True)
    ]


def _from_harmless(trials: Trials, arms: Collection[str], found: FoundReference, thresholds: Thresholds) -> Thresholds:
    """Thresholds from the measured noise of arms that are held to be harmless; unchanged without any."""
    reference = found.reference
    if not arms or reference is None:
        return thresholds
    keys, groups, settings = trials.teacher_keys(), trials.groups, trials.values("settings")
    members = {
        (groups[index], keys[index], settings[index]): index
        for index in range(trials.count)
        if trials.arms[index] in arms and trials.outcomes[index] is Outcome.OK
    }
    passes: list[TeacherPass] = []
    logits: list[float] = []
    for index in members.values():
        teacher = scored_against(trials.teacher(index), reference.request(0))
        if teacher is not None:
            passes.append(teacher)
        situation = _combined(circumstances(trials.value(index, "settings")), reference)
        for number, answer in enumerate(trials.answers(index)):
            known = reference.request(number)
            judged = judge_answer(answer, known, reference.agreement, situation, thresholds)
            if judged.noise is not None:
                logits.append(judged.noise)
    return calibrated(thresholds, passes, logits)


def judge_rows(
    rows: Sequence[Mapping[str, Any]],
    baseline_arm: str,
    choice: ReferenceChoice | Reference | FoundReference = _BASELINE,
    thresholds: Thresholds = _DEFAULTS,
    *,
    provisional: bool = False,
    harmless: Collection[str] = (),
) -> list[Judgement]:
    """The judgements of stored rows, in their order; independent of that order otherwise.

    `harmless` names arms whose measured noise is to set the thresholds; see `teacher.calibrated`.
    """
    trials = trials_of(rows)
    found = find_reference(trials, baseline_arm, choice, provisional=provisional)
    judged = _judge(trials, found, _from_harmless(trials, harmless, found, thresholds))
    return [
        dataclasses.replace(judged.distinct[place], off_mode=off)
        for place, off in zip(judged.which, judged.off_mode, strict=True)
    ]


def judge_table(
    table: pa.Table,
    baseline_arm: str,
    choice: ReferenceChoice | Reference | FoundReference = _BASELINE,
    thresholds: Thresholds = _DEFAULTS,
    *,
    provisional: bool = False,
    harmless: Collection[str] = (),
) -> pa.Table:
    """The table with its verdict columns filled; all other columns are kept as they are, without a copy.

    `harmless` as for `judge_rows`.
    """
    trials = trials_of(table)
    found = find_reference(trials, baseline_arm, choice, provisional=provisional)
    judged = _judge(trials, found, _from_harmless(trials, harmless, found, thresholds))
    rows = [judgement.as_row() for judgement in judged.distinct]
    which = pa.array(judged.which, type=pa.int32())
    for column in VERDICT_COLUMNS:
        if column.name == "off_mode":
            values = pa.array(judged.off_mode, type=column.type)
        else:
            values = pa.array([row[column.name] for row in rows], type=column.type).take(which)
        table = _with_column(table, column.name, values)
    return table


def _with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    if name in table.column_names:
        place = table.column_names.index(name)
        return table.set_column(place, table.schema.field(place), values)
    return table.append_column(name, values)
