"""Weights and metadata of the embedded models, as GGUF files.

The scales are chosen so that greedy output is varied and depends on the whole prompt: `docs/tiny-models.md` says how
that was checked and what each number is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from .tiny_random import Float32, Stream
from .tiny_tokens import BOS, EOS, Vocabulary, learn_vocabulary

__all__ = [
    "TINY",
    "TINY_MOE",
    "TINY_PROJECTOR",
    "ProjectorShape",
    "TextShape",
    "write_projector",
    "write_text_model",
]

Tensors = Iterator[tuple[str, Float32]]

_MUTE = 4.0
"""How far below the others the logits of muted tokens lie, in deviations times the constant channel's value."""

_STRIDE = 7
"""Step between named tokens, so that few units still name words, letters and signs."""


@dataclass(frozen=True)
class TextShape:
    """Sizes, scales and seed of a text model. Scales are standard deviations relative to a normalised input."""

    seed: int
    n_vocab: int = 640
    n_ctx: int = 8192
    n_embd: int = 128
    n_layer: int = 4
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 64
    n_ff: int = 384
    n_expert: int = 0
    n_expert_used: int = 0
    query_gain: float = 1.0
    value_gain: float = 1.0
    distance_gain: float = 0.5
    gate_gain: float = 2.0
    ffn_gain: float = 1.0
    router_gain: float = 3.0
    echo: float = 1.2
    output_gain: float = 2.0
    anchor: float = 4.0


@dataclass(frozen=True)
class ProjectorShape:
    """Sizes, scales and seed of a Qwen2-Audio-style projector: a Whisper encoder and one linear layer."""

    seed: int
    n_embd_text: int = 128
    n_mel: int = 128
    n_embd: int = 128
    n_layer: int = 2
    n_head: int = 2
    n_ff: int = 256
    n_positions: int = 1500
    conv_gain: float = 2.0
    query_gain: float = 2.0
    value_gain: float = 3.0
    position_gain: float = 2.0
    output_gain: float = 1.0
    anchor: float = 4.0


# The seeds are the best of some hundreds by the measures in docs/tiny-models.md.
TINY = TextShape(seed=63)
TINY_MOE = TextShape(seed=34, n_ff=64, n_expert=8, n_expert_used=6)
TINY_PROJECTOR = ProjectorShape(seed=25)


class _Draw:
    """Named random matrices whose last axis is the input, scaled by its size."""

    def __init__(self, seed: int) -> None:
        self._stream = Stream(seed)

    def __call__(self, name: str, gain: float, *shape: int, fan_in: int | None = None) -> Float32:
        return self._stream.bell(name, shape, gain / float(np.sqrt(fan_in or shape[-1])))


def _silent(weights: Float32, axis: int) -> Float32:
    """Zeros for channel 0, which carries a constant through the whole model (see `TextShape.anchor`)."""
    np.moveaxis(weights, axis, 0)[0] = 0
    return weights


def _add_distance_heads(weights: Float32, shape: TextShape, signs: tuple[float, ...]) -> Float32:
    """Let head `i` score a key by its distance alone, times `signs[i]`, through the constant channel.

    With the same constant in every rotary pair of query and key, the score is the mean cosine over all rotary
    frequencies: greatest at distance 0, falling with its logarithm. A positive sign makes a head that looks at the
    latest tokens, a negative one a head that looks at the beginning (of the prompt, or of a recording).
    """
    for head, sign in enumerate(signs):
        first = head * shape.head_dim
        weights[first : first + shape.head_dim : 2, 0] = sign * shape.distance_gain
    return weights


def _attention(shape: TextShape, draw: _Draw, block: str) -> Tensors:
    embd, wide = shape.n_embd, shape.n_head * shape.head_dim
    narrow = shape.n_head_kv * shape.head_dim
    yield f"{block}.attn_norm.weight", np.ones(embd, np.float32)
    for part, rows, gain, signs in (
        ("q", wide, shape.query_gain, (1.0, -1.0)),
        ("k", narrow, shape.query_gain, (1.0,)),
        ("v", narrow, shape.value_gain, ()),
    ):
        name = f"{block}.attn_{part}.weight"
        yield name, _add_distance_heads(_silent(draw(name, gain, rows, embd), 1), shape, signs)
    name = f"{block}.attn_output.weight"
    yield name, _silent(draw(name, 1.0, embd, wide), 0)


