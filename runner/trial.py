"""One trial: a fresh worker process, watched from its start to its last orphan, and turned into a row.

The loop sleeps in one selector on the answer, the output and the end of the process, and wakes by itself only
for the next deadline. A trial costs the runner a few milliseconds.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import secrets
import shutil
import site
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil

from .load import Load, LoadMeter, LoadSpec, start_load
from .messages import BadInput
from .process import ChildProcess, end_marked_processes, kernel_oom_kills
from .watch import EventCallback, Limits, Watch

__all__ = ["BadInput", "Limits", "TrialRequest", "run_trial", "trial_environment"]

_log = logging.getLogger(__name__)

_MARK = "ISOMATRIX_TRIAL_MARK"
"""Variable that marks every process of one trial, so that orphans which left the group are found."""

_NOT_A_PROGRAM = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EISDIR, errno.ENOEXEC})


@dataclass(frozen=True)
class TrialRequest:
    """All that one trial needs."""

    trial_id: str
    command: tuple[str, ...]
    """Everything before SPEC.json: interpreter and worker folder, behind a wrapper if there is one."""
    spec: Mapping[str, Any]
    """The worker's complete input."""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    """Variables to set; None unsets one."""
    limits: Limits = field(default_factory=Limits)
    load: LoadSpec = field(default_factory=LoadSpec)


def run_trial(
    request: TrialRequest,
    *,
    cancel: threading.Event | None = None,
    on_event: EventCallback | None = None,
) -> dict[str, Any]:
    """Run one trial and return the columns of the record that runner and worker know.

    Setting `cancel` ends the trial with outcome `interrupted`. `on_event` is called with every event of the
    worker as it comes. No process of the trial or its load is left, whatever happens in here.

    Raises `BadInput` for a mistake of the user that every trial would repeat, `LoadError` where the load does
    not come up, and OSError where this machine cannot start processes or write temporary files.
    """
    if sys.platform == "win32":
        raise OSError("trials run on Linux and macOS; on Windows use WSL")
    with _trial_folder() as folder, start_load(request.load) as load:
        fields, watch = _run_worker(request, load, folder, cancel, on_event)
    if watch.bad_input is not None:
        raise BadInput(watch.bad_input)
    conclusion = watch.conclusion()
    return {
        "trial_id": request.trial_id,
        "settings": _json(request.spec.get("settings", {})),
        "spec": _json(request.spec),
        "outcome": conclusion.outcome.value,
        "end_reason": None if conclusion.end_reason is None else conclusion.end_reason.value,
        "error": conclusion.error,
        **watch.transcript.fields(),
        **watch.fields(),
        **fields,
    }


def trial_environment(overlay: Mapping[str, str | None], folder: Path) -> dict[str, str]:
    """The worker's whole environment.

    It starts from the runner's own. An allow-list was considered and dropped: drivers, loaders and sites read
    variables that no list foresees (`VK_ICD_FILENAMES`, `LD_LIBRARY_PATH`, `ROCR_VISIBLE_DEVICES`, module
    systems), and losing one changes the device without a word. What is set here:

    * `TMPDIR`: the trial's own folder. `HOME` stays, because drivers keep their shader caches there.
    * `GGML_NO_BACKTRACE=1`: on an abort ggml would start a debugger, which takes seconds and needs ptrace.
    * `PYTHONNOUSERSITE=1`: packages of the user's site folder are not part of the build under test, unless
      isomatrix itself was installed there.
    * `PYTHONDONTWRITEBYTECODE` is removed: without stored byte code every trial would compile the worker.

    The overlay comes last and may change any of these; None unsets.
    """
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment |= {"TMPDIR": str(folder), "GGML_NO_BACKTRACE": "1"}
    if not Path(__file__).is_relative_to(site.getusersitepackages()):
        environment["PYTHONNOUSERSITE"] = "1"
    for name, value in overlay.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


@contextlib.contextmanager
def _trial_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="isomatrix-"))
    try:
        yield folder
    finally:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            _log.warning("temporary folder %s of a trial could not be removed: %s", folder, error)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _run_worker(
    request: TrialRequest,
    load: Load,
    folder: Path,
    cancel: threading.Event | None,
    on_event: EventCallback | None,
) -> tuple[dict[str, Any], Watch]:
    spec_file = folder / "spec.json"
    spec_file.write_text(_json(request.spec), encoding="utf-8")
    mark = secrets.token_hex(8)
    environment = {**trial_environment(request.environment, folder), _MARK: mark}
    oom_kills = kernel_oom_kills()
    known = psutil.pids()
    started_at = datetime.now(timezone.utc)
    meter = LoadMeter(load)
    start_s = time.monotonic()
    with _start(request.command, spec_file, environment) as (child, result_fd):
        try:
            watch = Watch(
                child,
                result_fd,
                request.limits,
                start_s=start_s,
                oom_kills=oom_kills,
                cancel=cancel,
                on_event=on_event,
            )
            watch.run()
            shares = meter.read()
        finally:
            child.end()
            strays = end_marked_processes(_MARK, mark, known)
            if strays:
                _log.warning("trial %s left processes behind, now killed: %s", request.trial_id, strays)
    asked = {"load": load.kind, "load_asked": load.asked_json()}
    return {"started_at": started_at, **asked, **shares}, watch


@contextlib.contextmanager
def _start(
    command: tuple[str, ...], spec_file: Path, environment: Mapping[str, str]
) -> Iterator[tuple[ChildProcess, int]]:
    """Start the worker; yields it with the read end of its result pipe."""
    result_fd, worker_fd = os.pipe()
    try:
        arguments = (str(spec_file), "--result-fd", str(worker_fd), "--watch-stdin")
        try:
            child = ChildProcess(
                (*command, *arguments),
                environment=environment,
                folder=spec_file.parent,
                pass_fds=(worker_fd,),
            )
        except OSError as error:
            if error.errno not in _NOT_A_PROGRAM:
                raise
            raise BadInput(f"the worker's program {command[0]} cannot be started: {error.strerror}") from error
        finally:
            os.close(worker_fd)
        with child:
            yield child, result_fd
    finally:
        os.close(result_fd)
