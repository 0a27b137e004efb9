"""The audio and image probes: a media file through the projector, between pieces of text."""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Mapping
from typing import Any

from .channel import Progress
from .engine import SEQUENCE, Engine
from .failure import WorkerFailure, bad_input
from .generate import Evaluated
from .library import Library, field_names, raw_function
from .parameters import Block, projector_block
from .rows import digest
from .spec import Model, Probe
from .text import check_fits, evaluate_tokens

__all__ = ["Projector", "check_media"]

_TEXT_CHUNK = 0  # enum mtmd_input_chunk_type


def check_media(probe: Probe) -> None:
    """Refuse an audio file that is none before anything is loaded.

    Raises `WorkerFailure` of kind `bad_input` that names `probe.media`.
    """
    if probe.media is None or probe.kind != "audio":
        return
    with open(probe.media, "rb") as file:  # noqa: PTH123
        start = file.read(12)
    is_wav = start[:4] == b"RIFF" and start[8:12] == b"WAVE"
    is_mpeg = start[:1] == b"\xff" and start[1:2] >= b"\xe0"
    if not (is_wav or is_mpeg or start[:3] == b"ID3" or start[:4] == b"fLaC"):
        raise bad_input("probe.media", f"{probe.media} is no WAV, MP3 or FLAC file")