def _dense_ffn(shape: TextShape, draw: _Draw, block: str) -> Tensors:
    for part, gain in (("gate", shape.gate_gain), ("up", 1.0)):
        name = f"{block}.ffn_{part}.weight"
        yield name, _silent(draw(name, gain, shape.n_ff, shape.n_embd), 1)
    name = f"{block}.ffn_down.weight"
    yield name, _silent(draw(name, shape.ffn_gain, shape.n_embd, shape.n_ff), 0)


def _expert_ffn(shape: TextShape, draw: _Draw, block: str) -> Tensors:
    experts, embd, inner = shape.n_expert, shape.n_embd, shape.n_ff
    name = f"{block}.ffn_gate_inp.weight"
    yield name, _silent(draw(name, shape.router_gain, experts, embd), 1)
    for part, gain in (("gate", shape.gate_gain), ("up", 1.0)):
        name = f"{block}.ffn_{part}_exps.weight"
        yield name, _silent(draw(name, gain, experts, inner, embd), 2)
    name = f"{block}.ffn_down_exps.weight"
    yield name, _silent(draw(name, shape.ffn_gain, experts, embd, inner), 1)


def _output_head(shape: TextShape, vocabulary: Vocabulary, draw: _Draw) -> Float32:
    """Random rows; those of tokens that no text should hold are pushed down through the constant channel."""
    head = _silent(draw("output.weight", shape.output_gain, len(vocabulary), shape.n_embd), 1)
    mute = set(range(len(vocabulary))) - vocabulary.speakable - {vocabulary.index(EOS)}
    head[sorted(mute), 0] = -_MUTE * shape.output_gain
    return head


def _naming_units(head: Float32, vocabulary: Vocabulary, echo: float, shape: tuple[int, ...]) -> Float32:
    """Down matrices whose columns are rows of the output head: a hidden unit that fires names one token.

    This gives the logits the heavy upper tail of a trained model. Purely Gaussian logits have a top-2 margin of
    about 0.28 deviations, too near to numeric noise.
    """
    speakable = np.array(sorted(vocabulary.speakable))
    units = int(np.prod(shape)) // head.shape[1]
    named = head[speakable[np.arange(units) * _STRIDE % len(speakable)]] * np.float32(echo)
    return np.ascontiguousarray(np.moveaxis(named.reshape(*shape[:-2], shape[-1], shape[-2]), -1, -2))


def _text_tensors(shape: TextShape, vocabulary: Vocabulary) -> Tensors:
    draw = _Draw(shape.seed)
    embeddings = draw("token_embd.weight", 1.0, len(vocabulary), shape.n_embd, fan_in=1)
    embeddings[:, 0] = shape.anchor
    yield "token_embd.weight", embeddings
    head = _output_head(shape, vocabulary, draw)
    ffn = _expert_ffn if shape.n_expert else _dense_ffn
    for layer in range(shape.n_layer):
        block = f"blk.{layer}"
        yield from _attention(shape, draw, block)
        yield f"{block}.ffn_norm.weight", np.ones(shape.n_embd, np.float32)
        for name, weights in ffn(shape, draw, block):
            names_tokens = layer == shape.n_layer - 1 and "ffn_down" in name
            yield name, _naming_units(head, vocabulary, shape.echo, weights.shape) if names_tokens else weights
    yield "output_norm.weight", np.ones(shape.n_embd, np.float32)
    yield "output.weight", head


