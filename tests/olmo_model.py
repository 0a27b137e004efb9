"""A tiny random model of OLMo architecture whose query, key and value clamp really bites.

llama-cpp-python 0.3.7 computes `GGML_OP_CLAMP` in thread 0 only, so prompts that run on several threads use stale
queries, keys and values. `python tests/olmo_model.py MODEL.gguf` writes the file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
from isomatrix.runner.tiny_random import Float32, Stream
from isomatrix.runner.tiny_tokens import BOS, EOS, learn_vocabulary

__all__ = ["CLAMP", "write_olmo_model"]

CLAMP = 0.3
"""`olmo.attention.clamp_kqv`. Queries, keys and values have deviation 1 before it: three quarters are cut."""

_VOCABULARY = 512
_WIDTH = 128
_BLOCKS = 2
_HEADS = 4
_INNER = 256


def _tensors(seed: int) -> Iterator[tuple[str, Float32]]:
    stream = Stream(seed)

    def matrix(name: str, gain: float, rows: int, columns: int) -> tuple[str, Float32]:
        return name, stream.bell(name, (rows, columns), gain / float(np.sqrt(columns)))

    yield "token_embd.weight", stream.bell("token_embd.weight", (_VOCABULARY, _WIDTH), 1.0)
    for block in range(_BLOCKS):
        for part in ("q", "k", "v"):
            yield matrix(f"blk.{block}.attn_{part}.weight", 1.0, _WIDTH, _WIDTH)
        # clamped values are small, and attention averages them: the gain makes up for both
        yield matrix(f"blk.{block}.attn_output.weight", 8.0, _WIDTH, _WIDTH)
        yield matrix(f"blk.{block}.ffn_gate.weight", 2.0, _INNER, _WIDTH)
        yield matrix(f"blk.{block}.ffn_up.weight", 1.0, _INNER, _WIDTH)
        yield matrix(f"blk.{block}.ffn_down.weight", 1.0, _WIDTH, _INNER)
    yield matrix("output.weight", 3.0, _VOCABULARY, _WIDTH)


def write_olmo_model(path: Path, seed: int = 1, clamp: float = CLAMP) -> None:
    """Write a model of 2 blocks, 128 wide, 4 heads, float32, with a vocabulary of 512 tokens."""
    vocabulary = learn_vocabulary(_VOCABULARY)
    writer = gguf.GGUFWriter(path, "olmo")
    writer.add_name("tiny random OLMo")
    writer.add_context_length(2048)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_BLOCKS)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_eps(1e-5)
    writer.add_clamp_kqv(clamp)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types([3 if token in vocabulary.special else 1 for token in range(len(vocabulary))])
    writer.add_token_merges(list(vocabulary.merges))
    writer.add_bos_token_id(vocabulary.index(BOS))
    writer.add_eos_token_id(vocabulary.index(EOS))
    writer.add_add_bos_token(True)
    for name, values in _tensors(seed):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write_olmo_model(Path(sys.argv[1]))
