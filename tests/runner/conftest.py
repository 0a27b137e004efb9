"""Shared by the runner's tests: plans composed through Hydra in this process, and the command line in another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from isomatrix.matrix.plan import Plan

ISOMATRIX = Path(sys.executable).parent / "isomatrix"


@pytest.fixture(scope="session", autouse=True)
def interruptible_children() -> None:
    """Children inherit ignored signals, and a script's background jobs ignore SIGINT: tests send it for real."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def composed_plan() -> Callable[..., Plan]:
    """`composed_plan("settings.n_ctx=64,128", ...)`: the plan of these command-line words."""
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.plugins import Plugins
    from hydra.types import RunMode

    Plugins.instance()
    from hydra_plugins.isomatrix_sweeper import install
    from isomatrix.runner.compose import build_plan, parse_arguments

    install()

    def compose(*words: str) -> Plan:
        with initialize_config_module("isomatrix.conf", version_base="1.3"):
            loader = GlobalHydra.instance().config_loader()
            request = parse_arguments(words)
            config = loader.load_configuration("config", list(request.fixed), run_mode=RunMode.MULTIRUN)
            return build_plan(loader, config, request)[1]

    return compose


@pytest.fixture
def isomatrix(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`isomatrix("run", ...)`: the installed command in an empty folder."""

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(ISOMATRIX), *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, **variables},
        )

    return run
