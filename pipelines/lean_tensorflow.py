"""TensorFlow without Keras, whose import takes as long again.

The encoders are plain functions. Libraries that use ``tf.keras`` import Keras at that point.
"""

from __future__ import annotations

from pipelines.quiet import import_without, quiet_import

__all__ = ["tensorflow"]

# TensorFlow's last act of being imported is to import this for the sake of saved models. It goes on
# if that fails, as it does where Keras is not installed.
_KERAS = "keras.src.optimizers"

with quiet_import(), import_without(_KERAS):
    import tensorflow
