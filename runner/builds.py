"""Which llama-cpp-python build an interpreter has, found without loading it."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import UserError
from .files import existing_file, sha256_of

__all__ = ["Build", "find_build"]

_SCRIPT = """
import importlib.util, json, os, re, sys
spec = importlib.util.find_spec("llama_cpp")
found = {"python": sys.version.split()[0], "package": None}
if spec is not None and spec.origin:
    package = os.path.dirname(spec.origin)
    with open(spec.origin) as source:
        version = re.search(r'__version__ *= *["\\x27]([^"\\x27]+)', source.read())
    libraries = [os.path.join(folder, name) for folder in (os.path.join(package, "lib"), package)
                 if os.path.isdir(folder) for name in sorted(os.listdir(folder))
                 if re.search(r"\\.(so|dylib|dll)(\\.|$)", name)]
    fields = set()
    for name in ("llama_cpp.py", "mtmd_cpp.py"):
        path = os.path.join(package, name)
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as source:
                fields.update(re.findall(r'^ *\\(["\\x27](\\w+)["\\x27], ', source.read(), re.M))
    found.update(package=package, version=version and version.group(1), libraries=libraries, fields=sorted(fields))
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Build:
    """One interpreter with its llama-cpp-python.

    `digest` is a SHA-256 over the contents of all its shared libraries: two builds of one release differ.
    `fields` are the names of all fields of the binding's parameter structures, its settings among them.
    """

    python: str
    python_version: str
    library: str
    package: str
    digest: str
    libraries: tuple[str, ...]
    fields: frozenset[str] = frozenset()


def find_build(python: str | None, environment: Mapping[str, str | None]) -> Build:
    """The build that a trial with this interpreter and environment overlay will load.

    `UserError` if the interpreter does not run or has no llama_cpp.
    """
    chosen = str(existing_file("run.python", python)) if python else sys.executable
    overlay = {name: environment[name] for name in ("PYTHONPATH", "LLAMA_CPP_LIB_PATH") if name in environment}
    return _find_build(chosen, tuple(sorted(overlay.items())))


@functools.cache
def _find_build(python: str, overlay: tuple[tuple[str, str | None], ...]) -> Build:
    variables = {**os.environ, **dict(overlay)}
    environment = {name: value for name, value in variables.items() if value is not None}
    try:
        answer = subprocess.run(
            [python, "-s", "-c", _SCRIPT],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
            check=False,
        )
        found = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise UserError(f"run.python: {python} is not a working Python interpreter ({error})") from error
    if not found["package"]:
        raise UserError(f"run.python: {python} has no llama_cpp; install llama-cpp-python for that interpreter")
    libraries = tuple(found["libraries"])
    digest = hashlib.sha256(
        "".join(f"{Path(library).name} {sha256_of(Path(library))}\n" for library in libraries).encode()
    ).hexdigest()
    version = found["version"] or "unknown"
    return Build(python, found["python"], version, found["package"], digest, libraries, frozenset(found["fields"]))
