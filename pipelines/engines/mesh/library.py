"""Mesh TensorFlow, and what it needs to run with today's TensorFlow: all of that is here.

The library was left by its makers in 2022, at release 0.1.21, which is of TensorFlow 1. It has no
types. Of it are used its named dimensions, its gradients, and the lowering to devices.
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
    """Stands for `tf.estimator`, which TensorFlow 2.16 removed.

    The library derives two classes for checkpoints of its own from it while it is imported; nothing
    here uses them.
    """
    stand_in: Any = ModuleType(_ESTIMATOR)
    stand_in.CheckpointSaverListener = object
    stand_in.SessionRunHook = object
    return stand_in


@contextmanager
def _lent_names() -> Iterator[None]:
    """Has the names that today's TensorFlow lacks be there while the library is imported.

    No longer, since other libraries look at them to see which TensorFlow they have. The second
    one has moved; the library's part for TPUs, which it imports too, registers a type by it.
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
