"""Fully sharded data parallel training by PyTorch itself. Runs on executors.

Source: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023,
arXiv:2304.11277; in the form that shards each parameter by its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from pipelines.models.frameworks.torch_sharding import Inputs
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.base import Collectives
from pipelines.training.steppers.base import Stepper, StepperFactory
from pipelines.training.steppers.sharded import KINDS, ShardedStepper, optimiser_of
from pipelines.training.steppers.torch import total_norm
from pipelines.training.steppers.torch_reconstruction import Part


class FsdpStepper(ShardedStepper):
    """Parameters, gradients and moments in parts; see :class:`.sharded.ShardedStepper`.

    Gradients are reduced after each granule, so that only those of one unit are ever whole.
    """

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint, collectives: Collectives) -> None:
        super().__init__(task, checkpoint, collectives)
        mesh = init_device_mesh(self._device.type, (collectives.workers,))
        for unit in self._encoder.units():
            fully_shard(unit, mesh=mesh)
        fully_shard(self._encoder, mesh=mesh)
        weights = self._encoder.weights
        self._optimiser = optimiser_of(weights, self._training.weight_decay)
        if checkpoint.moments:
            self._take(weights, checkpoint)

    def checkpoint(self, step: int) -> Checkpoint:
        """See :meth:`.sharded.ShardedStepper.checkpoint`."""
        parts = self._encoder.weights
        moments = {
            f"{kind}/{name}": self._optimiser.state[part][key]
            for kind, key in KINDS.items()
            for name, part in parts.items()
        }
        return Checkpoint(
            step, self._spec, self._whole(parts, _gather), self._whole(moments, _gather)
        )

    def _embed(self, sides: Sequence[Inputs] | Sequence[Part]) -> list[torch.Tensor]:
        embeddings: list[torch.Tensor] = self._encoder(sides)
        return embeddings

    def _backward(self, loss: torch.Tensor, granules: int, *, last: bool) -> None:
        (loss / granules).backward()

    def _update(self, learning_rate: float) -> None:
        parameters = list(self._encoder.parameters())
        norm = total_norm(one.grad for one in parameters)
        clip = self._training.clip_norm
        if clip:
            torch.nn.utils.clip_grads_with_norm_(parameters, clip, norm)
        self.gradient_norm = float(_gather(norm))
        for group in self._optimiser.param_groups:
            group["lr"] = learning_rate
        self._optimiser.step()
        self._optimiser.zero_grad()

    def _take(self, weights: Mapping[str, DTensor], checkpoint: Checkpoint) -> None:
        """Gives the optimiser this worker's part of the moments."""
        for name, part in weights.items():
            state = {"step": torch.tensor(float(checkpoint.step), device=self._device)}
            for kind, key in KINDS.items():
                whole = torch.tensor(checkpoint.moments[f"{kind}/{name}"], device=self._device)
                # Every worker has read the whole: nothing is sent.
                state[key] = distribute_tensor(
                    whole, part.device_mesh, part.placements, src_data_rank=None
                )
            self._optimiser.state[part] = state


def _gather(part: DTensor) -> torch.Tensor:
    whole: torch.Tensor = part.full_tensor()
    return whole


if TYPE_CHECKING:
    # mypy: the class has what the loops need.
    _for_steps: StepperFactory[Stepper] = FsdpStepper
