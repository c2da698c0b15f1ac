"""An encoder with the vectors of terms beside it, and what it makes of token ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from pipelines.models.inference.batches import TokenEmbedder
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import TERMS, Weights

Spec = TypeVar("Spec", bound=EncoderSpec)


def with_terms(
    spec: Spec, weights: Mapping[str, np.ndarray], vectors: np.ndarray
) -> tuple[Spec, Weights]:
    """An encoder with terms beside it.

    Args:
        spec: Its shape.
        weights: Its own.
        vectors: Of the terms, fp32 [vocabulary, dimensions].
    """
    return replace(spec, lsa=vectors.shape[1], normalise=True), {**weights, TERMS: vectors}


def without_terms(spec: Spec, weights: Mapping[str, np.ndarray]) -> tuple[Spec, Weights]:
    """The encoder alone, of one that may have terms beside it."""
    return replace(spec, lsa=0), {name: weights[name] for name in weights if name != TERMS}


def add_terms(embed: TokenEmbedder, vectors: np.ndarray) -> TokenEmbedder:
    """What embeds token ids by an encoder and by the terms beside it. Runs on an executor.

    Args:
        embed: The encoder's embeddings, of length 1.
        vectors: Of the terms, fp32 [vocabulary, dimensions].

    Returns:
        Embeddings of length 1: the encoder's numbers, and behind them the mean of the tokens'.
    """

    def embed_batch(token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        own = embed(token_ids, lengths)
        share = (np.arange(token_ids.shape[1]) < lengths[:, None]) / lengths[:, None]
        means = np.matmul(share[:, None].astype(np.float32), vectors[token_ids])[:, 0]
        both = np.hstack([own, means])
        scaled: np.ndarray = both / np.linalg.norm(both, axis=1, keepdims=True)
        return scaled

    return embed_batch
