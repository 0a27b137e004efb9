"""What a run was made with: project, machine, build, models. No user names, no host names, no home paths."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from ..matrix.plan import Plan

__all__ = ["collect", "cpu_model", "machine_id", "project_version", "provenance_lines"]

_VARIABLE_FAMILIES = ("GGML_", "LLAMA_", "CUDA_", "HIP_", "ROCR_", "AGX_", "MTL_", "VK_", "OMP_", "MESA_")


def machine_id() -> str:
    """A stable anonymous id of this machine: 12 hex digits of a hash of what the OS calls it."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        if (file := Path(path)).is_file() and (text := file.read_text().strip()):
            return hashlib.sha256(text.encode()).hexdigest()[:12]
    return hashlib.sha256(f"{platform.node()}:{uuid.getnode()}".encode()).hexdigest()[:12]


def project_version() -> str:
    """Version of the installed project, with the commit and `dirty` where it runs from a git checkout."""
    version = importlib.metadata.version("isomatrix")
    commit = _git("rev-parse", "--short=10", "HEAD")
    if commit is None:
        return version
    return f"{version}+{commit}{'.dirty' if _git('status', '--porcelain') else ''}"


def _git(*words: str) -> str | None:
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None  # no git on this machine: the version alone is still true
    return answer.stdout.strip()


def cpu_model() -> str:
    """The processor's name as the OS gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def collect(plan: Plan, command: list[str]) -> dict[str, Any]:
    """Provenance of one run as plain data; model and build hashes come from the plan."""
    builds = {str(arm.configuration["build"]): arm.configuration["build"] for arm in plan.arms}
    models = {str(arm.configuration["model"]): _model(arm.configuration) for arm in plan.arms}
    return {
        "isomatrix": project_version(),
        "command": [word.replace(str(Path.home()), "~") for word in command],
        "plan_sha256": hashlib.sha256(plan.as_json().encode()).hexdigest(),
        "machine": {
            "id": machine_id(),
            "os": platform.platform(),
            "cpu": cpu_model(),
            "cpus": os.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
        },
        "python": platform.python_version(),
        "builds": list(builds.values()),
        "models": list(models.values()),
        "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLE_FAMILIES)},
    }


def _model(configuration: Mapping[str, Any]) -> dict[str, Any]:
    files = configuration["files"]
    names = {key: Path(files[key]).name if files[key] else None for key in ("model", "mmproj")}
    return {"name": names["model"], "mmproj": names["mmproj"], **configuration["model"]}


def provenance_lines(provenance: Mapping[str, Any], commits: list[str]) -> list[str]:
    """The footer of a table; `commits` are the llama.cpp builds that the rows report."""
    machine = provenance["machine"]
    builds = ", ".join(sorted({f"llama-cpp-python {build['library']}" for build in provenance["builds"]}))
    native = ", ".join(commits) or "llama.cpp build not told by this release"
    lines = [
        f"isomatrix {provenance['isomatrix']}; {builds}; {native}; Python {provenance['python']}",
        f"{machine['os']}; {machine['cpu']}, {machine['cpus']} CPUs, {machine['memory_bytes'] / 2**30:.0f} GiB; "
        f"machine {machine['id']}",
    ]
    for model in provenance["models"]:
        lines.append(f"model {model['name']} sha256 {model['sha256'][:16]}")
        if model["mmproj"]:
            lines.append(f"projector {model['mmproj']} sha256 {model['mmproj_sha256'][:16]}")
    return lines
