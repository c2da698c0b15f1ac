"""Training in which several workers hold each layer together (tensor parallel). Runs on executors.

A worker's part of the encoder is plain tensors, so all that :class:`.torch.TorchStepper` does is
done with it as it is: gradients are averaged over the workers that hold the same part, one of each
replica. What differs is the forward pass, the norm of the gradient, and how a checkpoint is read
and written: in whole arrays, so that it can be gone on from in any other layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as processes

from pipelines.models.adaptation import Frozen, effective
from pipelines.models.architecture import architecture_of, form_of
from pipelines.models.division import Division, part_of, stage_of
from pipelines.models.frameworks.torch import PRECISIONS, Encoder
from pipelines.models.frameworks.torch_division import (
    DividedEncode,
    DividedForm,
    Members,
    Part,
)
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import Weights
from pipelines.runs.checkpoint import AVERAGE, Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.settings.placement import Place, Placement, layers_of_stage
from pipelines.training.collectives.agreement import check_agreement
from pipelines.training.collectives.base import Collectives
from pipelines.training.collectives.process_group import GroupCollectives
from pipelines.training.devices import worker_device
from pipelines.training.feed import StepWork
from pipelines.training.steppers.base import Stepper, StepperFactory
from pipelines.training.steppers.torch import TorchStepper, to_numpy, total_norm


class ModelParallelStepper(TorchStepper):
    """Makes updates of a part of the encoder; see :class:`.base.Stepper`.

    Args:
        checkpoint: The state to begin with, of the whole encoder.
        collectives: Between all workers.
    """

    sharded = True

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint, collectives: Collectives) -> None:
        device, seconds = worker_device(), task.run.config.training.stall_seconds
        self._placement, self._place = task.placement, task.place
        self._own = OwnPart(checkpoint.spec, self._placement, self._place)
        members, stages, copies = (
            _group([ranks_of(rank) for rank in range(task.workers)], seconds)
            for ranks_of in (
                self._placement.member_ranks,
                self._placement.stage_ranks,
                self._placement.copy_ranks,
            )
        )
        self._members, self._stages = Members(members), Members(stages)
        self._trained = {name: value.shape for name, value in checkpoint.weights.items()}
        between = GroupCollectives(device, copies)
        super().__init__(task, self._own.of(checkpoint), between, collectives)
        self._has_agreed = False

    @property
    def exchange_seconds(self) -> float | None:
        """See :class:`.base.Stepper`; the members' exchanges within layers count too."""
        seconds = super().exchange_seconds
        return None if seconds is None else seconds + self._members.seconds

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Makes one update from the granules of this worker's replica."""
        loss = super().step(work, learning_rate)
        if not self._has_agreed:
            self._check_agreement(work.index + 1)
            self._has_agreed = True
        return loss

    def checkpoint(self, step: int) -> Checkpoint:
        """The state before a step; its arrays are with rank 0. All workers call it at once."""
        kinds = ("m", "v") if self._training.ema is None else ("m", "v", AVERAGE)
        keys = [f"{kind}/{name}" for kind in kinds for name in self._trained]
        return Checkpoint(
            step,
            self._spec,
            self._gathered(self._weights, list(self._trained)),
            self._gathered(self._moments, keys),
        )

    def _encoder(self) -> Encoder:
        weights = effective(self._weights, self._frozen, self._scale)
        return Encoder(self._spec, weights, self._divided(weights))

    def _divided(self, weights: Mapping[str, torch.Tensor]) -> DividedEncode:
        """The forward pass of this worker's part."""
        form: DividedForm = form_of(self._spec, "torch_division")
        part = Part(self._own.layers, self._members)
        return form(self._spec, weights, PRECISIONS[self._training.precision], part)

    def _norm(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The norm over all parts; what each member has counts once."""
        own = [
            gradient
            for name, gradient in gradients.items()
            if name in self._own.axes or self._place.member == 0
        ]
        square = torch.zeros((), device=self._device)
        if own:
            square += total_norm(own) ** 2
        self._members.add_up_in_place(square)
        self._stages.add_up_in_place(square)
        return square.sqrt()

    def _check_agreement(self, step: int) -> None:
        """Whether replicas hold the same part, and members what each of them has as a whole."""
        own = TorchStepper.checkpoint(self, step)
        if self._collectives.workers > 1:
            check_agreement(own, self._collectives, "replicas")
        weights = {k: value for k, value in own.weights.items() if k not in self._own.axes}
        if self._members.size > 1 and weights:
            group = GroupCollectives(self._device, self._members.group)
            check_agreement(replace(own, weights=weights, moments={}), group, "tensor ranks")

    def _gathered(self, parts: Mapping[str, torch.Tensor], keys: Sequence[str]) -> Weights:
        """Sends the first replica's parts to rank 0, one array after the other."""
        arrays: Weights = {}
        rank = self._placement.rank(self._place)
        for key in keys:
            name = key.partition("/")[2] or key
            holders = [self._placement.rank(place) for place in self._own.holders(name)]
            if rank == 0:
                whole = [
                    self._received(holder, name) if holder else parts[key] for holder in holders
                ]
                axis = self._own.axes.get(name, 0)
                arrays[key] = np.concatenate([to_numpy(part) for part in whole], axis)
            elif rank in holders:
                processes.send(parts[key].detach().contiguous(), dst=0)
        return arrays

    def _received(self, holder: int, name: str) -> torch.Tensor:
        shape = self._own.shape(self._trained[name], name, self._placement.place(holder))
        part = torch.empty(shape, device=self._device)
        processes.recv(part, src=holder)
        return part


class OwnPart:
    """Which part of an encoder's weights a worker holds.

    Args:
        spec: Of the whole encoder, whose architecture can be divided.
        placement: Of the workers.
        place: Of this one.

    Attributes:
        axes: Along which members divide a weight, by name; of all stages.
        layers: Those of this worker's stage.
    """

    def __init__(self, spec: EncoderSpec, placement: Placement, place: Place) -> None:
        division = architecture_of(spec).division
        assert division is not None, "refused before the start"
        self._spec, self._placement, self._place = spec, placement, place
        self._division: Division = division
        self.axes = division.axes(spec)
        self.layers = layers_of_stage(division.layers(spec), placement.stages, place.stage)

    def of(self, checkpoint: Checkpoint) -> Checkpoint:
        """The part of a state that the worker holds; views of its arrays."""
        frozen = checkpoint.frozen
        return replace(
            checkpoint,
            weights=self._parts(checkpoint.weights),
            moments=self._parts(checkpoint.moments),
            frozen=Frozen(weights=self._parts(frozen.weights), scale=frozen.scale),
        )

    def holders(self, name: str) -> Iterator[Place]:
        """Where the parts of a weight are, in the first replica and in their order."""
        stage = stage_of(self._division, self._spec, name, self._placement)
        members = range(self._placement.members if name in self.axes else 1)
        return (Place(0, stage, member) for member in members)

    def shape(self, whole: Sequence[int], name: str, place: Place) -> tuple[int, ...]:
        """The shape of the part of a weight that is held at a place."""
        empty = np.broadcast_to(np.float32(0), whole)
        return self._part(empty, name, place).shape

    def _parts(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the worker's stage, by names that may stand behind a kind and a slash."""
        parts = {}
        for key, array in arrays.items():
            name = key.partition("/")[2] or key
            if stage_of(self._division, self._spec, name, self._placement) == self._place.stage:
                parts[key] = self._part(array, name, self._place)
        return parts

    def _part(self, array: np.ndarray, name: str, place: Place) -> np.ndarray:
        axis = self.axes.get(name)
        return array if axis is None else part_of(array, axis, self._placement, place)


def _group(all_ranks: Sequence[Sequence[int]], seconds: float) -> Any:
    """This worker's group of some that all workers are divided into.

    Args:
        all_ranks: Of each worker, its group.
        seconds: The deadline of an exchange.
    """
    groups = list(dict.fromkeys(tuple(ranks) for ranks in all_ranks))
    own, _ = processes.new_subgroups_by_enumeration(groups, timeout=timedelta(seconds=seconds))
    return own


if TYPE_CHECKING:
    # mypy: the class has what the loops need.
    _for_steps: StepperFactory[Stepper] = ModelParallelStepper
