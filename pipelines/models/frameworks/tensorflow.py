"""Encoders in TensorFlow, shared by all architectures: a pure function over canonical weights.

It works under a gradient tape, in a distribution strategy and in a version 1 graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pipelines.lean_tensorflow import tensorflow as tf
from pipelines.models.architecture import form_of
from pipelines.models.spec import DropoutRates, EncoderSpec, Pooling
from pipelines.models.weights import Weights, dense_name

if TYPE_CHECKING:
    from pipelines.models.inference.batches import TokenEmbedder

logger = logging.getLogger(__name__)

PRECISIONS = {"fp32": tf.float32, "bf16": tf.bfloat16}


class Dropout:
    """Dropout in one forward pass, which counts its places.

    Masks depend only on the seed, int32 [2], and the number of the place, so a recomputed pass has
    the same. Rates of None switch dropout off.
    """

    def __init__(self, rates: DropoutRates | None, seed: tf.Tensor | None) -> None:
        if rates and seed is None:
            raise ValueError("dropout needs a seed")
        self._rates = rates or DropoutRates(0.0, 0.0)
        self._seed = seed
        self._sites = 0

    def __call__(self, values: tf.Tensor, *, attention: bool = False) -> tf.Tensor:
        """Drop values at the next place; attention's probabilities have a rate of their own."""
        share = self._rates.attention if attention else self._rates.hidden
        if not share:
            return values
        self._sites += 1
        # A named algorithm, since the automatic choice depends on the device.
        seed = tf.random.fold_in(self._seed, self._sites, alg="philox")
        return tf.nn.experimental.stateless_dropout(values, share, seed=seed, rng_alg="philox")


class Form(Protocol):
    """An architecture's form for `tensorflow`: its forward pass."""

    def __call__(
        self,
        spec: Any,
        weights: Mapping[str, tf.Tensor],
        token_ids: tf.Tensor,
        lengths: tf.Tensor,
        *,
        dtype: tf.DType,
        dropout: Dropout,
    ) -> tf.Tensor:
        """Return fp32 [batch, hidden], before dense layers; matrix products are of ``dtype``."""
        ...


def configure_threads(threads: int) -> None:
    """Set TensorFlow's threads in this process.

    Call it before TensorFlow computes. Later the number cannot change, and a difference is logged.
    """
    threading = tf.config.threading
    numbers = (
        threading.get_intra_op_parallelism_threads(),
        threading.get_inter_op_parallelism_threads(),
    )
    if numbers == (threads, threads):
        return
    try:
        threading.set_intra_op_parallelism_threads(threads)
        threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError:
        logger.warning("TensorFlow already runs with %s threads, not %d", numbers, threads)


