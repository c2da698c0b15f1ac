"""Model folders and texts for them, made of nothing: words of a vocabulary in any order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipelines.models.folder import start_card, write_encoder
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import Weights
from pipelines.tokens.vocabulary import SPECIAL_TOKENS, save_wordpieces


def write_model(folder: Path, spec: EncoderSpec, weights: Weights) -> Path:
    """A sentence-transformers folder whose vocabulary has as many words as the spec says.

    Args:
        folder: Is filled.
    """
    tokenizer = folder.parent / f"{folder.name}-tokenizer"
    tokenizer.mkdir(parents=True)
    pieces = [*SPECIAL_TOKENS, *map(word, range(spec.vocabulary - len(SPECIAL_TOKENS)))]
    save_wordpieces(tokenizer, pieces, spec.max_length, lowercase=True)
    write_encoder(folder, spec, weights, tokenizer, start_card(spec))
    return folder


def word(number: int) -> str:
    """One of the vocabulary's words, which is a token."""
    return f"w{number}"


def sentences(lengths: Sequence[int], vocabulary: int, seed: int = 1) -> list[str]:
    """Texts of so many words."""
    generator = np.random.default_rng(seed)
    words = vocabulary - len(SPECIAL_TOKENS)
    return [" ".join(map(word, generator.integers(0, words, length))) for length in lengths]
