"""Running the worker as a real process, on the embedded models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from isomatrix.runner.tiny_models import tiny_model

WORKER = Path(__file__).resolve().parents[3] / "runner" / "worker"
Spec = dict[str, Any]
PROMPT = "And so, my fellow Americans: ask not what your country can do"


@dataclass(frozen=True)
class Answer:
    """Everything one worker process gave back."""

    status: int
    events: tuple[dict[str, Any], ...]
    stdout: bytes
    log: str

    def the(self, event: str) -> dict[str, Any]:
        """The only event of that name."""
        (found,) = [entry for entry in self.events if entry["event"] == event]
        return found

    @property
    def requests(self) -> list[dict[str, Any]]:
        """All request records."""
        return [entry for entry in self.events if entry["event"] == "request"]

    @property
    def order(self) -> list[str]:
        """Names of the events without progress."""
        return [entry["event"] for entry in self.events if entry["event"] != "progress"]

    def applied(self, setting: str) -> tuple[Any, str]:
        """What was applied for a setting, and its status."""
        entry = self.the("loaded")["applied"][setting]
        return entry["applied"], entry["status"]


@dataclass(frozen=True)
class Files:
    """The embedded files."""

    model: Path
    projector: Path
    audio: Path


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The embedded files, written once per session."""
    cache = tmp_path_factory.mktemp("models")
    return Files(*(tiny_model(name, cache) for name in ("tiny", "tiny_projector", "tiny_audio")))


@dataclass(frozen=True)
class Bench:
    """Writes specs and runs workers on them."""

    folder: Path
    files: Files

    def text(self, prompt: str = PROMPT, *, probe: Mapping[str, Any] | None = None, **settings: Any) -> Spec:
        """A text trial on one thread."""
        return {
            "spec_version": 1,
            "trial_id": "test",
            "model": {"path": str(self.files.model), "mmproj": None},
            "settings": {"n_threads": 1, "n_threads_batch": 1, "max_tokens": 12, **settings},
            "probe": {"kind": "text", "prompt": prompt, "media": None, "requests": 1, **(probe or {})},
            "limits": {},
        }

    def audio(self, media: Path | None = None, **settings: Any) -> Spec:
        """An audio trial on one thread."""
        spec = self.text("What did he say?", **{"n_ctx": 1024, **settings})
        spec["model"]["mmproj"] = str(self.files.projector)
        spec["probe"] |= {"kind": "audio", "media": str(media or self.files.audio)}
        return spec

    def write(self, spec: Any) -> Path:
        """A spec on disk."""
        path = self.folder / "spec.json"
        path.write_text(spec if isinstance(spec, str) else json.dumps(spec))
        return path

    def run(
        self,
        spec: Any,
        *,
        python: Sequence[str] = (sys.executable,),
        worker: Path = WORKER,
        environment: Mapping[str, str] | None = None,
    ) -> Answer:
        """Run a worker to its end."""
        reading, writing = os.pipe()
        command = [*python, str(worker), str(self.write(spec)), "--result-fd", str(writing)]
        variables = {**os.environ, **(environment or {})}
        log = self.folder / "log"
        with log.open("wb") as stderr, os.fdopen(reading, "rb") as pipe:
            process = subprocess.Popen(
                command,
                pass_fds=[writing],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=variables,
                cwd=self.folder,
            )
            os.close(writing)
            lines = pipe.read().splitlines()
            stdout, _ = process.communicate(timeout=120)
        events = tuple(json.loads(line) for line in lines)
        return Answer(process.returncode, events, stdout, log.read_text(errors="replace"))


@pytest.fixture
def bench(tmp_path: Path, files: Files) -> Bench:
    """A bench in a folder of its own."""
    return Bench(tmp_path, files)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Answer:
    """The answer to the plain text trial, which several tests look at."""
    session = Bench(tmp_path_factory.mktemp("plain"), files)
    return session.run(session.text())
