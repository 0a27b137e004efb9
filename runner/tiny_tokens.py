"""A vocabulary for the embedded models: byte-level BPE, so that every text goes in and comes out unchanged.

The merges are learned from a short public-domain text (Lincoln's Gettysburg address of 1863 and the close of
Kennedy's inaugural address of 1961) when the model is written; ties are broken by spelling, so the result never
depends on the machine.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass

__all__ = ["BOS", "EOS", "Vocabulary", "learn_vocabulary"]

BOS = "<|begin|>"
EOS = "<|end_of_text|>"
_AUDIO = ("<|audio_bos|>", "<|audio_eos|>")
"""What mtmd puts around the embeddings of a `qwen2a` projector."""

_TEXT = """
Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in Liberty,
and dedicated to the proposition that all men are created equal. Now we are engaged in a great civil war, testing
whether that nation, or any nation so conceived and so dedicated, can long endure. We are met on a great
battle-field of that war. We have come to dedicate a portion of that field, as a final resting place for those who
here gave their lives that that nation might live. It is altogether fitting and proper that we should do this. But,
in a larger sense, we can not dedicate -- we can not consecrate -- we can not hallow -- this ground. The brave men,
living and dead, who struggled here, have consecrated it, far above our poor power to add or detract. The world will
little note, nor long remember what we say here, but it can never forget what they did here. It is for us the
living, rather, to be dedicated here to the unfinished work which they who fought here have thus far so nobly
advanced. It is rather for us to be here dedicated to the great task remaining before us -- that from these honored
dead we take increased devotion to that cause for which they gave the last full measure of devotion -- that we here
highly resolve that these dead shall not have died in vain -- that this nation, under God, shall have a new birth of
freedom -- and that government of the people, by the people, for the people, shall not perish from the earth.
And so, my fellow Americans: ask not what your country can do for you -- ask what you can do for your country. My
fellow citizens of the world: ask not what America will do for you, but what together we can do for the freedom of
man. Finally, whether you are citizens of America or citizens of the world, ask of us the same high standards of
strength and sacrifice which we ask of you. With a good conscience our only sure reward, with history the final
judge of our deeds, let us go forth to lead the land we love, asking His blessing and His help, but knowing that
here on earth God's work must truly be our own.
"""

_WORD = re.compile(r" ?[A-Za-z]+| ?[^\sA-Za-z]+")


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in id order, spelled with GPT-2's printable stand-ins for bytes.

    `special` holds the ids of control tokens and `speakable` those that a generated text may hold: every learned
    token and every printable ASCII byte, so no broken UTF-8, no control byte and no media marker.
    """

    tokens: tuple[str, ...]
    merges: tuple[str, ...]
    special: frozenset[int]
    speakable: frozenset[int]

    def __len__(self) -> int:
        return len(self.tokens)

    def index(self, token: str) -> int:
        """Id of a token."""
        return self.tokens.index(token)


def _byte_letters() -> list[str]:
    """GPT-2's reversible map from byte to printable character (encoder.py of openai/gpt-2)."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = (chr(0x100 + n) for n in range(0x100))
    return [chr(byte) if byte in plain else next(spare) for byte in range(0x100)]


def _joined(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    parts: list[str] = []
    for part in word:
        if parts and (parts[-1], part) == pair:
            parts[-1] += part
        else:
            parts.append(part)
    return tuple(parts)


def _learn_merges(letters: list[str], count: int) -> list[tuple[str, str]]:
    words = Counter(tuple(letters[byte] for byte in word.encode()) for word in _WORD.findall(_TEXT.replace("\n", " ")))
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += times
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = Counter({_joined(word, best): times for word, times in words.items()})
    return merges


def learn_vocabulary(size: int) -> Vocabulary:
    """A vocabulary of `size` tokens: control tokens, 256 bytes, then learned merges.

    `size` may be 300 to 700; the text holds no more merges than that.
    """
    letters = _byte_letters()
    control = [BOS, EOS, *_AUDIO]
    merges = _learn_merges(letters, size - len(control) - len(letters))
    tokens = [*control, *letters, *(left + right for left, right in merges)]
    learned = range(len(control) + len(letters), size)
    printable = (len(control) + byte for byte in range(0x20, 0x7F))
    return Vocabulary(
        tokens=tuple(tokens),
        merges=tuple(f"{left} {right}" for left, right in merges),
        special=frozenset(range(len(control))),
        speakable=frozenset({*learned, *printable}),
    )
