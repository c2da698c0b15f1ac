"""Fully sharded data parallel training by PyTorch itself. Runs on executors.

Source: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023,
arXiv:2304.11277; in the form that shards each parameter by its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from pipelines.models.arrays import LazyArrays
from pipelines.models.frameworks.torch_sharding import Inputs, allocate
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.base import Collectives
from pipelines.training.steppers.base import Stepper, StepperFactory
from pipelines.training.steppers.sharded import KINDS, ShardedStepper, optimiser_of
from pipelines.training.steppers.torch import to_numpy, total_norm
from pipelines.training.steppers.torch_reconstruction import Part


class FsdpStepper(ShardedStepper):
    """Parameters, gradients and moments in parts; see :class:`.sharded.ShardedStepper`.

    Gradients are reduced after each granule, so that only those of one unit are ever whole. Each
    unit has an optimiser of its own, for the moments of one to be in memory at a time if they are
    on the disk.
    """

    def __init__(
        self,
        task: WorkerTask,
        checkpoint: Checkpoint,
        collectives: Collectives,
        everyone: Collectives | None = None,
    ) -> None:
        super().__init__(task, checkpoint, collectives, everyone)
        mesh = self._mesh()
        # Where the workers compute on GPUs, what is not gathered is in the memory of the host.
        away = self._training.offload != "none" and self._device.type == "cuda"
        policy = CPUOffloadPolicy() if away else OffloadPolicy()
        units = list(self._encoder.units())
        for unit in units:
            fully_shard(unit, mesh=mesh, offload_policy=policy)
        fully_shard(self._encoder, mesh=mesh, offload_policy=policy)
        allocate(self._encoder, torch.device("cpu") if away else self._device)
        self._parts: dict[str, DTensor] = self._encoder.weights
        for name, part in self._parts.items():
            self._fill(_local(part), checkpoint.weights[name])
        # The optimisers see this worker's part alone. The library's tensors in parts would have
        # their moments on the GPU, also where the part is in the memory of the host.
        self._locals = {
            name: torch.nn.Parameter(_local(part)) for name, part in self._parts.items()
        }
        decay = self._training.weight_decay
        self._optimisers = [
            optimiser_of({name: self._locals[name] for name in own}, self._shapes, decay)
            for own in self._by_unit(units)
            if own
        ]
        self._state: dict[str, dict[str, Any]] = {}
        self._take(checkpoint)

    def checkpoint(self, step: int) -> Checkpoint:
        """See :meth:`.sharded.ShardedStepper.checkpoint`."""
        return Checkpoint(
            step,
            self._spec,
            LazyArrays(self._shapes, lambda name: to_numpy(self._weight(name))),
            LazyArrays(self._moment_shapes(), lambda key: to_numpy(self._moment_of(key))),
        )

    def _mesh(self) -> DeviceMesh:
        """Of the workers that share the state out."""
        return init_device_mesh(self._device.type, (self._collectives.workers,))

    def _embed(self, sides: Sequence[Inputs] | Sequence[Part]) -> list[torch.Tensor]:
        embeddings: list[torch.Tensor] = self._encoder(sides)
        return embeddings

    def _backward(self, loss: torch.Tensor, granules: int, *, last: bool) -> None:
        (loss / granules).backward()

    def _update(self, learning_rate: float) -> None:
        norm = self._norm()
        clip = self._training.clip_norm
        if clip:
            excess = (norm / clip).clamp(min=1.0)
            for one in self._parts.values():
                gradient = _local(one.grad)
                gradient.div_(excess.to(gradient.device))
        self.gradient_norm = float(norm)
        for name, part in self._parts.items():
            # The library may have given the part another place in memory before the first pass.
            self._locals[name].data, self._locals[name].grad = _local(part), _local(part.grad)
            part.grad = None
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = learning_rate
            optimiser.step()
            optimiser.zero_grad()

    def _norm(self) -> torch.Tensor:
        """The norm of the gradient over all workers, on the device that they exchange from."""
        return self._square(self._parts).sqrt()

    def _square(self, names: Iterable[str]) -> torch.Tensor:
        """The square of the norm of some weights' gradients, over those who share them out."""
        own = total_norm(_local(self._parts[name].grad) for name in names).to(self._device)
        (mean,) = self._collectives.all_reduce_mean([own.square()])
        return mean * self._collectives.workers

    def _by_unit(self, units: Sequence[torch.nn.Module]) -> Iterator[Sequence[str]]:
        """The names of what is in each unit, and in none of them."""
        rest = dict.fromkeys(self._parts)
        for unit in units:
            own = list(self._weights_of(unit))
            yield own
            for name in own:
                del rest[name]
        yield list(rest)

    def _fill(self, local: torch.Tensor, array: np.ndarray) -> None:
        """Gives this worker's rows their numbers; no others are read of an array."""
        workers = self._collectives.workers
        begin = self._collectives.rank * -(-len(array) // workers)
        local.copy_(torch.from_numpy(array[begin : begin + len(local)]))

    def _take(self, checkpoint: Checkpoint) -> None:
        """Gives the optimisers this worker's part of the moments."""
        self._begin_moments(self._locals.values())
        names = {id(local): name for name, local in self._locals.items()}
        for optimiser in self._optimisers:
            for local in chain.from_iterable(group["params"] for group in optimiser.param_groups):
                name = names[id(local)]
                state = {"step": torch.tensor(float(checkpoint.step), device=local.device)}
                for kind, key in KINDS.items():
                    moment = self._moment(local.detach())
                    if checkpoint.moments:
                        self._fill(moment, checkpoint.moments[f"{kind}/{name}"])
                    state[key] = moment
                optimiser.state[local] = self._state[name] = state
            self._let_go_after(optimiser)
        if self._disk is not None:
            self._disk.let_go()

    def _weight(self, name: str) -> torch.Tensor:
        """A weight, put together by those who share it out; all of them call it."""
        return self._whole(name, _local(self._parts[name]))

    def _moment_of(self, key: str) -> torch.Tensor:
        """The same of a moment, by its kind and the name of its weight with a slash between."""
        kind, _, name = key.partition("/")
        return self._whole(name, self._state[name][KINDS[kind]])

    def _whole(self, name: str, local: torch.Tensor) -> torch.Tensor:
        part = self._parts[name]
        # A GPU's library of messages sends nothing that is in the host's memory.
        here = DTensor.from_local(
            local.to(self._device),
            part.device_mesh,
            part.placements,
            run_check=False,
            shape=part.shape,
            stride=part.stride(),
        )
        whole: torch.Tensor = here.full_tensor()
        return whole


def _local(part: DTensor) -> torch.Tensor:
    """This worker's part, to be written to."""
    local: torch.Tensor = part.detach().to_local()
    return local


if TYPE_CHECKING:
    # mypy: the class has what the loops need.
    _for_steps: StepperFactory[Stepper] = FsdpStepper
