"""Training by libraries with sharded state, such as PyTorch's FSDP.

Runs on executors. Source: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data
Parallel", VLDB 2023, arXiv:2304.11277; in the form with each parameter sharded by rows.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from pipelines.errors import InputError
from pipelines.models.architecture import Shapes
from pipelines.models.arrays import LazyArrays, shapes_of
from pipelines.models.frameworks.torch_module import (
    EncoderModule,
    Inputs,
    allocate,
    encoder_module,
)
from pipelines.models.spec import EncoderSpec
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.base import Collectives
from pipelines.training.steppers.base import Stepper, StepperFactory
from pipelines.training.steppers.numpy_adamw import BETA_1, BETA_2, EPSILON
from pipelines.training.steppers.torch import BatchedWork, to_numpy, total_norm
from pipelines.training.steppers.torch_token_loss import Examples, TokenModule

KINDS = {"m": "exp_avg", "v": "exp_avg_sq"}
"""The optimiser's names for the checkpoints' m and v."""

_ALIGNMENT = 64
_BYTES = 4


def kind_and_name(key: str) -> tuple[str, str]:
    """Return the optimiser's name of a moment, and the name of its weight.

    `key` is ``m`` or ``v``, a slash, and the name of the weight, as in checkpoints.
    """
    kind, _, name = key.partition("/")
    return KINDS[kind], name


class DiskTensors:
    """fp32 tensors, contiguous in a memory-mapped file.

    The file has no name, so it disappears with the process at any kind of end. It is in
    ``tempfile``'s folder: ``TMPDIR``, or ``/tmp``.

    Args:
        sizes: Numbers of each future tensor of :meth:`zeros`, in any order.

    Raises:
        InputError: The disk has no room for it.
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        length = max(sum(map(_room, sizes)), 1)
        self._taken = 0
        with tempfile.TemporaryFile() as file:
            try:
                # In a file with holes, a write to a full disk would kill the process.
                os.posix_fallocate(file.fileno(), 0, length)
            except OSError as error:
                raise InputError(
                    "training.offload",
                    f"{tempfile.gettempdir()} has no room for {length / 1e9:.1f} GB of moments"
                    f" ({error.strerror})",
                    "Set TMPDIR of the executors to a larger disk, or use more workers",
                ) from error
            self._mapped = mmap.mmap(file.fileno(), length)

    def zeros(self, size: int) -> torch.Tensor:
        """Return a flat tensor at a new place in the file."""
        if not size:
            return torch.zeros(0)
        begin, self._taken = self._taken, self._taken + _room(size)
        return torch.frombuffer(self._mapped, dtype=torch.float32, count=size, offset=begin)

    def let_go(self) -> None:
        """Release touched pages from this process's memory; the system writes them out."""
        self._mapped.madvise(mmap.MADV_DONTNEED)


