from __future__ import annotations

from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib", reason="tomllib comes with Python 3.11")

ROOT = Path(__file__).parent.parent


def test_every_code_folder_and_config_group_is_in_the_wheel():
    # An editable install finds a folder that a wheel would lack.
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = dict(setuptools["package-dir"].items())
    listed = set()
    for package in setuptools["packages"]:
        parent, _, rest = next(
            (name, *package.removeprefix(name).partition(".")[1:])
            for name in sorted(folders, key=len, reverse=True)
            if package == name or package.startswith(f"{name}.")
        )
        listed.add(ROOT.joinpath(folders[parent], *rest.split(".")) if rest else ROOT / folders[parent])
    holding = {
        file.parent
        for top in ("matrix", "runner", "conf")
        for pattern in ("*.py", "*.yaml")
        for file in (ROOT / top).rglob(pattern)
    }
    assert holding == listed
    groups = {folder.name for folder in (ROOT / "conf").iterdir() if folder.is_dir() and folder.name != "__pycache__"}
    assert {f"isomatrix.conf.{group}" for group in groups} <= setuptools["package-data"].keys()
