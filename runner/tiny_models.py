"""The embedded models and recording: small files with fixed random content, written on first use.

They make the first run free of downloads. `docs/tiny-models.md` describes them and how their quality was checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import UserError
from .files import cache_folder

__all__ = ["TINY_FILES", "TinyModelError", "TinyModelWarning", "tiny_model"]


class TinyModelError(UserError):
    """An embedded file is unknown or cannot be written."""


class TinyModelWarning(UserWarning):
    """An embedded file came out with other bytes than on other machines."""


@dataclass(frozen=True)
class _Recipe:
    """How one embedded file is written, and the SHA-256 that it has on every machine."""

    suffix: str
    sha256: str
    write: Callable[[Path], None]


# The writers import NumPy and gguf only when a file is missing: every start of the runner would pay for them.


def _write_text(path: Path, kind: str) -> None:
    from .tiny_weights import TINY, write_text_model

    write_text_model(path, TINY, kind, "isomatrix tiny")


def _text(path: Path) -> None:
    _write_text(path, "F16")


def _text_f32(path: Path) -> None:
    _write_text(path, "F32")


def _text_q8_0(path: Path) -> None:
    _write_text(path, "Q8_0")


def _experts(path: Path) -> None:
    from .tiny_weights import TINY_MOE, write_text_model

    write_text_model(path, TINY_MOE, "F16", "isomatrix tiny mixture of experts")


def _projector(path: Path) -> None:
    from .tiny_weights import TINY_PROJECTOR, write_projector

    write_projector(path, TINY_PROJECTOR, "isomatrix tiny audio projector")


def _audio(path: Path) -> None:
    from .tiny_audio import TINY_SOUND, write_wav

    write_wav(path, TINY_SOUND)


_RECIPES = {
    "tiny": _Recipe(".gguf", "2185866789e0d69c6d334667953b4e320af8abbf1d24107bb52a65194c5c12f9", _text),
    "tiny_f32": _Recipe(".gguf", "f1e611836b5140fc21ef36887ab08e3d0d33166dd16d8e5b8431920ba4c12913", _text_f32),
    "tiny_q8_0": _Recipe(".gguf", "97f2443128a061f7ac52752046a8851fbc84b4621a6cd6361dd1b3947a3162cd", _text_q8_0),
    "tiny_moe": _Recipe(".gguf", "14d23756f94de83db1024256a4b857c0225fa9c959d33a0b3e44054a319d2b3a", _experts),
    "tiny_projector": _Recipe(".gguf", "b08e34f8e07ecbe1d9edb4d2e1c7528a578c24b602a184a08bbc1ca55cd0bf19", _projector),
    "tiny_audio": _Recipe(".wav", "1e46319ba102a474418a8287818bd396b2c413c89aafa0136267e83adc48a621", _audio),
}

TINY_FILES = tuple(_RECIPES)
"""Names that `tiny_model` knows."""


def tiny_model(name: str, cache: Path | None = None) -> Path:
    """Path of an embedded file, written on first use and again whenever its bytes are not the right ones.

    `name` is one of `TINY_FILES`; `cache` defaults to `cache_folder()`. The file's name holds the start of its
    SHA-256, so a changed generator never reuses an old file. Several processes may ask at once.
    Raises `TinyModelError` for an unknown name or a folder that cannot be written. Warns with `TinyModelWarning`
    where the installed NumPy and gguf lead to other bytes: the file works, but its results do not compare with
    those of other machines.
    """
    if name not in _RECIPES:
        raise TinyModelError(f"no embedded file is called '{name}'; there are {', '.join(TINY_FILES)}")
    recipe = _RECIPES[name]
    folder = cache_folder() if cache is None else cache
    path = folder / f"{name}-{recipe.sha256[:12]}{recipe.suffix}"
    if _sha256(path) != recipe.sha256:
        _write(name, recipe, path)
    return path


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path.parent, error) from error


def _write(name: str, recipe: _Recipe, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _replacing(path) as temporary:
            recipe.write(temporary)
            digest = _sha256(temporary)
    except OSError as error:
        raise _unusable(path.parent, error) from error
    if digest != recipe.sha256:
        versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in ("numpy", "gguf"))
        warnings.warn(
            f"the embedded file '{name}' has SHA-256 {digest} here and {recipe.sha256} elsewhere ({versions}); "
            "results do not compare with those of other machines",
            TinyModelWarning,
            stacklevel=3,
        )


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place at the end, whole and on disk, or not at all."""
    handle, text = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(text)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp leaves it to the owner alone; the cache may be shared
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _unusable(folder: Path, error: OSError) -> TinyModelError:
    return TinyModelError(
        f"the cache folder {folder} cannot be used for the embedded models ({error.strerror or error}); "
        "set ISOMATRIX_CACHE to a folder that can be written"
    )
