"""One stored trial again, by hand: the same spec, the same kind of process, and a comparison bit for bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ..matrix.outcome import Outcome
from .errors import ExitCode, UserError
from .reference_logits import prepared
from .result import LoadedResult
from .round import trial_request
from .trial import BadInput, run_trial

__all__ = ["replay_trial"]


def replay_trial(result: LoadedResult, word: str, console: Console) -> int:
    """Run the trial again and print both answers; 0 if they are equal, 3 if not.

    `word` is a trial id or a part of it that only one trial has. Raises `UserError` for no or several matches
    and for files that are no longer where the plan says.
    """
    row = _stored(result, word)
    arm = result.analysis.plan.arm(row["arm"])
    for name, path in arm.configuration["files"].items():
        if path is not None and not Path(path).exists():
            raise UserError(f"replay: the trial's {name} file is not at {path} any more; put it back there")
    console.print(Text(f"replaying {row['trial_id']} (arm {arm.name}: {arm.changes_text or 'nothing changed'})"))
    try:
        with prepared(result.folder) as reference:
            again = run_trial(trial_request(arm, row["trial_id"], reference.section(arm)))
    except BadInput as error:
        raise UserError(str(error)) from error
    same = _same(row, again)
    for title, answer in (("stored", row), ("now", again)):
        console.print(Text(f"  {title}: {_words(answer)}"), soft_wrap=True)
    console.print(Text("the same answer, bit for bit" if same else "another answer than the stored one"))
    return ExitCode.OK if same else ExitCode.UNUSABLE


def _stored(result: LoadedResult, word: str) -> Mapping[str, Any]:
    rows = result.analysis.trials.to_pylist()
    found = [row for row in rows if row["trial_id"] == word] or [row for row in rows if word in row["trial_id"]]
    if len(found) == 1:
        return dict(found[0])
    if not found:
        example = f"; ids look like {rows[0]['trial_id']}" if rows else ", which has no trials yet"
        raise UserError(f"replay: no trial '{word}' in {result.folder.path}{example}")
    shown = ", ".join(row["trial_id"] for row in found[:3])
    raise UserError(f"replay: '{word}' fits {len(found)} trials ({shown} ...); give more of the id")


def _same(stored: Mapping[str, Any], again: Mapping[str, Any]) -> bool:
    if stored["outcome"] != again["outcome"]:
        return False
    return _answers(stored) == _answers(again)


def _answers(row: Mapping[str, Any]) -> str:
    """Ids and digests of all requests, as text that compares exactly."""
    requests = row.get("requests") or []
    keys = ("token_ids", "logits_digests", "prompt_digest", "projector_digest")
    return json.dumps([[request.get(key) for key in keys] for request in requests])


def _words(row: Mapping[str, Any]) -> str:
    if row["outcome"] != Outcome.OK.value:
        return f"{row['outcome']}: {row.get('error') or 'no message'}"
    ids = " ".join(str(token) for token in row["token_ids"])
    return f"ids {ids}; text {row['text']!r}"
