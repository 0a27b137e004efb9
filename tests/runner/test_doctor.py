from __future__ import annotations

import subprocess
from collections.abc import Callable


def test_doctor_names_build_and_device_and_tries_every_axis(isomatrix: Callable[..., subprocess.CompletedProcess[str]]):
    done = isomatrix("doctor")
    assert done.returncode == 0, done.stderr
    assert "llama-cpp-python " in done.stdout
    assert "device: CPU (cpu)" in done.stdout
    tried = {line.split("\t")[0]: line.split("\t")[2] for line in done.stdout.splitlines() if line.count("\t") == 3}
    assert {"op_offload", "offload_kqv", "n_gpu_layers", "projector_device", "warmup", "process"} <= tried.keys()
    assert tried["n_ubatch"] == "live"  # a smaller batch has a smaller compute buffer on every device


def test_doctor_refuses_an_interpreter_that_is_none(isomatrix: Callable[..., subprocess.CompletedProcess[str]]):
    done = isomatrix("doctor", "--python", "/nowhere/python")
    assert (done.returncode, done.stderr) == (2, "isomatrix: run.python: no file at /nowhere/python\n")
