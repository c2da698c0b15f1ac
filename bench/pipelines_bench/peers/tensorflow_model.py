"""The encoder as a Keras model of pairs, and the in-batch loss: what a user brings to a library.

Runs wherever the library takes it: on the driver and on executors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.lanes.files import LaneManifest
from pipelines.lean_tensorflow import tensorflow as tf
from pipelines.losses.in_batch_negatives import InBatchNegativesSettings
from pipelines.models.folder import start_encoder
from pipelines.models.frameworks.tensorflow import forward
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import weight_shapes
from pipelines.quiet import quiet_import
from pipelines.settings import Config
from pipelines_bench.peers.pairs import PADDING

with quiet_import():
    from tensorflow import keras

_register = keras.utils.register_keras_serializable(package="sentence_pipelines")


@_register
class PairEncoder(keras.layers.Layer):  # type: ignore[misc] # TensorFlow has no types
    """Embeds both texts of each pair: int32 [pairs, 2, width] to fp32 [pairs, 2, embedding].

    Args:
        spec: Of the encoder, as JSON.
        precision: Of the matrix products.
        dropout: As ``training.dropout`` has it.
    """

    def __init__(
        self, spec: Mapping[str, Any], precision: str, dropout: float | None, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        # Compiled by XLA it would be compiled anew for each width of a batch.
        self.supports_jit = False
        self._spec, self._precision, self._dropout = EncoderSpec.from_json(spec), precision, dropout

    def build(self, input_shape: Any) -> None:
        """Makes the weights, in canonical order."""
        for name, shape in weight_shapes(self._spec).items():
            self.add_weight(name=name, shape=shape, dtype="float32", initializer="zeros")

    def call(self, texts: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Embeddings of length 1; no text is padded beyond the longest of the batch."""
        lengths = tf.reduce_sum(tf.cast(texts != PADDING, tf.int32), axis=-1)
        width = tf.reduce_max(lengths)
        token_ids = tf.reshape(tf.maximum(texts[:, :, :width], 0), [-1, width])
        values = (variable.value for variable in self.weights)
        embeddings = forward(
            self._spec,
            dict(zip(weight_shapes(self._spec), values, strict=True)),
            token_ids,
            tf.reshape(lengths, [-1]),
            precision=self._precision,
            dropout=self._dropout if training else 0.0,
            seed=tf.random.uniform([2], maxval=tf.int32.max, dtype=tf.int32),
        )
        embeddings = tf.math.l2_normalize(embeddings, axis=-1)
        return tf.reshape(embeddings, [-1, 2, self._spec.embedding_width])

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, int, int]:
        """Of a batch of pairs."""
        return input_shape[0], 2, self._spec.embedding_width

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        own = {
            "spec": self._spec.to_json(),
            "precision": self._precision,
            "dropout": self._dropout,
        }
        return {**super().get_config(), **own}


@_register
class InBatchLoss(keras.losses.Loss):  # type: ignore[misc] # TensorFlow has no types
    """Each anchor picks its positive among those of its granule, by scaled cosines.

    Args:
        granule: Examples of one.
        scale: Of the cosines.
    """

    def __init__(self, granule: int, scale: float, name: str = "in_batch") -> None:
        super().__init__(name=name)
        self._granule, self._scale = granule, scale

    def call(self, labels: tf.Tensor, embeddings: tf.Tensor) -> tf.Tensor:
        """The cross-entropy of each pair."""
        granule, width = self._granule, embeddings.shape[-1]
        pairs = tf.reshape(embeddings, [-1, granule, 2, width])
        anchors, positives = tf.unstack(pairs, axis=2)
        logits = self._scale * tf.matmul(anchors, positives, transpose_b=True)
        own = tf.broadcast_to(tf.range(granule), tf.shape(logits)[:2])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=own, logits=logits)
        return tf.reshape(losses, [-1])

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {"granule": self._granule, "scale": self._scale, "name": self.name}

    def __reduce__(self) -> tuple[Any, ...]:
        # Keras would pickle an archive of a model.
        return InBatchLoss, (self._granule, self._scale)


def pair_model(config: Config, manifest: LaneManifest) -> Any:
    """The start encoder as a compiled Keras model of pairs.

    Args:
        config: Of the training.
        manifest: Of the lanes.
    """
    training, objective = config.training, config.objective
    assert isinstance(objective, InBatchNegativesSettings), "peers train nothing else"
    spec, weights = start_encoder(config, manifest.vocabulary)
    texts = keras.Input((2, None), dtype="int32")
    encoder = PairEncoder(spec.to_json(), training.precision, training.dropout)
    model = keras.Model(texts, encoder(texts))
    model.set_weights([weights[name] for name in weight_shapes(spec)])
    model.compile(
        optimizer=keras.optimizers.AdamW(
            training.learning_rate, weight_decay=training.weight_decay
        ),
        loss=InBatchLoss(manifest.granule, 1 / objective.temperature),
    )
    return model