def limit_gpus(device: str) -> None:
    """Give TensorFlow one GPU or none in this process, with memory only as it needs it.

    By default it takes all memory of every visible GPU, also those of other workers. Call it before
    TensorFlow computes. The device is ``cuda:0`` and so on, counted among visible GPUs, or ``cpu``.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return
    kind, _, number = device.partition(":")
    visible = gpus[int(number) :][:1] if kind == "cuda" else []
    try:
        tf.config.set_visible_devices(visible, "GPU")
        for gpu in visible:
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:
        logger.warning("TensorFlow already runs, and may not keep to %s", device)


def forward(
    spec: EncoderSpec,
    weights: Mapping[str, tf.Tensor],
    token_ids: tf.Tensor,
    lengths: tf.Tensor,
    *,
    precision: str = "fp32",
    dropout: float | None = 0.0,
    seed: tf.Tensor | None = None,
) -> tf.Tensor:
    """Embed sentences; fp32 [batch, embedding width]. Runs on an executor, in a ``tf.function``.

    Matrix products have the given precision, ``fp32`` or ``bf16``. All else is fp32: hidden states,
    norms and pooling. Padding has no influence on the result.

    Args:
        weights: Variables or tensors, fp32, in canonical names.
        token_ids: int32 [batch, tokens], padded with any valid id.
        lengths: int32 [batch], tokens of each sentence, at least 1.
        dropout: Share of dropped activations; None: the encoder's own.
        seed: int32 [2], the only source of the masks; needed with dropout.
    """
    encode: Form = form_of(spec, "tensorflow")
    embeddings = encode(
        spec,
        weights,
        token_ids,
        lengths,
        dtype=PRECISIONS[precision],
        dropout=Dropout(spec.dropout(dropout), seed),
    )
    for number, layer in enumerate(spec.dense):
        matrix = weights[dense_name(number, "weight")]
        embeddings = tf.matmul(embeddings, matrix, transpose_b=True)
        if layer.bias:
            embeddings += weights[dense_name(number, "bias")]
        embeddings = _ACTIVATIONS[layer.activation](embeddings)
    return tf.math.l2_normalize(embeddings, axis=-1) if spec.normalise else embeddings


_ACTIVATIONS = {"tanh": tf.tanh, "identity": tf.identity}


def pool(
    pooling: Pooling, vectors: tf.Tensor, is_token: tf.Tensor, lengths: tf.Tensor
) -> tf.Tensor:
    """Return one vector of each text, [batch, hidden]; see :func:`mean` for the arguments."""
    return _POOLINGS[pooling](vectors, is_token, lengths)


def _first(vectors: tf.Tensor, is_token: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    return vectors[:, 0]


def _last(vectors: tf.Tensor, is_token: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    return tf.gather(vectors, lengths - 1, axis=1, batch_dims=1)


def _weighted_mean(vectors: tf.Tensor, is_token: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    places = tf.range(1, tf.shape(vectors)[1] + 1, dtype=tf.int32)
    weights = is_token * tf.cast(places, tf.float32)
    # The sum of the places 1 to n, which is whole.
    return mean(vectors, weights, lengths * (lengths + 1) // 2)


def mean(vectors: tf.Tensor, is_token: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Return the mean of each text's vectors without its padding, [batch, hidden].

    Vectors are fp32 [batch, tokens, hidden]; ``is_token`` is fp32 [batch, tokens], 0 for padding,
    or the weights of tokens; ``counts``, int32 [batch], are the divisors.
    """
    total = tf.reduce_sum(vectors * is_token[:, :, None], axis=1)
    return total / tf.cast(counts, tf.float32)[:, None]


_POOLINGS: Mapping[Pooling, Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "mean": mean,
    "cls": _first,
    "lasttoken": _last,
    "weightedmean": _weighted_mean,
}


WIDTH_MULTIPLE = 8
"""Batches are padded to a multiple of it, so that a graph is compiled for few shapes."""


def open_backend(
    spec: EncoderSpec, weights: Weights, *, threads: int, precision: str, device: str
) -> TokenEmbedder:
    """See :func:`pipelines.models.inference.backends.token_embedder`; for the CPU only."""
    assert device == "cpu", "GPUs are for torch"
    configure_threads(threads)
    limit_gpus(device)
    tensors = {name: tf.constant(value) for name, value in weights.items()}

    def embed(token_ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        return forward(spec, tensors, token_ids, lengths, precision=precision)

    signature = [tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)]
    graph = tf.function(embed, input_signature=signature, autograph=False)

    def embed_batch(token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        embeddings: np.ndarray = graph(*pad(token_ids, lengths)).numpy()
        return embeddings[: len(lengths)]

    return embed_batch


def pad(token_ids: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pad tokens to a multiple, and texts, by texts of one token, to a power of two."""
    texts, longest = token_ids.shape
    height = 1 << (texts - 1).bit_length()
    width = -(-longest // WIDTH_MULTIPLE) * WIDTH_MULTIPLE
    padded_lengths = np.ones(height, np.int32)
    padded_lengths[:texts] = lengths
    return np.pad(token_ids, ((0, height - texts), (0, width - longest))), padded_lengths
