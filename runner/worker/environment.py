"""The environment as the C library sees it, and what changed in it.

Backends call `setenv` natively, which `os.environ` never notices; the C library's own table does.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from typing import Any

__all__ = ["FAMILIES", "differences", "snapshot"]

FAMILIES = (
    "GGML_",
    "LLAMA_",
    "MTMD_",
    "AGX_",
    "CUDA_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MTL_",
    "METAL_",
    "VK_",
    "HIP_",
)
"""Prefixes of variables that the library, its backends and their runtimes read or set."""


def _native_table() -> Any | None:
    """The C library's `environ`, or null where it cannot be reached (Windows)."""
    if sys.platform == "win32":
        return None
    process = ctypes.CDLL(None)
    table = ctypes.POINTER(ctypes.c_char_p)
    if sys.platform == "darwin":  # `environ` itself is not visible from a shared library there
        getter = process._NSGetEnviron
        getter.restype = ctypes.POINTER(table)
        return getter()[0]
    return table.in_dll(process, "environ")


def _entries() -> list[str]:
    table = _native_table()
    if table is None:
        return [f"{name}={value}" for name, value in os.environ.items()]
    entries: list[str] = []
    while table and table[len(entries)] is not None:
        entries.append(os.fsdecode(table[len(entries)]))
    return entries


def snapshot(names: Iterable[str]) -> dict[str, str]:
    """Variables of the known families and those in `names`, as the C library sees them now."""
    wanted = frozenset(names)
    pairs = (entry.partition("=") for entry in _entries())
    return {name: value for name, _, value in pairs if name in wanted or name.startswith(FAMILIES)}


def differences(before: dict[str, str], after: dict[str, str]) -> dict[str, list[str | None]]:
    """Variables that differ, as `{name: [before, after]}`; null stands for not set."""
    names = sorted(set(before) | set(after))
    return {name: [before.get(name), after.get(name)] for name in names if before.get(name) != after.get(name)}
