"""What this machine takes for a fixed piece of work, so that CPU seconds can be told as a ratio."""

from __future__ import annotations

import random
import statistics
import time

TEXTS = 4_000
_ROUNDS = 3
_SHINGLE = 5
_CHARACTERS = 100
_SEED = 17
_ALPHABET = "abcdefghijklmnopqrstuvwxyz     "


def yardstick() -> float:
    """CPU seconds of cutting a million short texts into sets of shingles, in plain Python.

    Fewer are cut, several times over, and the median counts.
    """
    chance = random.Random(_SEED)
    texts = ["".join(chance.choices(_ALPHABET, k=_CHARACTERS)) for _ in range(TEXTS)]
    return statistics.median(_seconds(texts) for _ in range(_ROUNDS)) / TEXTS * 1e6


def _seconds(texts: list[str]) -> float:
    began = time.process_time()
    for text in texts:
        {text[place : place + _SHINGLE] for place in range(len(text) - _SHINGLE + 1)}
    return time.process_time() - began
