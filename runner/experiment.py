"""One experiment: open or resume a result, run round by round until the stop rule is met, and sum up."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.text import Text

from ..matrix.analysis import Analysis, analyse
from ..matrix.outcome import Outcome
from ..matrix.plan import Plan
from ..matrix.plant import MARK
from ..matrix.schema import trials_schema
from . import session
from .compose import quoted
from .display import Display
from .errors import ExitCode, UserError
from .provenance import collect
from .reference_choice import import_reference
from .render.terminal import print_table
from .result import refuse_lost_trials, stored_plan, stored_provenance, table_of
from .store import DamagedPart, ResultFolder

__all__ = ["Experiment", "Finished"]

LaunchRound = Callable[[list[str], int], None]


@dataclass(frozen=True)
class Finished:
    """What a run came to."""

    folder: Path
    analysis: Analysis
    exit_code: int


class Experiment:
    """Runs a plan. `launch` hands one round to Hydra's launcher and returns when it is done."""

    def __init__(self, config: DictConfig, plan: Plan, arguments: Sequence[str]) -> None:
        """`config` is the composed configuration of the baseline, `arguments` the words of the command line."""
        self._config = config
        self._plan = plan
        self._arguments = list(arguments)
        self._rows: list[pa.Table] = []
        self._reference_rows: pa.Table | None = None

    def run(self, launch: LaunchRound) -> Finished:
        """Run what the stored rows do not have yet, print the table, and return what came out."""
        folder = self._open()
        with folder.lock(on_damage=_tell_damage):
            self._record(folder)
            self._reference_rows = folder.read_reference_rows()
            stored = folder.read_trials(on_damage=_tell_damage)
            refuse_lost_trials(folder, stored)
            if stored.num_rows:
                self._rows = [stored]
            display = Display(self._plan, folder.path.name, done=stored.num_rows)
            problem = None
            try:
                with display:
                    self._rounds(folder, launch, display)
            except UserError as error:
                problem = error  # the rows so far are kept and shown before the reason is
            finished = self._finish(folder)
        if problem is not None:
            raise problem
        return finished

    def _open(self) -> ResultFolder:
        run = self._config.run
        name = run.name or _default_name(self._config)
        if Path(name).name != name:
            raise UserError(f"run.name: '{name}' is no plain folder name; run.results says where results lie")
        folder = ResultFolder.open_or_create(Path(run.results).expanduser() / name)
        if folder.plan_file.exists():
            found = self._plan.differences(stored_plan(folder))
            if found:
                raise UserError(
                    f"run.name: {folder.path} holds another experiment ({'; '.join(found[:5])}); "
                    "give the same settings to resume it, or another run.name"
                )
        return folder

    def _record(self, folder: ResultFolder) -> None:
        """Store what was asked. A resumed run may ask for more rounds, so its plan replaces the stored one."""
        if folder.plan_file.exists() and not self._plan.thresholds:
            # limits that `judge` set stay, unless this command names others
            self._plan = dataclasses.replace(self._plan, thresholds=stored_plan(folder).thresholds)
        folder.write_plan(self._plan.as_json())
        if self._plan.reference.get("result") is not None and folder.read_reference() is None:
            import_reference(Path(self._config.reference.result), folder)
        if not folder.provenance_file.exists():
            folder.write_config(OmegaConf.to_yaml(self._config))
            provenance = collect(self._plan, ["isomatrix", "run", *self._arguments])
            folder.write_provenance(json.dumps(provenance, indent=1, ensure_ascii=False) + "\n")

    def _rounds(self, folder: ResultFolder, launch: LaunchRound, display: Display) -> None:
        current = session.current()
        current.on_start = display.trial_started
        current.on_note = display.note
        current.on_trial = lambda row: self._take(row, display)
        analysis = self._analyse()
        for index in range(self._plan.rounds):
            open_arms = self._open_arms(analysis, index)
            if not open_arms or current.cancel.is_set():
                return
            planned = self._plan.round_trials(index, open_arms)
            if not {trial.trial_id for trial in planned} <= folder.finished_trials():
                folder.write_schedule(index, sorted(open_arms))
                before = len(self._rows)
                words = {"run.folder": str(folder.path.absolute()), "run.results": self._config.run.results}
                launch([*(f"{key}={quoted(text)}" for key, text in words.items()), f"run.round={index}"], index)
                if len(self._rows) == before:  # the round ran in another process, or on another machine
                    self._rows = [folder.read_trials()]
            analysis = self._analyse()
            rounds_left = self._plan.rounds - index - 1
            display.judged(analysis.verdict_counts(), len(self._open_arms(analysis, index + 1)), rounds_left)
            display.round_finished(index, self._plan.rounds, _counts_in_words(analysis))
            _stop_if_unusable(analysis)

    def _open_arms(self, analysis: Analysis, index: int) -> frozenset[str]:
        """All arms while nothing is decided; a plan of the baseline alone has nothing to decide."""
        everything = frozenset(arm.name for arm in self._plan.arms)
        if index == 0 or not analysis.decisions or self._plan.stop.get("kind") == "fixed":
            return everything
        return analysis.open_arms

    def _take(self, row: Mapping[str, Any], display: Display) -> None:
        self._rows.append(pa.Table.from_pylist([dict(row)], schema=trials_schema()))
        display.trial_finished(row)

    def _analyse(self) -> Analysis:
        rows = pa.concat_tables(self._rows) if self._rows else trials_schema().empty_table()
        return analyse(self._plan, rows, reference_rows=self._reference_rows)

    def _finish(self, folder: ResultFolder) -> Finished:
        analysis = self._analyse()
        folder.compact(analysis.trials)
        folder.write_arms(analysis.arms)
        print_table(table_of(analysis, folder.path.name, stored_provenance(folder)), Console())
        if session.current().cancel.is_set():
            code = ExitCode.INTERRUPTED
            sys.stderr.write(f"isomatrix: interrupted; resume with run.name={folder.path.name}\n")
        else:
            code = _exit_code(analysis)
        Console(stderr=True).print(Text(f"result: {folder.path}", style="dim"), soft_wrap=True)
        return Finished(folder.path, analysis, code)


