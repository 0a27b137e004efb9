"""Entry point: gives the folder a package of its own, wherever it lies, and runs the trial."""

from __future__ import annotations

import time

STARTED = time.monotonic()

import os  # noqa: E402
import sys  # noqa: E402
from importlib.util import module_from_spec, spec_from_file_location  # noqa: E402

PACKAGE = "isomatrix_worker"


def _own_package() -> None:
    """Register this folder as a top-level package, so that relative imports work outside isomatrix too."""
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs start-up time
    init = os.path.join(folder, "__init__.py")  # noqa: PTH118
    spec = spec_from_file_location(PACKAGE, init, submodule_search_locations=[folder])
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load the worker package from {folder}")
    package = module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    _own_package()
    from importlib import import_module

    sys.exit(import_module(f"{PACKAGE}.main").main(sys.argv[1:], STARTED))
