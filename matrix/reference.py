"""The reference: which token ids and logits count as right, and how they were agreed on."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from .answer import Answer
from .outcome import Outcome
from .trials import Trials, trials_of

__all__ = [
    "Agreement",
    "Circumstances",
    "FoundReference",
    "Reference",
    "ReferenceChoice",
    "ReferenceChoiceError",
    "circumstances",
    "consensus",
    "find_reference",
    "reference_from_ids",
    "reference_of_result",
]

_FOUR_BIT = frozenset({"q4_0", "q4_1", "iq4_nl"})


class ReferenceChoiceError(ValueError):
    """A reference was asked for in a way that cannot be right."""


class Agreement(str, Enum):
    """What the trials behind a reference agree on."""

    DIGESTS = "digests"  # logits, bit for bit
    IDS = "ids"  # token ids only: the arm's own logits do not repeat
    GIVEN = "given"  # ids that the user gave; no logits are known


@dataclass(frozen=True)
class Circumstances:
    """What a trial's settings say about how to judge it. `greedy` is `None` where they do not say."""

    greedy: bool | None = None
    coarse_cache: bool = False


@lru_cache(maxsize=4096)
def circumstances(settings: str | None) -> Circumstances:
    """Read the sampling and the cache types out of a row's `settings` (JSON)."""
    values: Mapping[str, Any] = json.loads(settings) if settings else {}
    temperature = values.get("temperature")
    return Circumstances(
        greedy=None if temperature is None else temperature == 0,
        coarse_cache=bool({values.get("type_k"), values.get("type_v")} & _FOUR_BIT),
    )