def _room(size: int) -> int:
    """Return the bytes of a tensor's place."""
    return -(-size * _BYTES // _ALIGNMENT) * _ALIGNMENT


class ShardedStepper(BatchedWork):
    """The common part of steppers with a state sharded by modules.

    The library averages the gradients, so the collectives carry losses and embeddings only. They
    join the workers of one sharded state; `everyone` joins all workers, if there are more.
    """

    _forward: Callable[[Any], list[torch.Tensor]]
    """Calls the module through the library; it gathers parameters on the way."""

    def __init__(
        self,
        task: WorkerTask,
        checkpoint: Checkpoint,
        collectives: Collectives,
        everyone: Collectives | None = None,
    ) -> None:
        super().__init__(task, checkpoint, collectives, everyone)
        self._shapes = shapes_of(checkpoint.weights)
        # Without memory: nobody holds all of it at any time.
        self._encoder: EncoderModule | TokenModule
        if self._token_work is not None:
            self._encoder = TokenModule(self._token_work, self._shapes)
        else:
            self._encoder = self._module()
        self._disk: DiskTensors | None = None

    @property
    def _is_away(self) -> bool:
        """Whether shards of parameters are in the host's memory, not the GPU's."""
        return self._training.offload != "none" and self._device.type == "cuda"

    def _module(self) -> EncoderModule:
        """Return the encoder, without memory."""
        return encoder_module(self._spec, self._training)

    def _embeddings(self, packs: Sequence[Inputs]) -> list[torch.Tensor]:
        return self._forward(packs)

    def _token_loss(self, part: Examples) -> torch.Tensor:
        (loss,) = self._forward([part])
        return loss

    def _agreed(self, widths: np.ndarray) -> np.ndarray:
        """Return the same widths on every worker: they embed in step.

        They follow from all granules of the step, for any number of workers.
        """
        if self._training.tokens_per_forward is None and not self.packs_texts:
            return widths
        everywhere = np.asarray(self._collectives.all_gather(widths))
        return np.broadcast_to(everywhere.max(axis=0), widths.shape)

    def _weights_of(self, module: torch.nn.Module) -> dict[str, Any]:
        # By identity, since a module's own names differ from the encoder's.
        inside = {id(parameter) for parameter in module.parameters()}
        weights = self._encoder.weights.items()
        return {name: weight for name, weight in weights if id(weight) in inside}

    def _begin_moments(self, parts: Iterable[torch.Tensor]) -> None:
        """Make room on the disk for the moments of this worker's parts, if configured."""
        if self._training.offload == "disk":
            self._disk = DiskTensors(part.numel() for part in parts for _ in KINDS)

    def _let_go(self) -> None:
        """Release moments on the disk from memory."""
        if self._disk is not None:
            self._disk.let_go()

    def _let_go_after(self, optimiser: torch.optim.Optimizer) -> None:
        """Release moments from memory after each of an optimiser's updates."""
        if (disk := self._disk) is not None:
            optimiser.register_step_post_hook(lambda *of_step: disk.let_go())


def lazy_checkpoint(
    step: int,
    spec: EncoderSpec,
    shapes: Shapes,
    weight: Callable[[str], np.ndarray],
    moment: Callable[[str], np.ndarray],
    kinds: Iterable[str] = KINDS,
) -> Checkpoint:
    """Return the state before a step, with arrays to assemble at their first use.

    `weight` gives a weight by name, `moment` a moment by its kind, a slash, and the name of its
    weight; all workers call them at once.
    """
    moments = {f"{kind}/{name}": shape for kind in kinds for name, shape in shapes.items()}
    return Checkpoint(step, spec, LazyArrays(shapes, weight), LazyArrays(moments, moment))


def fresh_state(part: torch.Tensor, step: int, disk: DiskTensors | None) -> dict[str, torch.Tensor]:
    """Return an optimiser's state of a part before a step: zeros, on the disk if there is one."""
    state = {"step": torch.tensor(float(step), device=part.device)}
    for key in KINDS.values():
        zeros = torch.zeros_like(part) if disk is None else disk.zeros(part.numel())
        state[key] = zeros.view(part.shape)
    return state


def optimiser_of(
    weights: Mapping[str, torch.Tensor], shapes: Shapes, weight_decay: float
) -> torch.optim.AdamW:
    """Return AdamW for this worker's parts, which may be flat; biases and layer norms do not decay.

    `shapes` are those of the whole weights.
    """
    matrices = [value for name, value in weights.items() if len(shapes[name]) > 1]
    vectors = [value for name, value in weights.items() if len(shapes[name]) == 1]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        betas=(BETA_1, BETA_2),
        eps=EPSILON,
        fused=True,
    )


def set_rate(optimiser: Any, learning_rate: float) -> None:
    """Set the learning rate of all of an optimiser's parameter groups."""
    for group in optimiser.param_groups:
        group["lr"] = learning_rate


