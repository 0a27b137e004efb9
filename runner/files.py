"""Files of the user: where caches lie, and SHA-256 of large files, remembered by size and mtime."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import BinaryIO

from .errors import UserError

__all__ = ["cache_folder", "existing_file", "sha256_of"]


def cache_folder() -> Path:
    """$ISOMATRIX_CACHE, else the platform's cache folder for isomatrix. Not created here."""
    if chosen := os.environ.get("ISOMATRIX_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "isomatrix"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isomatrix"


def existing_file(field: str, text: str) -> Path:
    """The absolute path of a readable file; `UserError` naming the configuration field otherwise."""
    path = Path(text).expanduser()
    if path.is_dir():
        raise UserError(f"{field}: {path} is a folder, not a file")
    if not path.is_file():
        raise UserError(f"{field}: no file at {path.absolute()}")
    if not os.access(path, os.R_OK):
        raise UserError(f"{field}: {path} cannot be read; check its permissions")
    return path.absolute()


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, taken from the cache when path, size and modification time are unchanged."""
    stat = path.stat()
    key = f"{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}"
    store = cache_folder() / "sha256.json"
    known = _known(store)
    if key not in known:
        with path.open("rb") as file:
            known[key] = _digest(file)
        _remember(store, known)
    return known[key]


def _known(store: Path) -> dict[str, str]:
    try:
        data = json.loads(store.read_text())
    except (OSError, ValueError):
        return {}  # no cache yet, or one cut short by a crash: hashing again is always right
    return data if isinstance(data, dict) else {}


def _remember(store: Path, known: dict[str, str]) -> None:
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        temporary = store.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(known, indent=0))
        temporary.replace(store)
    except OSError:
        return  # a read-only home costs time, never a result


def _digest(file: BinaryIO) -> str:
    # hashlib.file_digest needs Python 3.11.
    digest = hashlib.sha256()
    while block := file.read(1 << 22):
        digest.update(block)
    return digest.hexdigest()