@dataclass(frozen=True)
class ReferenceChoice:
    """Where the reference comes from: the baseline's consensus, another arm's, or ids that were given."""

    arm: str | None = None
    ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse an arm and ids at once, and an empty list of ids."""
        if self.arm is not None and self.ids is not None:
            raise ReferenceChoiceError("reference: give either an arm or ids, not both")
        if self.ids is not None and not self.ids:
            raise ReferenceChoiceError("reference.ids: the list is empty; give at least one token id")


@dataclass(frozen=True, eq=False)
class Reference:
    """The answers that count as right. `source` says in one sentence where they come from."""

    source: str
    agreement: Agreement
    requests: tuple[Answer, ...]
    circumstances: Circumstances = Circumstances()
    provisional: bool = False

    def request(self, index: int) -> Answer:
        """The answer that request `index` is compared with: its own, else that of request 0.

        A fresh baseline has request 0 only; the requests of a persistent trial repeat the same prompt.
        """
        return self.requests[index] if index < len(self.requests) else self.requests[0]


@dataclass(frozen=True, eq=False)
class FoundReference:
    """A reference, or the reason why there is none."""

    reference: Reference | None
    reason: str


def reference_from_ids(ids: Sequence[int]) -> Reference:
    """A reference of token ids alone, as given by the user: no digests, no margins, no text.

    Against it `identical` means the same ids. Fewer ids than a trial generated compare that prefix only.
    """
    ReferenceChoice(ids=tuple(ids))
    return Reference(
        source=f"{len(ids)} token ids given by the user; without logits, identical means the same ids",
        agreement=Agreement.GIVEN,
        requests=(Answer(token_ids=np.asarray(ids, dtype=np.int32)),),
    )


@dataclass(frozen=True)
class _Mode:
    """The most frequent key; `key` is `None` if several are equally frequent, or nothing was measured."""

    key: bytes | None
    count: int


def _mode(keys: Iterable[bytes | None]) -> _Mode:
    counts = Counter(key for key in keys if key is not None).most_common(2)
    if not counts:
        return _Mode(None, 0)
    tied = len(counts) > 1 and counts[0][1] == counts[1][1]
    return _Mode(None if tied else counts[0][0], counts[0][1])


def consensus(
    source: pa.Table | Sequence[Mapping[str, Any]] | Trials, arm: str, *, provisional: bool = False
) -> FoundReference:
    """The most frequent result of an arm's ok trials, if at least two agree and no other is as frequent.

    Token ids come first: without a most frequent sequence of ids there is no reference. Among the trials
    that have it, the most frequent digests are the reference's logits; if none repeat (or two are as
    frequent), the trials agree on ids only, and one of them, the one with the smallest digests, only serves
    to measure noise.
    `provisional` accepts a single trial, for a run that is still young.
    """
    trials = trials_of(source)
    members = [
        index
        for index in range(trials.count)
        if trials.arms[index] == arm and trials.outcomes[index] is Outcome.OK and trials.ids_key(index) is not None
    ]
    total = len(members)
    least = 1 if provisional else 2
    ids = _mode(trials.ids_key(index) for index in members)
    refusal = _refusal(arm, total, ids, least)
    if refusal is not None:
        return FoundReference(None, refusal)
    agreeing = [index for index in members if trials.ids_key(index) == ids.key]
    digests = _mode(trials.digest_key(index) for index in agreeing)
    exact = digests.key is not None and digests.count >= least
    chosen = _representative(trials, agreeing, digests.key if exact else None)
    what = (
        f"{digests.count} of {total} ok trials agree in logits digests"
        if exact
        else (f"{ids.count} of {total} ok trials agree in token ids, but their logits do not repeat")
    )
    if total == 1:
        what = "its only ok trial so far"
    source_text = f"consensus of arm '{arm}': {what}"
    return FoundReference(
        Reference(
            source=source_text,
            agreement=Agreement.DIGESTS if exact else Agreement.IDS,
            requests=trials.answers(chosen),
            circumstances=circumstances(trials.value(chosen, "settings")),
            provisional=(digests.count if exact else ids.count) < 2,
        ),
        source_text,
    )


def reference_of_result(name: str, rows: pa.Table | None) -> FoundReference:
    """The reference of another stored result: the consensus of the rows of its reference arm that were copied."""
    if rows is None or rows.num_rows == 0:
        return FoundReference(None, f"no reference: the rows of the stored result '{name}' are missing")
    found = consensus(rows, str(rows.column("arm")[0].as_py()))
    source = f"stored result '{name}': {found.reason}"
    if found.reference is None:
        return FoundReference(None, source)
    return FoundReference(dataclasses.replace(found.reference, source=source), source)


def _refusal(arm: str, total: int, ids: _Mode, least: int) -> str | None:
    if total == 0:
        return f"no reference: arm '{arm}' has no ok trial"
    if ids.key is None:
        return f"no reference: of the {total} ok trials of arm '{arm}' no token sequence is most frequent"
    if ids.count < least:
        return f"no reference: arm '{arm}' has {total} ok trial, and two that agree are needed"
    return None


def _representative(trials: Trials, agreeing: Sequence[int], key: bytes | None) -> int:
    """The trial that stands for the agreement, independent of the order of rows."""
    pool = agreeing if key is None else [index for index in agreeing if trials.digest_key(index) == key]
    settings = trials.values("settings")
    by_group = {(trials.groups[index], settings[index]): index for index in reversed(pool)}
    ordered = sorted(by_group.values(), key=lambda index: (trials.digest_key(index) or b"", _tie(trials, index)))
    return ordered[0]


def _tie(trials: Trials, index: int) -> str:
    answers = trials.answers(index)
    shown = [(one.text, one.stop_reason, one.kv_cells_before, one.n_nan) for one in answers]
    return repr((len(shown), shown, trials.value(index, "settings")))


def find_reference(
    source: pa.Table | Sequence[Mapping[str, Any]] | Trials,
    baseline_arm: str,
    choice: ReferenceChoice | Reference | FoundReference = ReferenceChoice(),
    *,
    provisional: bool = False,
) -> FoundReference:
    """The reference that was chosen, from the rows where it is an arm's consensus.

    A `Reference` (for example the consensus of another stored result), or the reason why there is none, is taken
    as it is.
    """
    if isinstance(choice, FoundReference):
        return choice
    if isinstance(choice, Reference):
        return FoundReference(choice, choice.source)
    if choice.ids is not None:
        reference = reference_from_ids(choice.ids)
        return FoundReference(reference, reference.source)
    return consensus(source, baseline_arm if choice.arm is None else choice.arm, provisional=provisional)
