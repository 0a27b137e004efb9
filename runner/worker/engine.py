"""A loaded model with its context: tokens in, logits out, through the low-level functions only."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .failure import WorkerFailure, bad_input
from .library import Library
from .parameters import Block, context_block, model_block
from .spec import Spec

__all__ = ["Engine"]

SEQUENCE = 0
_READ_BACK = ("n_ctx", "n_batch", "n_ubatch", "n_threads", "n_threads_batch")
_TEXT_BYTES = 256


class Kept(NamedTuple):
    """What lies in the memory before a prompt: where the prompt starts, and how many cells are taken."""

    position: int
    cells: int


class Engine:
    """Model, context and vocabulary of one trial."""

    def __init__(self, library: Library, spec: Spec) -> None:
        """Take the settings; nothing is loaded yet, but levels that this build refuses are refused."""
        self.library = library
        self._path = spec.model.path
        self._model_block = model_block(library, spec.settings)
        self._context_block = context_block(library, spec.settings)
        self.model: Any = None
        self.context: Any = None
        self._vocabulary: Any = None
        self._batch: Any = None
        self.kept = Kept(0, 0)

    @property
    def n_threads_asked(self) -> int:
        """Threads for single-token decoding, as handed to the library."""
        return int(self._context_block.block.n_threads)

    @property
    def parameters(self) -> Any:
        """The context's parameter block, which may be changed until the context is created."""
        return self._context_block.block

    # loading

    def load(self) -> None:
        """Load the model and create the context.

        Raises `WorkerFailure` of kind `load_failure`, or `out_of_memory`, with the library's last words.
        """
        library = self.library
        load_model = library.first("llama_model_load_from_file", "llama_load_model_from_file")
        self.model = load_model(os.fsencode(self._path), self._model_block.block)
        if not self.model:
            raise library.failure("model.path", f"model.path: {self._path} cannot be loaded")
        if library.has("llama_model_has_encoder") and library.api.llama_model_has_encoder(self.model):
            raise bad_input("model.path", "an encoder-decoder model; only decoders can be run")
        create = library.first("llama_init_from_model", "llama_new_context_with_model")
        self.context = create(self.model, self._context_block.block)
        if not self.context:
            raise library.failure("settings", "settings: the context cannot be created with these settings")
        self._bind()

    def _bind(self) -> None:
        """Look up what the loops below call, once."""
        first = self.library.first
        with_vocabulary = self.library.has("llama_model_get_vocab")
        self._vocabulary = first("llama_model_get_vocab")(self.model) if with_vocabulary else self.model
        self.n_vocab = int(first("llama_vocab_n_tokens", "llama_n_vocab")(self._vocabulary))
        self.n_ctx = int(first("llama_n_ctx")(self.context))
        self.n_batch = int(first("llama_n_batch")(self.context))
        self._row_type = ctypes.c_float * self.n_vocab
        self._decode = first("llama_decode")
        self._logits = first("llama_get_logits_ith")
        self._is_eog = first("llama_vocab_is_eog", "llama_token_is_eog")
        self._to_piece = first("llama_token_to_piece")
        self._batch = first("llama_batch_init")(self.n_batch, 0, 1)
        self._clear = self._find_clear()
        self._cells = self._find_cells()

    def close(self) -> None:
        """Free the context and the model, in this order."""
        first = self.library.first
        if self._batch is not None:
            first("llama_batch_free")(self._batch)
        if self.context:
            first("llama_free")(self.context)
        if self.model:
            first("llama_model_free", "llama_free_model")(self.model)

    # evidence

    def applied(self) -> dict[str, Any]:
        """Every model and context setting as the build has it: from the context, else from the block."""
        blocks: list[Block] = [self._model_block, self._context_block]
        held = {name: value for block in blocks for name, value in block.read().items()}
        getters = ((name, f"llama_{name}") for name in _READ_BACK)
        api = self.library.api
        return {
            **held,
            **{name: int(getattr(api, g)(self.context)) for name, g in getters if self.library.has(g)},
        }

    def evidence(self) -> dict[str, Any]:
        """Facts read back from the library about the model and the context."""
        first = self.library.first
        api = self.library.api
        applied = self.applied()
        told = self.library.has("llama_n_seq_max")
        return {
            **{name: applied[name] for name in _READ_BACK},
            "n_seq_max": int(api.llama_n_seq_max(self.context)) if told else None,
            "supports_gpu_offload": bool(first("llama_supports_gpu_offload")()),
            "n_layer": int(first("llama_model_n_layer", "llama_n_layer")(self.model)),
            "n_embd": self.n_embd,
            "n_vocab": self.n_vocab,
            "architecture": self._said(api.llama_model_meta_val_str, b"general.architecture"),
            "description": self._said(api.llama_model_desc),
        }

    @property
    def n_embd(self) -> int:
        """Width of the model's hidden state."""
        return int(self.library.first("llama_model_n_embd", "llama_n_embd")(self.model))

    @property
    def n_embd_input(self) -> int:
        """Width of the embeddings that the model takes as input, as the projector must deliver them."""
        names = ("llama_model_n_embd_inp", "llama_model_n_embd", "llama_n_embd")
        return int(self.library.first(*names)(self.model))

    def _said(self, function: Any, *arguments: Any) -> str | None:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        length = function(self.model, *arguments, buffer, _TEXT_BYTES)
        return buffer.value.decode("utf-8", "replace") if length >= 0 else None

    # memory

    def _find_clear(self) -> Callable[[], Any]:
        api, context = self.library.api, self.context
        if self.library.has("llama_memory_clear"):
            return lambda: api.llama_memory_clear(api.llama_get_memory(context), True)
        clear = self.library.first("llama_kv_self_clear", "llama_kv_cache_clear")
        return lambda: clear(context)

    def _find_cells(self) -> Callable[[], int] | None:
        api, context = self.library.api, self.context
        if self.library.has("llama_memory_seq_pos_max"):
            return lambda: int(api.llama_memory_seq_pos_max(api.llama_get_memory(context), SEQUENCE)) + 1
        for name in ("llama_kv_self_used_cells", "llama_get_kv_cache_used_cells"):
            if self.library.has(name):
                used = getattr(api, name)
                return lambda: int(used(context))
        return None

    def clear_memory(self) -> None:
        """Forget all tokens, cache contents included."""
        self._clear()
        self.kept = Kept(0, 0)

    def keep_memory(self, position: int, cells: int) -> None:
        """Forget nothing: the next prompt starts at `position`, after `cells` cells that stay in use."""
        self.kept = Kept(position, cells)

    def cells_in_use(self) -> int | None:
        """Cache cells that the library says are in use, or null where the build cannot say."""
        return None if self._cells is None else self._cells()

    # tokens

    def tokenize(self, text: str, add_special: bool) -> list[int]:
        """Token ids of `text`; markup of special tokens is recognised, as the binding's own class does."""
        tokenize = self.library.first("llama_tokenize")
        encoded = text.encode()
        room = len(encoded) + 8
        while True:
            buffer = (ctypes.c_int32 * room)()
            count = tokenize(self._vocabulary, encoded, len(encoded), buffer, room, add_special, True)
            if count >= 0:
                return list(buffer[:count])
            if -count <= room:
                raise bad_input("probe.prompt", f"cannot be tokenized; llama_tokenize returned {count}")
            room = -count

    def piece(self, token: int) -> bytes:
        """Bytes of one token, special tokens rendered."""
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            length = self._to_piece(self._vocabulary, token, buffer, room, 0, True)
            if length >= 0:
                return buffer.raw[:length]
            room = -length

    def ends_generation(self, token: int) -> bool:
        """Whether the model ends its answer with this token."""
        return bool(self._is_eog(self._vocabulary, token))

    def _special(self, *names: str) -> int:
        return int(self.library.first(*names)(self._vocabulary))

    # evaluation

    def decode(self, tokens: Sequence[int], position: int, *, want_logits: bool) -> int:
        """Evaluate at most `n_batch` tokens from `position` on; logits of the last one only, if wanted.

        Returns the library's own code, 0 for success.
        """
        batch = self._batch
        batch.n_tokens = len(tokens)
        ids, positions, outputs = batch.token, batch.pos, batch.logits
        counts, sequences = batch.n_seq_id, batch.seq_id
        for index, token in enumerate(tokens):
            ids[index] = token
            positions[index] = position + index
            counts[index] = 1
            sequences[index][0] = SEQUENCE
            outputs[index] = 0
        outputs[len(tokens) - 1] = want_logits
        return int(self._decode(self.context, batch))

    def logits(self) -> Any:
        """The last position's logits row as a ctypes array of `n_vocab` floats, valid until the next decode.

        Raises `WorkerFailure` of kind `backend_error` if the library has none.
        """
        row = self._logits(self.context, -1)
        if not row:
            raise WorkerFailure("backend_error", "logits", "the library has no logits for the last position")
        return self._row_type.from_address(ctypes.addressof(row.contents))

    def warm_up(self) -> None:
        """One evaluation of the begin and end tokens, then memory cleared, as llama.cpp's own tools do.

        Raises `WorkerFailure` of kind `backend_error` if the evaluation fails.
        """
        special = (
            self._special("llama_vocab_bos", "llama_token_bos"),
            self._special("llama_vocab_eos", "llama_token_eos"),
        )
        tokens = [token for token in special if token >= 0][: self.n_batch] or [0]
        self._set_warmup(True)
        code = self.decode(tokens, 0, want_logits=True)
        if code != 0:
            raise self.library.failure("warmup", f"llama_decode returned {code} in the warm-up", "backend_error")
        self.clear_memory()
        self.library.first("llama_synchronize")(self.context)
        self._set_warmup(False)

    def _set_warmup(self, on: bool) -> None:
        if self.library.has("llama_set_warmup"):
            self.library.api.llama_set_warmup(self.context, on)
