"""ZeRO by DeepSpeed. Runs on executors.

Source: Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models", SC 2020, arXiv:1910.02054.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.distributed import get_rank, get_world_size

from pipelines.models.frameworks.torch_sharding import Inputs
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.base import Collectives
from pipelines.training.devices import worker_device
from pipelines.training.steppers.base import Stepper, StepperFactory
from pipelines.training.steppers.sharded import KINDS, ShardedStepper, optimiser_of
from pipelines.training.steppers.torch_reconstruction import Part

# Set before the import, which otherwise probes the machine for accelerators, and warns.
os.environ.setdefault("DS_ACCELERATOR", worker_device().type)
import deepspeed
from deepspeed.ops import __compatible_ops__ as compatible_operations
from deepspeed.utils import (
    lazy_init_hp_params_optimizer_state,
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_get_local_optimizer_state,
    safe_set_full_optimizer_state,
    safe_set_local_optimizer_state,
)

BUCKET_ELEMENTS = 2**24
"""Elements that are reduced or gathered at once; the library's default buffers take two
gigabytes."""
LARGEST_WHOLE = 4000
"""Arrays of up to so many elements stay whole on each worker, as biases and layer norms: gathering
each would cost a message."""


class Stage(NamedTuple):
    """How DeepSpeed keeps the state.

    Attributes:
        number: Of ZeRO.
        flat_parts: Gives what is joined of this worker's parts, each with the parameters to link
            to it.
        set_moment: Gives a parameter's part its share of an array of the optimiser.
    """

    number: int
    flat_parts: Callable[[Any], Iterable[tuple[list[Any], torch.Tensor]]]
    set_moment: Callable[[Any, torch.Tensor, str], None]


def _linked_parts(zero: Any) -> Iterable[tuple[list[Any], torch.Tensor]]:
    return zip(zero.bit16_groups, zero.single_partition_of_fp32_groups, strict=True)


def _sole_parts(zero: Any) -> Iterable[tuple[list[Any], torch.Tensor]]:
    """Of stage 3, where each parameter knows its place by itself."""
    return (([], flat) for flat in zero.fp32_partitioned_groups_flat)


def _set_part(part: Any, whole: torch.Tensor, key: str) -> None:
    """Of stage 3, where the last part is padded; the library does not pad whole arrays itself."""
    size = safe_get_local_optimizer_state(part, key).numel()
    padded = torch.nn.functional.pad(whole.flatten(), (0, size * get_world_size() - whole.numel()))
    safe_set_local_optimizer_state(part, padded[size * get_rank() :][:size], key)


STAGES = {
    "optimizer": Stage(1, _linked_parts, safe_set_full_optimizer_state),
    "gradients": Stage(2, _linked_parts, safe_set_full_optimizer_state),
    "parameters": Stage(3, _sole_parts, _set_part),
}


class DeepSpeedStepper(ShardedStepper):
    """The state in parts, as ``training.sharding`` says; see :class:`.sharded.ShardedStepper`.

    The library computes in fp32, in which the encoder casts what its matrix products take, and
    with PyTorch's AdamW: the library's own optimisers are compiled where they run.
    """

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint, collectives: Collectives) -> None:
        super().__init__(task, checkpoint, collectives)
        weights = self._encoder.weights
        optimiser = optimiser_of(weights, self._training.weight_decay)
        self._stage = STAGES[self._training.sharding]
        # The library would compile its own all-reduce in shared memory; the process group has one.
        compatible_operations["deepspeed_shm_comm"] = False
        self._engine, *_ = deepspeed.initialize(
            model=self._encoder,
            optimizer=optimiser,
            config={
                "train_micro_batch_size_per_gpu": 1,
                "gradient_accumulation_steps": self._training.granules_per_step
                // collectives.workers,
                "gradient_clipping": self._training.clip_norm,
                "zero_optimization": {
                    "stage": self._stage.number,
                    "reduce_bucket_size": BUCKET_ELEMENTS,
                    "allgather_bucket_size": BUCKET_ELEMENTS,
                    "stage3_param_persistence_threshold": LARGEST_WHOLE,
                },
            },
        )
        take_moments(self._engine.optimizer, self._stage, weights, checkpoint)

    def checkpoint(self, step: int) -> Checkpoint:
        """See :meth:`.sharded.ShardedStepper.checkpoint`."""
        parts = self._encoder.weights
        moments: dict[str, np.ndarray] = {}
        for kind, key in KINDS.items():
            of_kind = {f"{kind}/{name}": part for name, part in parts.items()}
            gather = partial(safe_get_full_optimizer_state, optim_state_key=key)
            moments |= self._whole(of_kind, gather)
        return Checkpoint(step, self._spec, self._whole(parts, safe_get_full_fp32_param), moments)

    def _embed(self, sides: Sequence[Inputs] | Sequence[Part]) -> list[torch.Tensor]:
        embeddings: list[torch.Tensor] = self._engine(sides)
        return embeddings

    def _backward(self, loss: torch.Tensor, granules: int, *, last: bool) -> None:
        # It divides by the granules itself.
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss)

    def _update(self, learning_rate: float) -> None:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()
        self.gradient_norm = float(self._engine.get_global_grad_norm())


def take_moments(
    zero: Any, stage: Stage, weights: Mapping[str, torch.Tensor], checkpoint: Checkpoint
) -> None:
    """Gives DeepSpeed's optimiser its state.

    The library itself creates it at the first update, and then of one parameter group only.

    Args:
        zero: The optimiser.
        stage: Of ZeRO.
        weights: The module's parameters by name.
        checkpoint: The state to begin with.
    """
    device = next(iter(weights.values())).device
    for group, flat in stage.flat_parts(zero):
        zero.optimizer.state[flat] = {
            "step": torch.tensor(float(checkpoint.step), device=device),
            **{key: torch.zeros_like(flat) for key in KINDS.values()},
        }
        lazy_init_hp_params_optimizer_state(group, flat, zero.optimizer.state)
    for name, array in checkpoint.moments.items():
        kind, _, weight = name.partition("/")
        stage.set_moment(weights[weight], torch.tensor(array, device=device), KINDS[kind])


if TYPE_CHECKING:
    # mypy: the class has what the loops need.
    _for_steps: StepperFactory[Stepper] = DeepSpeedStepper
