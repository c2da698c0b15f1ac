"""The encoder as a Keras model, which is what Elephas trains. Used on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow import keras

from pipelines.models.frameworks.tensorflow import forward
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import Weights, weight_shapes
from pipelines.settings import TrainingSettings


@keras.utils.register_keras_serializable(package="sentence_pipelines")
class EncoderModel(keras.Model):  # type: ignore[misc] # TensorFlow has no types
    """Embeds token ids; its weights are the canonical ones, in canonical order."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__(name="encoder")
        self.spec = spec
        for name, shape in weight_shapes(spec).items():
            self.add_weight(name=name, shape=shape, dtype="float32", initializer="zeros")

    def call(self, token_ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """See :func:`pipelines.models.frameworks.tensorflow.forward`."""
        values = (variable.value for variable in self.weights)
        named = dict(zip(weight_shapes(self.spec), values, strict=True))
        return forward(self.spec, named, token_ids, lengths)

    def take(self, weights: Weights) -> None:
        """Takes weights by their names."""
        self.set_weights([weights[name] for name in weight_shapes(self.spec)])

    def get_config(self) -> dict[str, Any]:
        """What :meth:`from_config` reads."""
        return {"spec": self.spec.to_json()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> EncoderModel:
        """A model of the same shape."""
        return cls(EncoderSpec.from_json(config["spec"]))


def encoder_model(spec: EncoderSpec, weights: Weights, training: TrainingSettings) -> EncoderModel:
    """A model with weights, compiled, since Elephas takes no other.

    The optimiser stands for what the workers do by themselves; Keras does not run it.
    """
    model = EncoderModel(spec)
    model.take(weights)
    model.compile(optimizer=keras.optimizers.AdamW(weight_decay=training.weight_decay))
    return model