class FsdpStepper(ShardedStepper):
    """Holds parameters, gradients and moments in shards; see :class:`ShardedStepper`.

    The library reduces gradients after each granule, so only one unit's gradients are ever whole.
    Each unit has a separate optimiser, so only one unit's moments on the disk are in memory at a
    time.
    """

    def __init__(
        self,
        task: WorkerTask,
        checkpoint: Checkpoint,
        collectives: Collectives,
        everyone: Collectives | None = None,
    ) -> None:
        super().__init__(task, checkpoint, collectives, everyone)
        mesh, policy = self._mesh(), CPUOffloadPolicy() if self._is_away else OffloadPolicy()
        units = list(self._encoder.units())
        for module in (*units, self._encoder):
            fully_shard(module, mesh=mesh, offload_policy=policy)
        allocate(self._encoder, torch.device("cpu") if self._is_away else self._device)
        self._forward = self._encoder
        self._parts: dict[str, DTensor] = self._encoder.weights
        for name, part in self._parts.items():
            self._fill(_local(part), checkpoint.weights[name])
        # The optimisers see plain tensors of this worker's part. With the library's `DTensor` the
        # moments would be on the GPU, even if the part is in the host's memory.
        self._locals = {
            name: torch.nn.Parameter(_local(part)) for name, part in self._parts.items()
        }
        decay = self._training.weight_decay
        self._begin_moments(self._locals.values())
        self._state: dict[str, dict[str, Any]] = {}
        self._optimisers = []
        for names in filter(None, self._by_unit(units)):
            optimiser = optimiser_of(
                {name: self._locals[name] for name in names}, self._shapes, decay
            )
            for name in names:
                optimiser.state[self._locals[name]] = self._begun(name, checkpoint)
            self._let_go_after(optimiser)
            self._optimisers.append(optimiser)
        self._let_go()

    def checkpoint(self, step: int) -> Checkpoint:
        """Return the state before a step; reading an array gathers it."""
        return lazy_checkpoint(
            step,
            self._spec,
            self._shapes,
            lambda name: to_numpy(self._weight(name)),
            lambda key: to_numpy(self._moment(key)),
        )

    def _mesh(self) -> DeviceMesh:
        return init_device_mesh(self._device.type, (self._collectives.workers,))

    def _backward(self, loss: torch.Tensor, *, last: bool) -> None:
        loss.backward()

    def _update(self, loss: torch.Tensor, learning_rate: float, number: int) -> torch.Tensor:
        norm = self._norm()
        if (excess := self._excess(norm)) is not None:
            for part in self._parts.values():
                gradient = _local(part.grad)
                gradient.div_(excess.to(gradient.device))
        self.gradient_norm = float(norm)
        for name, part in self._parts.items():
            # The library may have moved the part in memory before the first pass.
            self._locals[name].data, self._locals[name].grad = _local(part), _local(part.grad)
            part.grad = None
        for optimiser in self._optimisers:
            set_rate(optimiser, learning_rate)
            optimiser.step()
            optimiser.zero_grad()
        return self._mean(loss)

    def _norm(self) -> torch.Tensor:
        """Return the norm of the gradient over all workers, on the worker's device."""
        return self._square(self._parts).sqrt()

    def _square(self, names: Iterable[str]) -> torch.Tensor:
        """Return the squared norm of gradients, over the workers of the sharded state."""
        norm = total_norm(_local(self._parts[name].grad) for name in names).to(self._device)
        # The collectives only average, so the sum is the mean times the workers.
        return self._mean(norm.square()) * self._collectives.workers

    def _by_unit(self, units: Sequence[torch.nn.Module]) -> Iterator[Sequence[str]]:
        """Yield the names of the weights in each unit, and in none of them."""
        rest = dict.fromkeys(self._parts)
        for unit in units:
            names = list(self._weights_of(unit))
            yield names
            for name in names:
                del rest[name]
        yield list(rest)

    def _fill(self, local: torch.Tensor, array: np.ndarray) -> None:
        """Fill this worker's rows, without reading other rows of the array."""
        workers = self._collectives.workers
        # `fully_shard` gives each worker the share rounded up, and the last ones the rest.
        begin = self._collectives.rank * -(-len(array) // workers)
        local.copy_(torch.from_numpy(array[begin : begin + len(local)]))

    def _begun(self, name: str, checkpoint: Checkpoint) -> dict[str, Any]:
        """Return the optimiser's state of this worker's part of a weight, and keep it."""
        state = fresh_state(self._locals[name].detach(), checkpoint.step, self._disk)
        if checkpoint.moments:
            for kind, key in KINDS.items():
                self._fill(state[key], checkpoint.moments[f"{kind}/{name}"])
        self._state[name] = state
        return state

    def _weight(self, name: str) -> torch.Tensor:
        """Return a weight, gathered by the workers of its shards; all of them call it."""
        return self._gathered(name, _local(self._parts[name]))

    def _moment(self, key: str) -> torch.Tensor:
        """Return a moment, by its kind and the name of its weight, as :meth:`_weight` does."""
        kind, name = kind_and_name(key)
        return self._gathered(name, self._state[name][kind])

    def _gathered(self, name: str, local: torch.Tensor) -> torch.Tensor:
        part = self._parts[name]
        # NCCL cannot send from the host's memory.
        on_device = DTensor.from_local(
            local.to(self._device),
            part.device_mesh,
            part.placements,
            run_check=False,
            shape=part.shape,
            stride=part.stride(),
        )
        gathered: torch.Tensor = on_device.full_tensor()
        return gathered


def _local(part: DTensor) -> torch.Tensor:
    local: torch.Tensor = part.detach().to_local()
    return local


if TYPE_CHECKING:
    # mypy: the class has what the loops need.
    _for_steps: StepperFactory[Stepper] = FsdpStepper
