"""The worker as a process: what it needs, what it leaves behind, and how it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).resolve().parents[3] / "runner" / "worker"
LONG = {"max_tokens": 100_000, "n_ctx": 8192, "probe": {"ignore_eos": True}}

posix = pytest.mark.skipif(sys.platform == "win32", reason="process groups and signals of POSIX")
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def _start(bench: Any, *more: str, session: bool = True) -> tuple[subprocess.Popen[bytes], Any]:
    """A worker that is busy generating, and the reading end of its answer."""
    reading, writing = os.pipe()
    command = [
        sys.executable,
        str(WORKER),
        str(bench.write(bench.text(**LONG))),
        "--result-fd",
        str(writing),
        *more,
    ]
    process = subprocess.Popen(
        command,
        pass_fds=[writing],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=session,
    )
    os.close(writing)
    pipe = os.fdopen(reading, "rb")
    while json.loads(pipe.readline()).get("stage") != "generate":
        pass
    return process, pipe


@posix
def test_a_watched_worker_dies_with_its_group_when_stdin_ends(bench: Any) -> None:
    process, pipe = _start(bench, "--watch-stdin")
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(30) == -signal.SIGKILL
    pipe.close()


@posix
def test_a_watched_worker_without_a_group_of_its_own_kills_nobody_else(bench: Any) -> None:
    process, pipe = _start(bench, "--watch-stdin", session=False)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(30) == 8
    pipe.close()


@posix
def test_a_worker_whose_answer_nobody_reads_ends_quietly(bench: Any) -> None:
    process, pipe = _start(bench)
    pipe.close()
    assert process.wait(30) == 7


@linux
def test_a_worker_leaves_no_core_dump(bench: Any) -> None:
    process, pipe = _start(bench)
    limits = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
    process.kill()
    process.wait(30)
    pipe.close()
    (core,) = [line.split() for line in limits if line.startswith("Max core file size")]
    assert core[4:6] == ["0", "0"]


@linux
def test_memory_that_cannot_be_had_is_told_apart_from_other_failures(bench: Any) -> None:
    limited = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)); "
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    answer = bench.run(bench.text(n_ctx=4_000_000), python=(sys.executable, "-c", limited))
    error = answer.the("error")
    assert (answer.status, error["kind"]) == (6, "out_of_memory")


def test_the_folder_runs_from_anywhere(bench: Any, plain: Any) -> None:
    elsewhere = bench.folder / "some where" / "else"
    shutil.copytree(WORKER, elsewhere)
    answer = bench.run(bench.text(), worker=elsewhere)
    assert answer.requests[0]["logits_digests"] == plain.requests[0]["logits_digests"]


def test_a_small_trial_loads_neither_numpy_nor_the_high_level_class(bench: Any) -> None:
    log = bench.run(bench.text(), python=(sys.executable, "-X", "importtime")).log
    imported = {line.rsplit("|", 1)[-1].strip() for line in log.splitlines() if line.startswith("import time:")}
    assert "llama_cpp._ctypes_extensions" in imported
    assert not imported & {"numpy", "jinja2", "llama_cpp.llama", "isomatrix.matrix.settings"}


def test_an_interpreter_without_the_library_is_a_load_failure(bench: Any) -> None:
    answer = bench.run(bench.text(), python=(sys.executable, "-I", "-S"))
    error = answer.the("error")
    assert (answer.status, error["kind"], error["where"]) == (4, "load_failure", "library")
    assert "install llama-cpp-python" in error["message"]


def test_a_binding_that_needs_its_whole_package_is_imported_whole(bench: Any, plain: Any) -> None:
    import importlib.util

    found = importlib.util.find_spec("llama_cpp")
    assert found is not None
    assert found.origin is not None
    real = Path(found.origin).parent
    package = bench.folder / "site" / "llama_cpp"
    package.mkdir(parents=True)
    shutil.copy(real / "_ctypes_extensions.py", package)
    (package / "lib").symlink_to(real / "lib")
    (package / "__init__.py").write_text("NEEDED = 1\nfrom .llama_cpp import *\n__version__ = '0.0.1'\n")
    low_level = (real / "llama_cpp.py").read_text()
    (package / "llama_cpp.py").write_text(low_level + "\nfrom llama_cpp import NEEDED\n")
    answer = bench.run(bench.text(), environment={"PYTHONPATH": str(package.parent)})
    assert answer.the("library")["library"] == "0.0.1"
    assert answer.requests[0]["logits_digests"] == plain.requests[0]["logits_digests"]


def test_a_wrong_command_line_is_told_on_stderr() -> None:
    done = subprocess.run([sys.executable, str(WORKER), "spec.json"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage:")
