"""TensorFlow without Keras, to halve the time of its import.

The encoders are plain functions. The first use of ``tf.keras`` imports Keras.
"""

from __future__ import annotations

from pipelines.quiet import import_without, quiet_import

__all__ = ["tensorflow"]

# At the end of its import TensorFlow imports this for saved models, and ignores a failure, as where
# Keras is not installed.
_KERAS = "keras.src.optimizers"

with quiet_import(), import_without(_KERAS):
    import tensorflow
