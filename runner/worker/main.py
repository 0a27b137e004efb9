"""The order of events of a trial."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, NamedTuple

from .applied import DEFAULT_MAX_TOKENS, applied_settings
from .channel import Channel, Progress
from .engine import Engine
from .environment import differences, snapshot
from .failure import EXIT_VALUES, WorkerFailure
from .generate import Generation, generate
from .guards import no_core_dumps, watch_stdin
from .library import load_library
from .native_log import NativeLog
from .plant import make_plant
from .rows import prepare
from .sampling import Sampler
from .spec import Spec, Teacher, read_spec
from .text import evaluate_text

__all__ = ["WORKER_VERSION", "main"]

WORKER_VERSION = 1
USAGE = "usage: worker SPEC.json --result-fd N [--watch-stdin]"


class Arguments(NamedTuple):
    """The command line."""

    spec: str
    descriptor: int
    watch_stdin: bool


def _arguments(words: list[str]) -> Arguments | None:
    """The command line, or null if it is wrong; by hand, because argparse costs start-up time."""
    rest = [word for word in words if word != "--watch-stdin"]
    if len(rest) != 3 or rest[1] != "--result-fd" or not rest[2].isdigit():
        return None
    return Arguments(rest[0], int(rest[2]), len(rest) != len(words))


class Trial:
    """What is loaded for one trial, from the library to the sampler."""

    def __init__(self, spec: Spec, channel: Channel) -> None:
        self._spec = spec
        self._channel = channel
        self._settings = spec.settings
        self.engine: Engine
        self.sampler: Sampler
        self.projector: Any | None = None  # its module is only imported where a probe needs it
        self.plant = make_plant(spec.plant, spec.trial_id, lambda **fields: channel.send("plant", **fields))
        self._end = (0, 0)  # position and cells after the last token that was evaluated

    def load(self) -> None:
        """Load everything and tell what came of the settings; refused ones fail before a model is loaded."""
        began = time.monotonic()
        spec = self._spec
        environment = snapshot(spec.settings["env"])
        if spec.probe.kind != "text":
            from .media import Projector, check_media

            check_media(spec.probe)
        library = load_library(NativeLog())
        self._channel.send("library", **library.describe())
        self.engine = engine = Engine(library, spec)
        self.sampler = Sampler(library, spec.settings)
        if spec.probe.kind != "text":
            self.projector = Projector(library, spec.settings, engine.n_threads_asked)
        self.plant.attach(engine, self.projector)
        engine.load()
        if self.projector is not None:
            self.projector.load(spec.model, engine)
        evidence = engine.evidence()
        evidence["env_set"] = differences(environment, snapshot(spec.settings["env"]))
        evidence["projector"] = None if self.projector is None else self.projector.evidence()
        held = None if self.projector is None else self.projector.applied()
        applied = applied_settings(spec, engine.applied(), held, self.sampler, library.has_accelerator())
        took = time.monotonic() - began
        self._channel.send("loaded", load_s=took, applied=applied, evidence=evidence)
        self.plant.loaded(applied, engine, self.sampler)

    def run(self) -> None:
        """Warm up if asked, then every request, memory cleared before each."""
        prepare(self.engine.n_vocab)
        if self._settings["warmup"]:
            self.engine.warm_up()
        for request in range(self._spec.n_requests):
            self._channel.send("request", **self._request(request))
        if self._spec.teacher is not None and self._spec.teacher.logits:
            self._channel.send("teacher", **self._teacher_forced(self._spec.teacher))

    def _request(self, request: int) -> dict[str, Any]:
        if self.plant.keeps_memory(request):
            self.engine.keep_memory(*self._end)
        else:
            self.engine.clear_memory()
        self.sampler.restart()
        cells = self.engine.cells_in_use()
        self.plant.before_prompt(request)
        began = time.monotonic()
        prompt = self._evaluate(Progress(self._channel, "prompt", request))
        evaluated = time.monotonic()
        self.plant.before_tokens(request)
        how = Generation(
            max_tokens=self._settings["max_tokens"] or DEFAULT_MAX_TOKENS,
            ignore_eos=self._spec.probe.ignore_eos,
            k=self._spec.probe.top_k_recorded,
        )
        progress = Progress(self._channel, "generate", request)
        recorder = self._recorder(request)
        generated = generate(self.engine, self.sampler, prompt, how, progress, recorder and recorder.keep)
        if recorder is not None:
            recorder.close()
        n_evaluated = generated["n_generated"] - 1  # the last token is sampled only
        self._end = (prompt.position + n_evaluated, prompt.n_cells + n_evaluated)
        return {
            "request": request,
            "n_prompt_tokens": prompt.n_tokens,
            **generated,
            "projector_digest": prompt.projector_digest,
            "kv_cells_before": cells,
            "prompt_s": evaluated - began,
            "generate_s": time.monotonic() - evaluated,
        }

    def _recorder(self, request: int) -> Any | None:
        """What keeps the logits rows of request 0, if the spec asks for it."""
        teacher = self._spec.teacher
        if teacher is None or teacher.record is None or request != 0:
            return None
        from .teacher import Recorder  # only where it is needed

        return Recorder(teacher.record, teacher.max_bytes)

    def _teacher_forced(self, teacher: Teacher) -> dict[str, Any]:
        from .teacher import teacher_pass  # only where it is needed

        began = time.monotonic()
        progress = Progress(self._channel, "teacher", self._spec.n_requests - 1)
        fields = teacher_pass(self.engine, self._evaluate, teacher, progress)
        return {**fields, "teacher_s": time.monotonic() - began}

    def _evaluate(self, progress: Progress) -> Any:
        probe = self._spec.probe
        if self.projector is not None:
            return self.projector.evaluate(self.engine, probe, progress)
        return evaluate_text(self.engine, probe.prompt, probe.add_special, progress)

    def close(self) -> None:
        """Free everything, users of the model before the model."""
        self.sampler.close()
        if self.projector is not None:
            self.projector.close()
        self.engine.close()


def _run(arguments: Arguments, channel: Channel) -> None:
    spec = read_spec(arguments.spec)
    trial = Trial(spec, channel)
    trial.load()
    trial.run()
    trial.plant.finish()
    trial.close()
    channel.send("done", n_requests=spec.n_requests)


def main(words: list[str], started: float) -> int:
    """Run the trial of a command line; returns the exit value, or ends the process with it."""
    arguments = _arguments(words)
    if arguments is None:
        sys.stderr.write(USAGE + "\n")
        return EXIT_VALUES["bad_input"]
    no_core_dumps()
    if arguments.watch_stdin:
        watch_stdin()
    if arguments.descriptor > 2:  # what the library starts must not keep the runner waiting for the pipe's end
        os.set_inheritable(arguments.descriptor, False)
    channel = Channel(arguments.descriptor, started)
    channel.send("started", pid=os.getpid(), python=sys.version.split()[0], worker_version=WORKER_VERSION)
    try:
        _run(arguments, channel)
        status = 0
    except WorkerFailure as failure:
        channel.send("error", kind=failure.kind, message=failure.message, where=failure.where)
        status = EXIT_VALUES[failure.kind]
    except MemoryError:
        channel.send("error", kind="out_of_memory", message="Python could not allocate memory", where="worker")
        status = EXIT_VALUES["out_of_memory"]
    # the answer is complete: destructors of drivers that hang or crash at exit say nothing about this trial
    os._exit(status)
