"""TensorFlow without Keras, which it would import too, and which takes as long again.

The encoders are plain functions. Where a library does use ``tf.keras``, Keras is imported then.
"""

from __future__ import annotations

from pipelines.quiet import import_without, quiet_import

__all__ = ["tensorflow"]

# TensorFlow's last act of being imported is to import this for the sake of saved models. It goes on
# if that fails, as it does where Keras is not installed.
_KERAS = "keras.src.optimizers"

with quiet_import(), import_without(_KERAS):
    import tensorflow
