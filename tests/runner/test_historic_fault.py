"""A real fault of a real release, found blind: llama-cpp-python 0.3.7 computes CLAMP in thread 0 only.

Prompts that run on several threads then use stale queries, keys and values (llama.cpp before PR 11824). Set
`ISOMATRIX_OLD_PYTHON` to an interpreter with llama-cpp-python 0.3.7 for the half of these tests that needs it.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

OLD_PYTHON = os.environ.get("ISOMATRIX_OLD_PYTHON", "")
ARMS = (
    "axes=none",
    "settings.n_threads=4",
    "settings.n_threads_batch=4",
    "arms.one_thread={n_threads: 1, n_threads_batch: 1}",
    "arms.n_ubatch_1={n_ubatch: 1}",
)


@pytest.fixture
def olmo(tmp_path: Path) -> Path:
    """The random OLMo model whose clamp bites."""
    source = Path(__file__).parent.parent / "olmo_model.py"
    spec = importlib.util.spec_from_file_location("olmo_model", source)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path = tmp_path / "olmo.gguf"
    module.write_olmo_model(path)
    return path


def matrix(isomatrix: Run, model: Path, rounds: int, *words: str) -> dict[str, dict[str, str]]:
    """The rows of `arms.parquet` by arm, as text, after a fixed run."""
    fixed = ("probe=text", f"model.path={model}", "run.name=olmo", "stop=fixed", f"stop.rounds={rounds}")
    done = isomatrix("run", *fixed, *ARMS, *words)
    assert done.returncode == 0, done.stderr
    report = isomatrix("report", "olmo", "--format", "csv").stdout
    return {row["arm"]: row for row in csv.DictReader(io.StringIO(report))}


def test_a_release_with_the_repair_gives_a_table_without_corruption(isomatrix: Run, olmo: Path):
    arms = matrix(isomatrix, olmo, 2, "settings.max_tokens=16")
    assert {arm: (row["n"], row["n_corrupt"], row["n_failed"]) for arm, row in arms.items()} == {
        "baseline": ("2", "0", "0"),
        "one_thread": ("2", "0", "0"),
        "n_ubatch_1": ("2", "0", "0"),
    }


@pytest.mark.slow
@pytest.mark.skipif(not OLD_PYTHON, reason="ISOMATRIX_OLD_PYTHON names no interpreter with llama-cpp-python 0.3.7")
def test_the_faulty_release_differs_with_several_threads_and_the_two_rescues_agree(isomatrix: Run, olmo: Path):
    arms = matrix(isomatrix, olmo, 5, f"run.python={OLD_PYTHON}", "reference.arm=one_thread")
    assert {arm: (row["n"], row["n_corrupt"]) for arm, row in arms.items()} == {
        "baseline": ("5", "5"),
        "one_thread": ("5", "0"),
        "n_ubatch_1": ("5", "0"),
    }
    assert {arms[arm]["effect"] for arm in ("one_thread", "n_ubatch_1")} == {"proven"}
    assert all("differs" in arms[arm]["reading"] for arm in ("one_thread", "n_ubatch_1"))
    table = isomatrix("report", "olmo").stdout
    assert "Equal token ids, other than the baseline's: n\\_ubatch\\_1, one\\_thread." in table