class Projector:
    """The multimodal projector of one trial."""

    def __init__(self, library: Library, settings: Mapping[str, Any], n_threads: int) -> None:
        """Import the binding's projector module and take the settings; nothing is loaded yet.

        Raises `WorkerFailure` of kind `refused` if this build has no projector, or not such a setting.
        """
        self._library = library
        self.context: Any = None
        try:
            self._api: Any = importlib.import_module("llama_cpp.mtmd_cpp")
        except (ImportError, OSError, RuntimeError) as error:
            message = f"probe.kind: llama-cpp-python {library.version} has no multimodal library (mtmd): {error}"
            raise WorkerFailure("refused", "probe.kind", message) from error
        self._route_log()
        self._block: Block = projector_block(library, self._api.mtmd_context_params_default(), settings)
        self._block.block.n_threads = n_threads

    def _route_log(self) -> None:
        callback = ctypes.cast(self._library.native_log.callback, ctypes.c_void_p)
        for name in ("mtmd_log_set", "mtmd_helper_log_set"):
            set_log = self._raw(name, None, ctypes.c_void_p, ctypes.c_void_p)
            if set_log is not None:
                set_log(callback, None)

    def _raw(self, name: str, result: Any, *arguments: Any) -> Any | None:
        return raw_function(self._api._libmtmd, name, result, *arguments)

    def _needed(self, name: str, result: Any, *arguments: Any) -> Any:
        """A function that old bindings do not declare although their shared library has it."""
        function = self._raw(name, result, *arguments)
        if function is None:
            message = f"probe.kind: the multimodal library of {self._library.version} has no {name}"
            raise WorkerFailure("refused", "probe.kind", message)
        return function

    def load(self, model: Model, engine: Engine) -> None:
        """Load the projector beside the model.

        Raises `WorkerFailure` of kind `load_failure` with the library's words, a wrong width among them.
        """
        path = model.mmproj or ""
        self.context = self._api.mtmd_init_from_file(os.fsencode(path), engine.model, self._block.block)
        if not self.context:
            raise self._library.failure("model.mmproj", f"model.mmproj: {path} cannot be loaded for this model")
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        embeddings = ctypes.POINTER(ctypes.c_float)
        self._encode = self._needed("mtmd_encode_chunk", ctypes.c_int32, pointer, pointer)
        self._output = self._needed("mtmd_get_output_embd", embeddings, pointer)
        # the last two arguments (a callback and its data) came later; by the C calling conventions of all
        # supported platforms a release that knows eight arguments does not see them
        self._decode_media = self._needed(
            "mtmd_helper_decode_image_chunk",
            ctypes.c_int32,
            *(pointer, pointer, pointer, embeddings, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32),
            *(ctypes.POINTER(ctypes.c_int32), pointer, pointer),
        )
        self._n_cells = self._needed("mtmd_helper_get_n_tokens", size, pointer)

    @property
    def parameters(self) -> Any:
        """The projector's parameter block, which may be changed until the projector is loaded."""
        return self._block.block

    def close(self) -> None:
        """Free the projector; before the model."""
        if self.context:
            self._api.mtmd_free(self.context)

    def applied(self) -> dict[str, Any]:
        """Projector settings from the block handed over; without any other device a `gpu` is the CPU."""
        held = self._block.read()
        if held["projector_device"] == "gpu" and not self._library.has_accelerator():
            held["projector_device"] = "cpu"
        return held

    def evidence(self) -> dict[str, Any]:
        """Facts read back about the projector; the sample rate in Hz, null if it takes no audio."""
        block = self._block.block
        rate = self._raw("mtmd_get_audio_sample_rate", ctypes.c_int, ctypes.c_void_p)
        rate = rate or self._raw("mtmd_get_audio_bitrate", ctypes.c_int, ctypes.c_void_p)  # its older name
        hertz = -1 if rate is None else int(rate(self.context))
        return {
            "use_gpu": bool(block.use_gpu),
            "warmup": bool(block.warmup) if "warmup" in field_names(block) else None,
            "audio_sample_rate": hertz if hertz > 0 else None,
            "supports_audio": self._supports("mtmd_support_audio"),
            "supports_vision": self._supports("mtmd_support_vision"),
        }

    def _supports(self, name: str) -> bool | None:
        function = self._raw(name, ctypes.c_bool, ctypes.c_void_p)
        return None if function is None else bool(function(self.context))

    # one request

    def evaluate(self, engine: Engine, probe: Probe, progress: Progress) -> Evaluated:
        """Read, tokenize, encode and evaluate the media and the text around it.

        Raises `WorkerFailure` of kind `bad_input` for media or a prompt that cannot be used, and of kind
        `backend_error`, with the code, if encoding or evaluation fails.
        """
        bitmap = self._bitmap(probe)
        chunks = self._api.mtmd_input_chunks_init()
        try:
            self._tokenize(chunks, bitmap, probe)
            return self._evaluate_chunks(engine, chunks, progress)
        finally:
            self._api.mtmd_input_chunks_free(chunks)
            self._api.mtmd_bitmap_free(bitmap)

    def _bitmap(self, probe: Probe) -> Any:
        with open(str(probe.media), "rb") as file:  # noqa: PTH123
            content = file.read()
        buffer = (ctypes.c_uint8 * len(content)).from_buffer_copy(content)
        bitmap = self._read_bitmap(buffer, len(content))
        if not bitmap:
            what = f"probe.media: {probe.media} cannot be read as {probe.kind}"
            raise self._library.failure("probe.media", what, "bad_input")
        n_bytes = self._raw("mtmd_bitmap_get_n_bytes", ctypes.c_size_t, ctypes.c_void_p)
        is_audio = self._raw("mtmd_bitmap_is_audio", ctypes.c_bool, ctypes.c_void_p)
        wrong = None
        if n_bytes is not None and n_bytes(bitmap) == 0:
            wrong = "holds no samples"
        elif is_audio is not None and bool(is_audio(bitmap)) != (probe.kind == "audio"):
            wrong = f"is not {probe.kind}; set probe.kind to what it is"
        if wrong is not None:
            self._api.mtmd_bitmap_free(bitmap)
            raise bad_input("probe.media", f"{probe.media} {wrong}")
        return bitmap

    def _read_bitmap(self, buffer: Any, length: int) -> Any:
        """The loader takes a placeholder flag in some releases, and options as well in the newest."""
        if hasattr(self._api, "mtmd_helper_bitmap_init_from_buf_wrapper"):
            native = self._api.mtmd_helper_bitmap_init_from_buf_wrapper
        else:
            native = self._api.mtmd_helper_bitmap_init_from_buf
        known = [self.context, buffer, length, False]
        if len(native.argtypes) > len(known):
            known.append(self._api.mtmd_helper_init_opt_default())
        result = native(*known[: len(native.argtypes)])
        return result.bitmap if isinstance(result, ctypes.Structure) else result

    def _marker(self) -> bytes:
        current = self._raw("mtmd_get_marker", ctypes.c_char_p, ctypes.c_void_p)
        marker: bytes = current(self.context) if current is not None else self._api.mtmd_default_marker()
        return marker

    def _tokenize(self, chunks: Any, bitmap: Any, probe: Probe) -> None:
        marker = self._marker()
        encoded = probe.prompt.encode()
        if encoded.count(marker) > 1:
            raise bad_input("probe.prompt", f"has more than one {marker.decode()}, but there is one media file")
        if marker not in encoded:
            encoded = marker + encoded
        text = self._api.mtmd_input_text()
        text.text = encoded
        if "text_len" in field_names(text):
            text.text_len = len(encoded)
        text.add_special = probe.add_special
        text.parse_special = True
        bitmaps = (ctypes.c_void_p * 1)(bitmap)
        code = self._api.mtmd_tokenize(self.context, chunks, ctypes.byref(text), bitmaps, 1)
        if code != 0:
            what = f"probe.media: {probe.media} cannot be prepared (mtmd_tokenize returned {code})"
            raise self._library.failure("probe.media", what, "bad_input")

    def _evaluate_chunks(self, engine: Engine, chunks: Any, progress: Progress) -> Evaluated:
        api = self._api
        pieces = [api.mtmd_input_chunks_get(chunks, index) for index in range(api.mtmd_input_chunks_size(chunks))]
        n_cells = int(self._n_cells(chunks))
        check_fits(engine, n_cells)
        if api.mtmd_input_chunk_get_type(pieces[-1]) != _TEXT_CHUNK:
            raise bad_input("probe.prompt", "must go on after the media; without text there is nothing to answer")
        progress.report(0)
        position = engine.kept.position
        outputs: list[bytes] = []
        for index, piece in enumerate(pieces):
            if api.mtmd_input_chunk_get_type(piece) == _TEXT_CHUNK:
                is_last = index == len(pieces) - 1
                tokens = self._tokens(piece)
                position = evaluate_tokens(engine, tokens, position, progress, want_logits=is_last)
            else:
                position = self._evaluate_media(engine, piece, position, outputs)
                progress.report(position)
        n_positions, n_cells = position - engine.kept.position, n_cells + engine.kept.cells
        return Evaluated(n_positions, position, n_cells, digest(*outputs) if outputs else None)

    def _tokens(self, piece: Any) -> list[int]:
        count = ctypes.c_size_t()
        tokens = self._api.mtmd_input_chunk_get_tokens_text(piece, ctypes.byref(count))
        return list(tokens[: count.value])

    def _evaluate_media(self, engine: Engine, piece: Any, position: int, outputs: list[bytes]) -> int:
        """Encode one media chunk, keep its embeddings' bytes and evaluate them; the helper knows M-RoPE."""
        code = self._encode(self.context, piece)
        if code != 0:
            what = f"mtmd_encode_chunk returned {code} at prompt position {position}"
            raise self._library.failure("projector", what, "backend_error")
        output = self._output(self.context)
        n_floats = int(self._api.mtmd_input_chunk_get_n_tokens(piece)) * engine.n_embd_input
        outputs.append(ctypes.string_at(output, n_floats * ctypes.sizeof(ctypes.c_float)))
        after = ctypes.c_int32(position)
        code = self._decode_media(
            self.context,
            engine.context,
            piece,
            output,
            position,
            SEQUENCE,
            engine.n_batch,
            ctypes.byref(after),
            None,
            None,
        )
        if code != 0:
            what = f"the projector's output could not be evaluated: code {code} at prompt position {position}"
            raise self._library.failure("prompt", what, "backend_error")
        return after.value
