"""Mesh TensorFlow, and its missing names for today's TensorFlow.

The library is unmaintained since 2022; its last release, 0.1.21, is for TensorFlow 1. It has no
types. This package uses its named dimensions, its gradients, and the lowering to devices.
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

    The library's import derives two classes for checkpoints from it, unused here.
    """
    stand_in: Any = ModuleType(_ESTIMATOR)
    stand_in.CheckpointSaverListener = object
    stand_in.SessionRunHook = object
    return stand_in


@contextmanager
def _lent_names() -> Iterator[None]:
    """Provide TensorFlow's former names during the library's import.

    They go afterwards, since other libraries tell TensorFlow's release by them. The second name has
    moved; the library also imports its TPU part, which registers a type by it.
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

# The library logs the sizes of all variables for every graph, by TensorFlow's logger.
logging.getLogger("tensorflow").setLevel(logging.WARNING)
