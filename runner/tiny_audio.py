"""A synthesised recording for audio trials: the same bytes on every machine.

Only additions and products of float64 are used, which IEEE 754 rounds alike everywhere; a sine from a C library may
differ in its last bit.
"""

from __future__ import annotations

import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .tiny_random import Stream

__all__ = ["RATE_HZ", "TINY_SOUND", "Sound", "samples", "write_wav"]

RATE_HZ = 16_000

_Signal = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sound:
    """A recording of `syllables` syllables of a third of a second each, in an order drawn from `seed`."""

    seed: int
    syllables: int = 15


TINY_SOUND = Sound(seed=1)

_SYLLABLE = 5_120
_FORMANTS_HZ = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410))
"""First three formants of five vowels of men, from Peterson and Barney, J. Acoust. Soc. Am. 24 (1952), table II."""


def _sine(turns: _Signal) -> _Signal:
    """Sine of an angle in turns, by a parabola and its corrected square; error below 0.0012."""
    centred = turns - np.floor(turns) - 0.5
    parabola = 16.0 * centred * (np.abs(centred) - 0.5)
    return parabola * (0.775 + 0.225 * np.abs(parabola))


def _voiced(choice: npt.NDArray[np.int64]) -> _Signal:
    """A vowel: three formants, each a burst per glottal pulse, under a falling pitch."""
    time = np.arange(_SYLLABLE, dtype=np.float64) / RATE_HZ
    pitch = 100.0 + 10.0 * float(choice[1] % 10)
    turns = (pitch - 0.25 * pitch * time) * time
    within = turns - np.floor(turns)
    decay = (1.0 - within) * (1.0 - within) * (1.0 - within)
    signal = np.zeros(_SYLLABLE)
    for strength, formant in zip((1.0, 0.5, 0.25), _FORMANTS_HZ[int(choice[0]) % len(_FORMANTS_HZ)], strict=True):
        signal += strength * _sine(formant * within / pitch)
    return signal * decay


def _chirp(choice: npt.NDArray[np.int64]) -> _Signal:
    """A tone that glides from one frequency to another."""
    time = np.arange(_SYLLABLE, dtype=np.float64) / RATE_HZ
    start, stop = 200.0 + 150.0 * float(choice[0] % 12), 400.0 + 300.0 * float(choice[1] % 20)
    glide = (stop - start) * RATE_HZ / _SYLLABLE / 2.0
    return _sine((start + glide * time) * time)


def _hiss(sound: Sound, number: int) -> _Signal:
    """Noise with the low frequencies removed, as in /s/."""
    noise = Stream(sound.seed).bell(f"hiss/{number}", (_SYLLABLE + 1,), 0.5).astype(np.float64)
    return noise[1:] - 0.9 * noise[:-1]


def samples(sound: Sound) -> npt.NDArray[np.int16]:
    """The recording: 16-bit mono samples at `RATE_HZ`."""
    ramp = np.minimum(np.arange(_SYLLABLE), np.arange(_SYLLABLE)[::-1]) / 800.0
    envelope = np.minimum(ramp, 1.0)
    choices = (Stream(sound.seed).bell("syllables", (sound.syllables, 3), 1000.0) + 100_000.0).astype(np.int64)
    parts: list[_Signal] = []
    for number, row in enumerate(choices):
        kind = int(row[2]) % 5
        part = _hiss(sound, number) if kind == 0 else _chirp(row) if kind == 1 else _voiced(row)
        parts.append(part * envelope)
    return np.rint(np.clip(np.concatenate(parts) * 9000.0, -32767.0, 32767.0)).astype("<i2")


def write_wav(path: Path, sound: Sound) -> None:
    """Write the recording as a 16 kHz, 16-bit, mono WAV file."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes(samples(sound).tobytes())
