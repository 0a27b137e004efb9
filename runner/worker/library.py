"""The binding and the shared library behind it: found, imported lean, and asked what it has.

Releases moved and renamed things, so nothing here is assumed: a function exists if the binding or the
shared library has it, a field exists if the structure lists it.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import re
import sys
import types
from typing import Any

from .failure import WorkerFailure
from .native_log import NativeLog

__all__ = ["Library", "field_names", "load_library"]

_PACKAGE = "llama_cpp"


def field_names(structure: Any) -> list[str]:
    """Names of the fields of a ctypes structure, or of its type."""
    return [field[0] for field in structure._fields_]


def _is_native(function: Any) -> bool:
    return isinstance(function, ctypes._CFuncPtr)  # type: ignore[attr-defined]  # there is no public name for it


class Library:
    """One imported binding: its module, its version, and the functions that it really has."""

    def __init__(self, api: Any, version: str, native_log: NativeLog) -> None:
        self.api = api
        self.version = version
        self.native_log = native_log

    def has(self, name: str) -> bool:
        """Whether the binding declares the native function `name`."""
        return _is_native(getattr(self.api, name, None))

    def first(self, *names: str) -> Any:
        """The first of several names of one native function, newest name first.

        Raises `WorkerFailure` of kind `load_failure` if the build has none of them.
        """
        for name in names:
            if self.has(name):
                return getattr(self.api, name)
        raise WorkerFailure(
            "load_failure", "library", f"llama-cpp-python {self.version} has no function {' or '.join(names)}"
        )

    def raw(self, name: str, result: Any, *arguments: Any) -> Any | None:
        """A function that the binding does not declare, from the shared library, or null if it has none."""
        return raw_function(self.api._lib, name, result, *arguments)

    def refusal(self, setting: str, why: str) -> WorkerFailure:
        """A failure that says that this build cannot take a setting."""
        where = f"settings.{setting}"
        return WorkerFailure("refused", where, f"{where}: llama-cpp-python {self.version} {why}")

    def failure(self, where: str, what: str, kind: str = "load_failure") -> WorkerFailure:
        """A failure that ends with the library's own last words; memory failures are told apart."""
        log = self.native_log
        kind = "out_of_memory" if log.tells_of_memory() else kind
        return WorkerFailure(kind, where, f"{what}: {log.last_words()}")

    def describe(self) -> dict[str, Any]:
        """The fields of the `library` event."""
        return {
            "library": self.version,
            "build": self._build(),
            "system_info": _text(self.first("llama_print_system_info")()).strip(),
            "devices": self.devices(),
        }

    def _build(self) -> str | None:
        """Versions and commit as the libraries themselves tell them; null for releases that tell nothing."""
        asked = (("llama.cpp", "llama_version"), ("ggml", "ggml_version"), ("commit", "ggml_commit"))
        found = [(title, self.raw(name, ctypes.c_char_p)) for title, name in asked]
        parts = [f"{title} {_text(function())}" for title, function in found if function is not None]
        return ", ".join(parts) or None

    def devices(self) -> list[dict[str, Any]] | None:
        """Devices as `{name, description, type}`, or null where the build cannot list them."""
        pointer = ctypes.c_void_p
        count = self.raw("ggml_backend_dev_count", ctypes.c_size_t)
        get = self.raw("ggml_backend_dev_get", pointer, ctypes.c_size_t)
        name = self.raw("ggml_backend_dev_name", ctypes.c_char_p, pointer)
        description = self.raw("ggml_backend_dev_description", ctypes.c_char_p, pointer)
        kind = self.raw("ggml_backend_dev_type", ctypes.c_int, pointer)
        if count is None or get is None or name is None or description is None or kind is None:
            return None
        kinds = self._device_kinds()
        return [
            {
                "name": _text(name(d)),
                "description": _text(description(d)),
                "type": kinds.get(kind(d), str(kind(d))),
            }
            for d in (get(index) for index in range(count()))
        ]

    def _device_kinds(self) -> dict[int, str]:
        # the enumeration grew in the middle between the releases that lack this field and those that have it
        if "flash_attn_type" in field_names(self.api.llama_context_params):
            return {0: "cpu", 1: "gpu", 2: "igpu", 3: "accel", 4: "meta"}
        return {0: "cpu", 1: "gpu", 2: "accel"}

    def has_accelerator(self) -> bool:
        """Whether there is any device besides the CPU that settings about offloading could reach."""
        devices = self.devices()
        if devices is None:
            return bool(self.first("llama_supports_gpu_offload")())
        return any(device["type"] != "cpu" for device in devices)


def raw_function(handle: Any, name: str, result: Any, *arguments: Any) -> Any | None:
    """`name` of a shared library with its own prototype, or null. Does not touch the binding's prototype."""
    try:
        function = handle[name]
    except AttributeError:
        return None
    function.restype = result
    function.argtypes = list(arguments)
    return function


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _import_lean(spec: Any) -> Any:
    """The binding's low-level module without the package's `__init__`.

    That `__init__` pulls in NumPy, jinja2 and diskcache for the high-level class, several times the cost of
    everything else at start-up, and installs a log callback of its own. A bare package in its place leaves
    the low-level modules exactly as they are.
    """
    package = types.ModuleType(_PACKAGE)
    package.__spec__ = spec
    package.__file__ = spec.origin
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules[_PACKAGE] = package
    return importlib.import_module(f"{_PACKAGE}.llama_cpp")


def _import_whole() -> Any:
    for name in [name for name in sys.modules if name == _PACKAGE or name.startswith(f"{_PACKAGE}.")]:
        del sys.modules[name]
    importlib.import_module(_PACKAGE)
    return importlib.import_module(f"{_PACKAGE}.llama_cpp")


def _import_binding(spec: Any) -> Any:
    try:
        return _import_lean(spec)
    except (ImportError, AttributeError):  # a build whose modules need the package's `__init__`
        return _import_whole()


def _version(spec: Any) -> str:
    """The package's `__version__`, read from its source, else from the distribution's metadata."""
    with open(spec.origin, encoding="utf-8") as file:  # noqa: PTH123
        found = re.search(r"^__version__\s*=\s*[\"']([^\"']+)", file.read(), re.MULTILINE)
    if found:
        return found.group(1)
    from importlib.metadata import version

    return version("llama-cpp-python")


def load_library(native_log: NativeLog) -> Library:
    """Import the binding, route its log and start its backends.

    Raises `WorkerFailure` of kind `load_failure` if there is no binding or its shared library cannot load.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        message = f"there is no llama_cpp for {sys.executable}; install llama-cpp-python there"
        raise WorkerFailure("load_failure", "library", message)
    try:
        api = _import_binding(spec)
    except (ImportError, OSError, RuntimeError) as error:
        message = f"llama_cpp in {os.path.dirname(spec.origin)} cannot be loaded: {error}"  # noqa: PTH120
        raise WorkerFailure("load_failure", "library", message) from error
    library = Library(api, _version(spec), native_log)
    set_log = library.raw("llama_log_set", None, ctypes.c_void_p, ctypes.c_void_p)
    if set_log is not None:
        set_log(ctypes.cast(native_log.callback, ctypes.c_void_p), None)
    library.first("llama_backend_init")()
    return library
