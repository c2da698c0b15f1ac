"""Training in which several workers hold each layer together (tensor parallel). Runs on executors.

A worker's part of the encoder is plain tensors, so all that :class:`.torch.TorchStepper` does is
done with it as it is: gradients are averaged over the workers that hold the same part, one of each
replica. What differs is the forward pass, the norm of the gradient, and how a checkpoint is read
and written: in whole arrays, so that it can be gone on from in any other layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from pipelines.models.adaptation import effective
from pipelines.models.architecture import form_of
from pipelines.models.frameworks.torch import PRECISIONS, Encoder
from pipelines.models.frameworks.torch_division import (
    DividedEncode,
    DividedForm,
    Part,
)
from pipelines.runs.checkpoint import AVERAGE, Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.agreement import check_agreement
from pipelines.training.collectives.base import Collectives
from pipelines.training.devices import worker_device
from pipelines.training.feed import StepWork
from pipelines.training.steppers.base import Stepper, StepperFactory
from pipelines.training.steppers.own_part import OwnPart
from pipelines.training.steppers.torch import TorchStepper, total_norm
from pipelines.training.steppers.worker_groups import check_members, worker_groups


class ModelParallelStepper(TorchStepper):
    """Makes updates of a part of the encoder; see :class:`.base.Stepper`.

    Args:
        checkpoint: The state to begin with, of the whole encoder.
        collectives: Between all workers.
    """

    sharded = True

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint, collectives: Collectives) -> None:
        self._placement, self._place = task.placement, task.place
        self._own = OwnPart(task, checkpoint)
        groups = worker_groups(task, worker_device())
        self._members, self._stages = groups.members, groups.stages
        super().__init__(task, self._own.of(checkpoint), groups.copies, collectives)
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
        weights = self._own.gathered(self._weights.__getitem__, self._device)
        moments = self._own.gathered(self._moments.__getitem__, self._device, kinds)
        return Checkpoint(step, self._spec, weights, moments)

    def _encoder(self) -> Encoder:
        weights = effective(self._weights, self._frozen, self._scale)
        return Encoder(self._spec, weights, self._divided(weights))

    @property
    def _part(self) -> Part:
        return Part(self._own.layers, self._members)

    def _divided(self, weights: Mapping[str, torch.Tensor]) -> DividedEncode:
        """The forward pass of this worker's part."""
        form: DividedForm = form_of(self._spec, "torch_division")
        return form(self._spec, weights, PRECISIONS[self._training.precision], self._part)

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
        check_members(own, self._own.axes, self._members, self._device)


if TYPE_CHECKING:
    # mypy: the class has what the loops need.
    _for_steps: StepperFactory[Stepper] = ModelParallelStepper