def _tell_damage(part: DamagedPart) -> None:
    sys.stderr.write(f"isomatrix: {part.path} cannot be read, so its trial is run again: {part.why}\n")


def _default_name(config: DictConfig) -> str:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    model = config.model.kind if not config.model.path else Path(config.model.path).stem
    return f"{stamp}-{model}-{config.probe.kind}"


def _counts_in_words(analysis: Analysis) -> str:
    rows = analysis.arms.to_pylist()
    real, planted = [row for row in rows if not row["planted"]], [row for row in rows if row["planted"]]
    told = [_corrupt_and_failed(rows) for rows in (real, planted) if rows]
    return f"; {MARK} ".join(told) if real else f"{MARK} {told[0]}"


def _corrupt_and_failed(rows: Sequence[Mapping[str, Any]]) -> str:
    corrupt, failed = (sum(row[name] for row in rows) for name in ("n_corrupt", "n_failed"))
    return f"{corrupt} corrupt, {failed} failed"


def _exit_code(analysis: Analysis) -> ExitCode:
    """Whether the table can be used; says why not on standard error."""
    if analysis.invalid:
        sys.stderr.write("isomatrix: a control failed, so the result is invalid\n")
        return ExitCode.UNUSABLE
    if any(row["n"] for row in analysis.arms.to_pylist()):
        return ExitCode.OK
    sys.stderr.write(f"isomatrix: no trial counts: {analysis.reference}\n")
    return ExitCode.UNUSABLE


def _stop_if_unusable(analysis: Analysis) -> None:
    """A baseline that never loads leaves nothing to compare with: more rounds would say the same."""
    baseline = analysis.plan.baseline.name
    columns = (analysis.trials.column(name).to_pylist() for name in ("arm", "outcome", "error"))
    own = [(outcome, error) for arm, outcome, error in zip(*columns, strict=True) if arm == baseline]
    hopeless = {Outcome.LOAD_FAILURE.value, Outcome.REFUSED.value}
    if own and all(outcome in hopeless for outcome, _ in own):
        raise UserError(f"the baseline cannot be loaded: {own[0][1]}", ExitCode.UNUSABLE)
