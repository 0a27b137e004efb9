"""Greedy generation through the low-level bindings of any llama-cpp-python release, for tests.

Keeps every logits row, so that tests can compare bits, margins and tokens. Needs `llama_cpp` and NumPy only and runs
under old interpreters and old releases: `python tests/greedy.py MODEL PROMPT N name=value...` prints the ids as JSON.
"""

from __future__ import annotations

import ctypes
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

_SILENT = llama_cpp.llama_log_callback(lambda level, text, data: None)
llama_cpp.llama_log_set(_SILENT, ctypes.c_void_p(0))


@dataclass(frozen=True)
class Generated:
    """Token ids, the raw logits row that each came from, and the positions that the prompt took."""

    ids: list[int]
    logits: np.ndarray
    n_prompt: int

    @property
    def margins(self) -> np.ndarray:
        """Largest minus second-largest logit at each position."""
        top = np.partition(self.logits, -2, axis=1)
        return top[:, -1] - top[:, -2]

    @property
    def digest(self) -> bytes:
        """The raw bits of all rows."""
        return self.logits.tobytes()


def _first(*names: str) -> Any:
    """The function under the first name that this release knows."""
    for name in names:
        if hasattr(llama_cpp, name):
            return getattr(llama_cpp, name)
    raise AttributeError(f"llama_cpp {llama_cpp.__version__} has none of {', '.join(names)}")


class Session:
    """One model and one context; `memory` is cleared before every prompt."""

    def __init__(self, model: Path, **context: Any) -> None:
        llama_cpp.llama_backend_init()
        self.model = _first("llama_model_load_from_file", "llama_load_model_from_file")(
            str(model).encode(), llama_cpp.llama_model_default_params()
        )
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        params = llama_cpp.llama_context_default_params()
        for name, value in {"n_ctx": 2048, "n_threads": 1, "n_threads_batch": 1, **context}.items():
            setattr(params, name, value)
        self.context = _first("llama_init_from_model", "llama_new_context_with_model")(self.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp refuses the context {context}")
        has_vocab = hasattr(llama_cpp, "llama_vocab_n_tokens")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model) if has_vocab else self.model
        self.n_vocab = _first("llama_vocab_n_tokens", "llama_n_vocab")(self.vocab)
        self.eos = _first("llama_vocab_eos", "llama_token_eos")(self.vocab)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *unused: object) -> None:
        llama_cpp.llama_free(self.context)
        _first("llama_model_free", "llama_free_model")(self.model)

    def tokenize(self, text: str, special: bool = True) -> list[int]:
        """Token ids with the model's own start token where `special`; control tokens in the text count."""
        raw = text.encode()
        room = len(raw) + 8
        ids = (llama_cpp.llama_token * room)()
        count = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), ids, room, special, True)
        return list(ids[:count])

    def piece(self, token: int) -> bytes:
        """The bytes of one token."""
        room = ctypes.create_string_buffer(64)
        count = llama_cpp.llama_token_to_piece(self.vocab, token, room, 64, 0, False)
        return room.raw[:count]

    def text(self, ids: list[int]) -> str:
        """The text of several tokens."""
        return b"".join(map(self.piece, ids)).decode("utf-8", "replace")

    def clear(self) -> None:
        """Forget every position."""
        if hasattr(llama_cpp, "llama_memory_clear"):
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        else:
            _first("llama_kv_self_clear", "llama_kv_cache_clear")(self.context)

    def _decode(self, tokens: list[int]) -> None:
        ids = (llama_cpp.llama_token * len(tokens))(*tokens)
        status = llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(ids, len(tokens)))
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def _row(self) -> np.ndarray:
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(logits, shape=(self.n_vocab,)).copy()

    def _continue(self, count: int, n_prompt: int) -> Generated:
        rows = [self._row()]
        while len(rows) < count:
            self._decode([int(rows[-1].argmax())])
            rows.append(self._row())
        return Generated([int(row.argmax()) for row in rows], np.stack(rows), n_prompt)

    def generate(self, prompt: str, count: int) -> Generated:
        """`count` greedy tokens after a text prompt; an end token does not stop it."""
        self.clear()
        tokens = self.tokenize(prompt)
        self._decode(tokens)
        return self._continue(count, len(tokens))


class AudioSession(Session):
    """A session with a multimodal projector."""

    def __init__(self, model: Path, projector: Path, warmup: bool = False, **context: Any) -> None:
        super().__init__(model, **context)
        from llama_cpp import mtmd_cpp

        self._mtmd = mtmd_cpp
        mtmd_cpp.mtmd_helper_log_set(_SILENT, ctypes.c_void_p(0))
        params = mtmd_cpp.mtmd_context_params_default()
        params.use_gpu, params.warmup, params.n_threads = False, warmup, context.get("n_threads", 1)
        self.projector = mtmd_cpp.mtmd_init_from_file(str(projector).encode(), self.model, params)
        if not self.projector:
            raise RuntimeError(f"llama.cpp cannot load the projector {projector}")

    def __exit__(self, *unused: object) -> None:
        self._mtmd.mtmd_free(self.projector)
        super().__exit__(*unused)

    def listen(self, audio: Path, prompt: str, count: int) -> Generated:
        """`count` greedy tokens after a prompt that holds the media marker once."""
        mtmd = self._mtmd
        self.clear()
        bitmap = mtmd.mtmd_helper_bitmap_init_from_file(self.projector, str(audio).encode(), False)
        if not bitmap:
            raise RuntimeError(f"mtmd cannot read {audio}")
        chunks = mtmd.mtmd_input_chunks_init()
        raw = prompt.encode()
        text = mtmd.mtmd_input_text(text=raw, text_len=len(raw), add_special=True, parse_special=True)
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        past = llama_cpp.llama_pos(0)
        try:
            if mtmd.mtmd_tokenize(self.projector, chunks, ctypes.byref(text), bitmaps, 1) != 0:
                raise RuntimeError("mtmd_tokenize failed")
            status = mtmd.mtmd_helper_eval_chunks(
                self.projector, self.context, chunks, 0, 0, 512, True, ctypes.byref(past)
            )
            if status != 0:
                raise RuntimeError(f"mtmd_helper_eval_chunks returned {status}")
        finally:
            mtmd.mtmd_input_chunks_free(chunks)
            mtmd.mtmd_bitmap_free(bitmap)
        return self._continue(count, past.value)


def _main(model: str, prompt: str, count: str, *settings: str) -> None:
    context = {name: int(value) for name, _, value in (setting.partition("=") for setting in settings)}
    with Session(Path(model), **context) as session:
        made = session.generate(prompt, int(count))
    sys.stdout.write(json.dumps({"version": llama_cpp.__version__, "ids": made.ids, "n_prompt": made.n_prompt}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
