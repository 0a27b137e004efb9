"""Settings turned into the library's parameter blocks, and read back from them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .library import Library, field_names

__all__ = ["Block", "context_block", "model_block", "projector_block"]


class Codec(NamedTuple):
    """How a setting's value is written into a field of the library, and read from it.

    `encode` returns null for a level that the field cannot express.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class Field(NamedTuple):
    """A setting and the fields that carried it over time, newest spelling first."""

    setting: str
    spellings: tuple[tuple[str, Codec], ...]


def _choice(codes: dict[Any, int], more: dict[int, Any] | None = None) -> Codec:
    names = {**{code: name for name, code in codes.items()}, **(more or {})}
    return Codec(codes.get, lambda code: names.get(int(code), str(code)))


ALL_LAYERS = 0x7FFFFFFF
"""What the binding's own class hands over for -1: releases disagree on what a negative count means."""

_PLAIN = Codec(int, int)
_BOOL = Codec(bool, bool)
_LAYERS = Codec(
    lambda n: ALL_LAYERS if n < 0 else n,
    lambda n: -1 if n < 0 or n == ALL_LAYERS else int(n),
)
_SPLIT = _choice({"none": 0, "layer": 1, "row": 2}, {3: "tensor"})
_LOAD_MODE = _choice({False: 0, True: 1}, {-1: "auto", 2: "mlock", 3: "mmap and mlock", 4: "direct"})
_FLASH_TYPE = _choice({"auto": -1, "off": 0, "on": 1})
_FLASH_BOOL = Codec({"off": False, "on": True}.get, lambda on: "on" if on else "off")
_DEVICE = Codec({"cpu": False, "gpu": True}.get, lambda on: "gpu" if on else "cpu")

_CACHE_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}  # enum ggml_type; its numbers never change
_CACHE = _choice(dict(_CACHE_TYPES))


def _same(name: str, codec: Codec) -> Field:
    return Field(name, ((name, codec),))


MODEL_FIELDS = (
    _same("n_gpu_layers", _LAYERS),
    _same("split_mode", _SPLIT),
    _same("main_gpu", _PLAIN),
    Field("use_mmap", (("load_mode", _LOAD_MODE), ("use_mmap", _BOOL))),
)
CONTEXT_FIELDS = (
    _same("n_ctx", _PLAIN),
    _same("n_batch", _PLAIN),
    _same("n_ubatch", _PLAIN),
    _same("n_threads", _PLAIN),
    _same("n_threads_batch", _PLAIN),
    Field("flash_attn", (("flash_attn_type", _FLASH_TYPE), ("flash_attn", _FLASH_BOOL))),
    _same("type_k", _CACHE),
    _same("type_v", _CACHE),
    _same("offload_kqv", _BOOL),
    Field("op_offload", (("op_offload", _BOOL), ("op_offloat", _BOOL))),  # misspelt in 0.3.12 to 0.3.14
    _same("swa_full", _BOOL),
    _same("kv_unified", _BOOL),
)
PROJECTOR_FIELDS = (
    Field("projector_device", (("use_gpu", _DEVICE),)),
    Field("projector_warmup", (("warmup", _BOOL),)),
)


class Block:
    """A parameter block of the library, with the settings that it holds."""

    def __init__(self, library: Library, block: Any, fields: tuple[Field, ...]) -> None:
        self.block = block
        self._library = library
        self._fields = fields
        self._present = field_names(block)

    def _spelling(self, field: Field) -> tuple[str, Codec] | None:
        return next((spelling for spelling in field.spellings if spelling[0] in self._present), None)

    def write(self, settings: Mapping[str, Any]) -> None:
        """Write the settings that are set.

        Raises `WorkerFailure` of kind `refused` for a setting or a level that this build does not have.
        """
        for field in self._fields:
            value = settings[field.setting]
            if value is None:
                continue
            spelling = self._spelling(field)
            if spelling is None:
                raise self._library.refusal(field.setting, "has no such setting; leave it unset or use another build")
            name, codec = spelling
            code = codec.encode(value)
            if code is None:
                raise self._library.refusal(field.setting, f"does not know the level {value!r}")
            setattr(self.block, name, code)

    def read(self) -> dict[str, Any]:
        """What the block holds now, by setting; null for settings that this build does not have."""
        held = ((field.setting, self._spelling(field)) for field in self._fields)
        return {
            setting: None if spelling is None else spelling[1].decode(getattr(self.block, spelling[0]))
            for setting, spelling in held
        }


class ModelBlock(Block):
    """Model parameters; also holds the shares of `tensor_split`, which the library reads by pointer."""

    _shares: Any | None = None

    def write(self, settings: Mapping[str, Any]) -> None:
        """Write the settings that are set; see `Block.write`."""
        super().write(settings)
        shares = settings["tensor_split"]
        if shares is None:
            return
        most = int(self._library.first("llama_max_devices")())
        if len(shares) > most:
            raise self._library.refusal("tensor_split", f"splits over at most {most} devices, not {len(shares)}")
        self._shares = (ctypes.c_float * max(most, 1))(*shares)
        self.block.tensor_split = ctypes.cast(self._shares, ctypes.POINTER(ctypes.c_float))
        self._n_shares = len(shares)

    def read(self) -> dict[str, Any]:
        """What the block holds now; see `Block.read`."""
        shares = None if self._shares is None else [round(s, 6) for s in self._shares[: self._n_shares]]
        return {**super().read(), "tensor_split": shares}


def model_block(library: Library, settings: Mapping[str, Any]) -> Block:
    """Model parameters of a trial."""
    block = ModelBlock(library, library.first("llama_model_default_params")(), MODEL_FIELDS)
    block.write(settings)
    return block


def context_block(library: Library, settings: Mapping[str, Any]) -> Block:
    """Context parameters of a trial.

    Unset thread counts are those of the binding's own class (half the CPUs, all of them for batches), since
    the library's default of 4 is nobody's choice.
    """
    block = Block(library, library.first("llama_context_default_params")(), CONTEXT_FIELDS)
    cpus = os.cpu_count() or 1
    block.block.n_threads = max(cpus // 2, 1)
    block.block.n_threads_batch = cpus
    _check_cache_types(library, settings)
    block.write(settings)
    return block


def projector_block(library: Library, defaults: Any, settings: Mapping[str, Any]) -> Block:
    """Projector parameters of a trial, from the projector library's own defaults."""
    block = Block(library, defaults, PROJECTOR_FIELDS)
    block.write(settings)
    return block


def _check_cache_types(library: Library, settings: Mapping[str, Any]) -> None:
    """The numbers of the cache types are ours; the library must agree on their names."""
    type_name = library.raw("ggml_type_name", ctypes.c_char_p, ctypes.c_int)
    for setting in ("type_k", "type_v"):
        level = settings[setting]
        if level is None:
            continue
        code = _CACHE_TYPES.get(level)
        if code is None or (type_name is not None and type_name(code) != level.encode()):
            known = ", ".join(_CACHE_TYPES)
            raise library.refusal(setting, f"has no cache type {level!r}; known are {known}")
