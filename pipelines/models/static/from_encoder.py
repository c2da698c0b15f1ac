"""A static encoder that begins with what another encoder makes of each word alone.

It is weak, and a far better start for learning from that encoder than random numbers are: words
that the training texts have seldom or never keep what they mean.

Source: Tulkens and van Dongen, "Model2Vec: Fast State-of-the-Art Static Embeddings", 2024,
doi:10.5281/zenodo.17270888, with its weights by Zipf's law. There the vectors are turned to their
principal axes, which a student whose targets are the encoder's own vectors must not be.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipelines.errors import InputError
from pipelines.models.fewer_layers import KEY
from pipelines.models.inference.backends import token_embedder
from pipelines.models.inference.batches import embed_token_ids
from pipelines.models.spec import EncoderSpec
from pipelines.models.static.spec import StaticSpec
from pipelines.models.weights import WORDS, Weights
from pipelines.tokens.special_tokens import special_ends
from pipelines.tokens.vocabulary import load_tokenizer


def static_encoder(spec: EncoderSpec, weights: Weights, folder: Path) -> tuple[StaticSpec, Weights]:
    """The static encoder of another one, whose words it embeds on the driver.

    Args:
        spec: Of the other one.
        weights: Its own, in canonical names.
        folder: Of its tokenizer. The ids of WordPiece, BPE and Unigram are in the order of how
            frequent their words are, which the law weighs them by.

    Raises:
        InputError: A text does not begin and end with one special token each.
    """
    tokenizer = load_tokenizer(folder)
    if special_ends(tokenizer) != (1, 1):
        raise InputError(
            KEY,
            "the start's tokenizer does not put one special token before a text and one behind it",
            "1, or another start",
        )
    first, last = tokenizer.encode("").ids
    words = [[first, word, last] for word in range(spec.vocabulary)]
    embed = token_embedder(spec, weights)
    vectors = embed_token_ids(embed, words, hidden=spec.embedding_width)
    vectors -= vectors.mean(axis=0)
    vectors *= np.log1p(np.arange(spec.vocabulary, dtype=np.float32))[:, None]
    return static_spec(spec), {WORDS: vectors}


def static_spec(spec: EncoderSpec) -> StaticSpec:
    """The shape of the static encoder of another one."""
    return StaticSpec(
        vocabulary=spec.vocabulary,
        hidden=spec.embedding_width,
        normalise=spec.normalise,
        max_length=spec.max_length,
        prompts=spec.prompts,
    )
