"""Which part of the encoder a worker holds, and how the parts become a checkpoint.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.distributed as processes

from pipelines.models.adaptation import Frozen
from pipelines.models.architecture import Division, architecture_of
from pipelines.models.arrays import LazyArrays, shapes_of
from pipelines.models.division import part_of, part_shape, stage_of
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.settings.training import Place, layers_of_stage
from pipelines.training.steppers.torch import to_numpy

PartOf = Callable[[str], torch.Tensor]
"""Takes the name of a weight, behind a kind and a slash where it is one of the moments."""


class OwnPart:
    """A worker's part of an encoder.

    Args:
        task: Of the worker.
        checkpoint: A state of the whole encoder, whose architecture can be divided.

    Attributes:
        axes: Along which members divide a weight, by name; of all stages.
        layers: Those of this worker's stage.
        trained: The shapes of all trained weights, by name, in canonical order.
    """

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint) -> None:
        self._spec = checkpoint.spec
        division = architecture_of(self._spec).division
        assert division is not None, "refused before the start"
        self._division: Division = division
        self._placement, self._place = task.placement, task.place
        self.axes = division.axes(self._spec)
        self.layers = layers_of_stage(
            division.layers(self._spec), self._placement.stages, self._place.stage
        )
        self.trained = shapes_of(checkpoint.weights)

    def of(self, checkpoint: Checkpoint) -> Checkpoint:
        """The part of a state that the worker holds: views of its arrays, of which none is read."""
        frozen = checkpoint.frozen
        return replace(
            checkpoint,
            weights=self._parts(checkpoint.weights),
            moments=self._parts(checkpoint.moments),
            frozen=Frozen(weights=self._parts(frozen.weights), scale=frozen.scale),
        )

    def gathered(
        self, part_of: PartOf, device: torch.device, kinds: Sequence[str] = ()
    ) -> LazyArrays:
        """Whole arrays, each sent to rank 0 when it is read: all workers read them in one order.

        Args:
            part_of: Gives this worker's part of an array of its stage; called by all replicas, so
                that it may put the part together of what they share out.
            device: Of the parts, from which the process group can send.
            kinds: What stands before the names, with a slash; none for the weights themselves.

        Returns:
            In canonical order; with the other ranks they are empty.
        """
        kinds = [f"{kind}/" for kind in kinds] or [""]
        shapes = {f"{kind}{name}": self.trained[name] for kind in kinds for name in self.trained}
        return LazyArrays(shapes, partial(self._sent, part_of, device))

    def _sent(self, part_of: PartOf, device: torch.device, key: str) -> np.ndarray:
        """Has rank 0 put together the parts of an array, which come from the first replica."""
        name, rank = name_of(key), self._placement.rank(self._place)
        own = part_of(key).detach() if self._stage(name) == self._place.stage else None
        holders = [self._placement.rank(place) for place in self._holders(name)]
        if rank == 0:
            # One part after the other: the whole is in memory once, and no more than a part twice.
            whole = np.empty(self.trained[name], np.float32)
            for holder in holders:
                part = self._received(holder, name, device) if holder else own
                self._part(whole, name, self._placement.place(holder))[...] = to_numpy(part)
            return whole
        if rank in holders and own is not None:
            processes.send(own.contiguous(), dst=0)
        return np.empty(0, np.float32)

    def _holders(self, name: str) -> Iterator[Place]:
        """Where the parts of a weight are, in the first replica and in their order."""
        stage = self._stage(name)
        members = range(self._placement.members if name in self.axes else 1)
        return (Place(0, stage, member) for member in members)

    def _received(self, holder: int, name: str, device: torch.device) -> torch.Tensor:
        shape = self._shape(name, self.trained[name], self._placement.place(holder))
        part = torch.empty(shape, device=device)
        processes.recv(part, src=holder)
        return part

    def _parts(self, arrays: Mapping[str, np.ndarray]) -> LazyArrays:
        """Those of the worker's stage, by names that may stand behind a kind and a slash."""
        shapes = {
            key: self._shape(name_of(key), shape, self._place)
            for key, shape in shapes_of(arrays).items()
            if self._stage(name_of(key)) == self._place.stage
        }
        return LazyArrays(shapes, lambda key: self._part(arrays[key], name_of(key), self._place))

    def _stage(self, name: str) -> int:
        return stage_of(self._division, self._spec, name, self._placement)

    def _part(self, array: np.ndarray, name: str, place: Place) -> np.ndarray:
        """A view."""
        axis = self.axes.get(name)
        return array if axis is None else part_of(array, axis, self._placement, place)

    def _shape(self, name: str, whole: Sequence[int], place: Place) -> tuple[int, ...]:
        return part_shape(whole, self.axes.get(name), self._placement.members, place.member)


def name_of(key: str) -> str:
    """The name of a weight, which may stand behind a kind and a slash, as that of a moment does."""
    return key.partition("/")[2] or key
