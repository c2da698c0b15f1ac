"""What a worker holds at its peak, from the shapes alone; the page on training explains it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pipelines.models.adaptation import layer_of
from pipelines.models.architecture import Shapes

BYTES = 4
LIBRARIES = 0.6e9
"""Memory of a process that has loaded the libraries and holds nothing."""
_OF_A_UNIT = 5
"""Whole units at once: the one that computes and the one that is on its way, as it came and as
it is used, and the gradients of one."""
_OF_THE_REST = 4
"""What is in no layer: gathered all the time, its gradient, and what that is reduced by."""
_COPIES: Mapping[str, int] = {"fsdp": 1, "deepspeed": 2}
"""Of a worker's part of the weights, by engine: ZeRO-3 updates one, and computes with another."""
_BUFFERS: Mapping[str, float] = {"fsdp": 0.0, "deepspeed": 3 * BYTES * 2.0**24}
"""Bytes: ZeRO-3 fills three of ``BUCKET_ELEMENTS`` of :mod:`pipelines.training.steppers.deepspeed`,
of what is gathered, of what is gathered ahead, and of gradients."""
_KEPT, _AT_WORK = 4, 64
"""Bytes for each token and number of its width: of the input of a layer, and within one; see the
section on memory of the page."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is trained, and how.

    Attributes:
        engine: One of ``pipelines_bench.sharded.command.STEPPERS``.
        shapes: Of the weights.
        workers: Processes that share them.
        offload: As ``training.offload``.
        tokens: Padded tokens that a worker embeds at once.
        hidden: Width of the layers.
        layers: How many.
        checkpointed: Whether activations are, see ``training.activation_checkpointing``.
    """

    engine: str
    shapes: Shapes
    workers: int
    offload: str
    tokens: int
    hidden: int
    layers: int
    checkpointed: bool

    @property
    def parameters(self) -> int:
        """Numbers that are trained."""
        return sum(map(math.prod, self.shapes.values()))

    @property
    def _parts(self) -> Mapping[int | None, int]:
        """Numbers of each layer, and under None those of no layer."""
        parts: dict[int | None, int] = {None: 0}
        for name, shape in self.shapes.items():
            number = layer_of(name)
            parts[number] = parts.get(number, 0) + math.prod(shape)
        return parts

    @property
    def activations(self) -> int:
        """Bytes that the gradient needs."""
        layer = self.tokens * self.hidden * _AT_WORK
        if self.checkpointed:
            return self.tokens * self.hidden * self.layers * _KEPT + layer
        return layer * self.layers

    def of_a_worker(self) -> dict[str, float]:
        """Bytes in memory of a worker that holds a part, by what they are."""
        share = BYTES * self.parameters / self.workers
        parts = dict(self._parts)
        rest = parts.pop(None)
        return {
            "weights": _COPIES[self.engine] * share,
            "gradients": share,
            "moments": 0.0 if self.offload == "disk" else 2 * share,
            "gathered": float(BYTES * (_OF_A_UNIT * max(parts.values()) + _OF_THE_REST * rest)),
            "buffers": _BUFFERS[self.engine],
            "activations": float(self.activations),
            "libraries": LIBRARIES,
        }

    def of_one_process(self) -> float:
        """Bytes in memory of one process that holds all, and copies it to write a checkpoint."""
        return (4 + 3) * BYTES * self.parameters + self.activations + LIBRARIES