def _add_vocabulary(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    kinds = [
        gguf.TokenType.CONTROL if token in vocabulary.special else gguf.TokenType.NORMAL
        for token in range(len(vocabulary))
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types(kinds)
    writer.add_token_merges(list(vocabulary.merges))
    writer.add_bos_token_id(vocabulary.index(BOS))
    writer.add_eos_token_id(vocabulary.index(EOS))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)


_ALWAYS_F32 = (
    ".bias",
    "norm.weight",
    "ln.weight",
    "ln1.weight",
    "ln2.weight",
    "gate_inp.weight",
    "position_embd.weight",
)


def _add_tensors(writer: gguf.GGUFWriter, tensors: Tensors, kind: gguf.GGMLQuantizationType) -> None:
    """Matrices in the type asked for; norms, biases, positions and the router in float32, as llama.cpp does."""
    for name, values in tensors:
        stored = gguf.GGMLQuantizationType.F32 if name.endswith(_ALWAYS_F32) else kind
        writer.add_tensor(name, gguf.quants.quantize(values, stored), raw_dtype=stored)


def _write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_text_model(path: Path, shape: TextShape, kind: str, name: str) -> None:
    """Write a llama-architecture model (a mixture of experts where `n_expert` is not 0).

    `kind` is the type of the matrices by its ggml name: F32, F16 or Q8_0.
    """
    vocabulary = learn_vocabulary(shape.n_vocab)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_vocab_size(shape.n_vocab)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    if shape.n_expert:
        writer.add_expert_count(shape.n_expert)
        writer.add_expert_used_count(shape.n_expert_used)
    _add_vocabulary(writer, vocabulary)
    _add_tensors(writer, _text_tensors(shape, vocabulary), gguf.GGMLQuantizationType[kind])
    _write(writer)


def _encoder_block(shape: ProjectorShape, draw: _Draw, block: str) -> Tensors:
    embd = shape.n_embd
    for norm in ("ln1", "ln2"):
        yield f"{block}.{norm}.weight", np.ones(embd, np.float32)
        yield f"{block}.{norm}.bias", np.zeros(embd, np.float32)
    for part, gain in (("q", shape.query_gain), ("k", shape.query_gain), ("v", shape.value_gain), ("out", 1.0)):
        name = f"{block}.attn_{part}"
        yield f"{name}.weight", draw(f"{name}.weight", gain, embd, embd)
        if part != "k":  # Whisper's keys have no bias, and llama.cpp asserts that
            yield f"{name}.bias", draw(f"{name}.bias", 0.1, embd, fan_in=1)
    for part, rows, columns in (("up", shape.n_ff, embd), ("down", embd, shape.n_ff)):
        name = f"{block}.ffn_{part}"
        yield f"{name}.weight", draw(f"{name}.weight", 1.5, rows, columns)
        yield f"{name}.bias", draw(f"{name}.bias", 0.1, rows, fan_in=1)


def _projector_tensors(shape: ProjectorShape) -> Tensors:
    draw = _Draw(shape.seed)
    for number, inputs in ((1, shape.n_mel), (2, shape.n_embd)):
        name = f"a.conv1d.{number}"
        yield f"{name}.weight", draw(f"{name}.weight", shape.conv_gain, shape.n_embd, inputs, 3, fan_in=3 * inputs)
        # one value per channel, shaped so that it spreads over the frames
        yield f"{name}.bias", draw(f"{name}.bias", 0.1, shape.n_embd, 1, fan_in=1)
    name = "a.position_embd.weight"
    yield name, draw(name, shape.position_gain, shape.n_positions, shape.n_embd, fan_in=1)
    for layer in range(shape.n_layer):
        yield from _encoder_block(shape, draw, f"a.blk.{layer}")
    yield "a.post_ln.weight", np.ones(shape.n_embd, np.float32)
    yield "a.post_ln.bias", np.zeros(shape.n_embd, np.float32)
    yield "mm.a.fc.weight", _silent(draw("mm.a.fc.weight", shape.output_gain, shape.n_embd_text, shape.n_embd), 0)
    bias = np.zeros(shape.n_embd_text, np.float32)
    bias[0] = shape.anchor
    yield "mm.a.fc.bias", bias


def write_projector(path: Path, shape: ProjectorShape, name: str) -> None:
    """Write an audio projector of type `qwen2a` whose output is `n_embd_text` wide, with F16 matrices.

    Keys and tensor names as llama.cpp's `tools/mtmd/clip.cpp` reads them.
    """
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_name(name)
    writer.add_type("mmproj")
    writer.add_bool("clip.has_audio_encoder", True)
    writer.add_bool("clip.has_vision_encoder", False)
    writer.add_string("clip.projector_type", "qwen2a")
    writer.add_string("clip.audio.projector_type", "qwen2a")
    writer.add_uint32("clip.audio.num_mel_bins", shape.n_mel)
    writer.add_uint32("clip.audio.embedding_length", shape.n_embd)
    writer.add_uint32("clip.audio.feed_forward_length", shape.n_ff)
    writer.add_uint32("clip.audio.block_count", shape.n_layer)
    writer.add_uint32("clip.audio.attention.head_count", shape.n_head)
    writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)
    writer.add_uint32("clip.audio.projection_dim", shape.n_embd_text)
    _add_tensors(writer, _projector_tensors(shape), gguf.GGMLQuantizationType.F16)
    _write(writer)
