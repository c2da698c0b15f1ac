"""A static encoder that begins with what another encoder makes of each word alone.

It is weak, and a far better start for learning from that encoder than random numbers are: words
that the training texts have seldom or never keep what they mean.

Source: Tulkens and van Dongen, "Model2Vec: Fast State-of-the-Art Static Embeddings", 2024,
doi:10.5281/zenodo.17270888, with its weights by Zipf's law. There the vectors are turned to their
principal axes, which a student whose targets are the encoder's own vectors must not be.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from pipelines.errors import InputError
from pipelines.models.adaptation import KEY
from pipelines.models.inference.backends import token_embedder
from pipelines.models.inference.batches import embed_token_ids
from pipelines.models.spec import EncoderSpec
from pipelines.models.static.spec import StaticSpec
from pipelines.models.weights import WORDS, Weights
from pipelines.progress import activity
from pipelines.tokens.encoding import special_ends
from pipelines.tokens.vocabulary import load_tokenizer

WORDS_AT_ONCE = 4096


def static_spec(spec: EncoderSpec) -> StaticSpec:
    """The shape of the static encoder of another one."""
    return StaticSpec(
        vocabulary=spec.vocabulary,
        hidden=spec.embedding_width,
        normalise=spec.normalise,
        max_length=spec.max_length,
        prompts=spec.prompts,
    )


def static_weights(spec: EncoderSpec, weights: Weights, folder: Path) -> Weights:
    """The weights of the static encoder of another one, whose words it embeds on all cores.

    Args:
        spec: Of the other one.
        weights: Its own, in canonical names.
        folder: Of its tokenizer, which puts one special token before a text and one behind it. The
            ids of WordPiece, BPE and Unigram are in the order of how frequent their words are,
            which the law weighs them by.

    Raises:
        InputError: The tokenizer puts other special tokens around a text.
    """
    tokenizer = load_tokenizer(folder)
    if special_ends(tokenizer) != (1, 1):
        raise InputError(
            KEY, f"the tokenizer in {folder} adds no [CLS] or [SEP]", "1, or another start"
        )
    first, last = tokenizer.encode("").ids
    embed = token_embedder(spec, weights, threads=os.cpu_count() or 1)
    vectors = np.empty((spec.vocabulary, spec.embedding_width), np.float32)
    done = 0

    def state() -> str:
        return f"{done:,} of {spec.vocabulary:,} words"

    with activity("training", "embedding the vocabulary by the start", state):
        for done in range(0, spec.vocabulary, WORDS_AT_ONCE):
            words = range(done, min(done + WORDS_AT_ONCE, spec.vocabulary))
            rows = [[first, word, last] for word in words]
            vectors[done : words.stop] = embed_token_ids(embed, rows, hidden=vectors.shape[1])
    vectors -= vectors.mean(axis=0)
    vectors *= np.log1p(np.arange(spec.vocabulary, dtype=np.float32))[:, None]
    return {WORDS: vectors}
