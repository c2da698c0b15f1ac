"""TensorFlow without Keras, which it would import too, and which takes as long again.

The encoders are plain functions. Where a library does use ``tf.keras``, Keras is imported then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pipelines.quiet import quiet_import

__all__ = ["tensorflow"]

# TensorFlow's last act of being imported is to import this for the sake of saved models. It goes on
# if that fails, as it does where Keras is not installed.
_KERAS = "keras.src.optimizers"


@contextmanager
def _without_keras() -> Iterator[None]:
    if _KERAS in sys.modules:
        yield
        return
    sys.modules[_KERAS] = None  # type: ignore[assignment] # Python's own mark of what must not be imported
    try:
        yield
    finally:
        del sys.modules[_KERAS]


with quiet_import(), _without_keras():
    import tensorflow
