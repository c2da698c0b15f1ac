"""Embeds texts in this process, with TensorFlow on the CPU. Runs on an executor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from pipelines.encoder.folder import read_encoder
from pipelines.encoder.spec import EncoderSpec
from pipelines.encoder.weights import Weights
from pipelines.tokens.vocabulary import load_tokenizer

Embedder = Callable[[Sequence[str]], np.ndarray]
"""Texts to fp32 [texts, hidden], in the order of the texts."""
TokenEmbedder = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Token ids int32 [batch, tokens] and lengths int32 [batch] to fp32 [batch, hidden]."""

WIDTH_MULTIPLE = 8
"""Batches are padded to a multiple, so that a graph is compiled for few shapes."""
TEXTS_AT_ONCE = 8192
"""Texts that are tokenised and sorted together, which bounds the memory for their ids."""


def load_embedder(
    folder: str | Path, *, threads: int = 1, precision: str = "fp32", batch_size: int = 64
) -> Embedder:
    """Loads an encoder folder. Runs on an executor.

    Args:
        folder: A folder that :func:`~pipelines.encoder.folder.read_encoder` reads, with a
            tokenizer.
        threads: CPU threads, if TensorFlow has not begun in this process.
        precision: ``fp32`` or ``bf16``, of the matrix products.
        batch_size: Texts of one forward pass.

    Returns:
        A function from texts to embeddings.

    Raises:
        InputError: The folder holds no encoder that can be read.
    """
    spec, weights = read_encoder(folder)
    tokenizer = load_tokenizer(Path(folder))
    tokenizer.enable_truncation(spec.max_length)
    # The library would otherwise start a thread for every core of the machine.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false" if threads == 1 else "true")
    embed_tokens = token_embedder(spec, weights, threads=threads, precision=precision)

    def embed(texts: Sequence[str]) -> np.ndarray:
        embeddings = np.empty((len(texts), spec.hidden), np.float32)
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            some = list(texts[start : start + TEXTS_AT_ONCE])
            rows = [encoding.ids for encoding in tokenizer.encode_batch_fast(some)]
            embeddings[start : start + len(some)] = embed_token_ids(
                embed_tokens, rows, hidden=spec.hidden, batch_size=batch_size
            )
        return embeddings

    return embed


def token_embedder(
    spec: EncoderSpec, weights: Weights, *, threads: int = 1, precision: str = "fp32"
) -> TokenEmbedder:
    """A function over padded batches of token ids. Runs on an executor."""
    import tensorflow as tf

    from pipelines.encoder.tensorflow import configure_threads, forward

    configure_threads(threads)
    tensors = {name: tf.constant(value) for name, value in weights.items()}

    def embed(token_ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        return forward(spec, tensors, token_ids, lengths, precision=precision)

    ids, lengths = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)
    graph = tf.function(embed, input_signature=[ids, lengths], autograph=False)
    return lambda token_ids, lengths: graph(token_ids, lengths).numpy()


def embed_token_ids(
    embed: TokenEmbedder, rows: Sequence[Sequence[int]], *, hidden: int, batch_size: int = 64
) -> np.ndarray:
    """Embeds rows of token ids in batches of similar length. Runs on an executor.

    Args:
        embed: Embeds one padded batch.
        rows: The ids of each text, special tokens included.
        hidden: Width of an embedding.
        batch_size: Texts of one forward pass.

    Returns:
        fp32 [rows, hidden], in the order of the rows.
    """
    embeddings = np.empty((len(rows), hidden), np.float32)
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    # The longest first, so that too large a batch fails at once.
    order = np.argsort(-lengths, kind="stable")
    for places in _split(order, batch_size):
        token_ids, batch_lengths = _pad([rows[place] for place in places], lengths[places])
        embeddings[places] = embed(token_ids, batch_lengths)[: len(places)]
    return embeddings


def _split(order: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (order[start : start + size] for start in range(0, len(order), size))


def _pad(rows: Sequence[Sequence[int]], lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pads both ways: tokens to a multiple, and texts, with one-token ones, to a power of two."""
    height = 1 << (len(rows) - 1).bit_length()
    width = -(-int(lengths.max()) // WIDTH_MULTIPLE) * WIDTH_MULTIPLE
    padded_lengths = np.ones(height, np.int32)
    padded_lengths[: len(rows)] = lengths
    token_ids = np.zeros((height, width), np.int32)
    there = np.arange(width) < lengths[:, None]
    token_ids[: len(rows)][there] = np.fromiter(
        chain.from_iterable(rows), np.int32, int(lengths.sum())
    )
    return token_ids, padded_lengths
