"""The backends that embed with a trained model, by the name of the package that each needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.registry import Registry

if TYPE_CHECKING:
    from pipelines.models.inference.backends import OpenBackend

BACKENDS: Registry[OpenBackend] = Registry(
    kind="backend",
    key="embedding.backend",
    entries={
        "openvino": "pipelines.models.inference.openvino:open_backend",
        "torch": "pipelines.models.inference.torch:open_backend",
        "tensorflow": "pipelines.models.inference.tensorflow:open_backend",
    },
)
"""On a CPU they stand in the order of speed: the first that is installed and has a form of the
model's architecture is taken where none is named."""
