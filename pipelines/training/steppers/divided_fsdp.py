"""Tensor parallel training whose replicas share out the state (fully sharded). Runs on executors.

Each of the members of a replica has a part of every divided matrix, as in :mod:`.model_parallel`,
and of that part each replica holds an equal share, as in :mod:`.fsdp`. So of W workers each holds
about 1/W of the state; a member's part of a layer is put together among the replicas, and the layer
computed by the members.

Source: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023,
arXiv:2304.11277, whose section on interoperability puts the two together in this way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.device_mesh import DeviceMesh

from pipelines.models.frameworks.torch_sharding import EncoderModule, divided_module
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.base import Collectives
from pipelines.training.devices import worker_device
from pipelines.training.feed import StepWork
from pipelines.training.steppers.base import Stepper, StepperFactory
from pipelines.training.steppers.fsdp import FsdpStepper
from pipelines.training.steppers.own_part import OwnPart
from pipelines.training.steppers.sharded import KINDS
from pipelines.training.steppers.torch import to_numpy
from pipelines.training.steppers.worker_groups import check_members, worker_groups


class DividedFsdpStepper(FsdpStepper):
    """Makes updates of this worker's share of a member's part; see :class:`.base.Stepper`.

    Args:
        checkpoint: The state to begin with, of the whole encoder.
        collectives: Between all workers.
    """

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint, collectives: Collectives) -> None:
        self._own = OwnPart(task, checkpoint)
        self._groups = worker_groups(task, worker_device())
        part = self._own.of(checkpoint)
        super().__init__(task, part, self._groups.copies, collectives)
        self._has_agreed = False

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Makes one update from the granules of this worker's replica."""
        loss = super().step(work, learning_rate)
        if not self._has_agreed:
            self._check_members(work.index + 1)
            self._has_agreed = True
        return loss

    def checkpoint(self, step: int) -> Checkpoint:
        """The state before a step; its arrays are with rank 0. All workers call it at once."""
        weights = self._own.gathered(self._weight, self._device)
        moments = self._own.gathered(self._moment_of, self._device, list(KINDS))
        return Checkpoint(step, self._spec, weights, moments)

    def _module(self) -> EncoderModule:
        return divided_module(self._spec, self._training, self._groups.members)

    def _mesh(self) -> DeviceMesh:
        return DeviceMesh.from_group(self._groups.copies.group, self._device.type)

    def _norm(self) -> torch.Tensor:
        """The norm over all parts; what each member has counts once."""
        members = self._groups.members
        counted = [name for name in self._parts if name in self._own.axes or members.member == 0]
        return members.add_up_in_place(self._square(counted)).sqrt()

    def _check_members(self, step: int) -> None:
        """Whether members hold the same share of what each of them has as a whole."""
        names = [name for name in self._locals if name not in self._own.axes]
        weights = {name: to_numpy(self._locals[name]) for name in names}
        moments = {
            f"{kind}/{name}": to_numpy(self._state[name][key])
            for kind, key in KINDS.items()
            for name in names
        }
        own = Checkpoint(step, self._spec, weights, moments)
        check_members(own, self._own.axes, self._groups.members, self._device)


if TYPE_CHECKING:
    # mypy: the class has what the loops need.
    _for_steps: StepperFactory[Stepper] = DividedFsdpStepper
