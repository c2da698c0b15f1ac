"""Mesh TensorFlow, and all that it needs to run with today's TensorFlow.

The library is unmaintained since 2022; its last release, 0.1.21, is of TensorFlow 1. It has no
types. We use its named dimensions, its gradients, and the lowering to devices.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from pipelines.lean_tensorflow import tensorflow
from pipelines.quiet import quiet_import

__all__ = ["PlacementMeshImpl", "mtf", "tf1"]

tf1 = tensorflow.compat.v1
_ESTIMATOR = "tensorflow.compat.v1.estimator"


def _estimators() -> Any:
    """Return a substitute for `tf.estimator`, which TensorFlow 2.16 removed.

    While it is imported, the library derives two classes for checkpoints from it, which nothing
    here uses.
    """
    stand_in: Any = ModuleType(_ESTIMATOR)
    stand_in.CheckpointSaverListener = object
    stand_in.SessionRunHook = object
    return stand_in


@contextmanager
def _lent_names() -> Iterator[None]:
    """Provide the names that today's TensorFlow lacks while the library is imported.

    They go afterwards, since other libraries look at them to see which TensorFlow they have. The
    second name has moved; the library's TPU part, which it imports too, registers a type by it.
    """
    from tensorflow.python.framework import ops, tensor_conversion_registry

    tf1.estimator = sys.modules[_ESTIMATOR] = _estimators()
    moved = "register_tensor_conversion_function"
    setattr(ops, moved, getattr(tensor_conversion_registry, moved))
    try:
        yield
    finally:
        delattr(ops, moved)
        del tf1.estimator, sys.modules[_ESTIMATOR]


with quiet_import(), _lent_names():
    import mesh_tensorflow as mtf
    from mesh_tensorflow.placement_mesh_impl import PlacementMeshImpl

# It logs the sizes of all variables for every graph, by TensorFlow's logger.
logging.getLogger("tensorflow").setLevel(logging.WARNING)
