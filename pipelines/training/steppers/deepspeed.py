"""ZeRO by DeepSpeed. Runs on executors.

Source: Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models", SC 2020, arXiv:1910.02054.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.distributed import get_rank, get_world_size

from pipelines.models.arrays import LazyArrays
from pipelines.models.frameworks.torch_sharding import Inputs, allocate, copy_weights
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.base import Collectives
from pipelines.training.devices import worker_device
from pipelines.training.steppers.base import Stepper, StepperFactory
from pipelines.training.steppers.sharded import KINDS, ShardedStepper, optimiser_of
from pipelines.training.steppers.torch import to_numpy
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
    set_z3_leaf_modules,
)

BUCKET_ELEMENTS = 2**24
"""Elements that are reduced or gathered at once; the library's default buffers take two
gigabytes."""
GROUP_ELEMENTS = 2**26
"""Elements of a worker's part that stage 3 updates at once."""
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
        self._stage = STAGES[self._training.sharding]
        # The library would compile its own all-reduce in shared memory; the process group has one.
        compatible_operations["deepspeed_shm_comm"] = False
        config = self._config(collectives.workers)
        self._fill(config, checkpoint.weights)
        decay = self._training.weight_decay
        optimiser = optimiser_of(self._encoder.weights, self._shapes, decay)
        self._engine, *_ = deepspeed.initialize(
            model=self._encoder, optimizer=optimiser, config=config
        )
        self._take(checkpoint)
        self._let_go_after(optimiser)

    def checkpoint(self, step: int) -> Checkpoint:
        """See :meth:`.sharded.ShardedStepper.checkpoint`."""
        parts = self._encoder.weights

        def moment(name: str) -> np.ndarray:
            kind, _, weight = name.partition("/")
            whole = safe_get_full_optimizer_state(parts[weight], KINDS[kind])
            if self._disk is not None:
                self._disk.let_go()
            return to_numpy(whole)

        return Checkpoint(
            step,
            self._spec,
            LazyArrays(self._shapes, lambda name: to_numpy(safe_get_full_fp32_param(parts[name]))),
            LazyArrays(self._moment_shapes(), moment),
        )

    def _config(self, workers: int) -> dict[str, Any]:
        """What the library is told."""
        zero: dict[str, Any] = {
            "stage": self._stage.number,
            "reduce_bucket_size": BUCKET_ELEMENTS,
            "allgather_bucket_size": BUCKET_ELEMENTS,
            "stage3_param_persistence_threshold": LARGEST_WHOLE,
            "stage3_prefetch_bucket_size": BUCKET_ELEMENTS,
            "stage3_max_live_parameters": BUCKET_ELEMENTS,
            "stage3_max_reuse_distance": 0,
            "sub_group_size": GROUP_ELEMENTS,
        }
        own: dict[str, Any] = {}
        if self._training.offload != "none" and self._device.type == "cuda":
            zero["offload_optimizer"] = {"device": "cpu"}
            # The optimiser is PyTorch's there, too.
            own["zero_force_ds_cpu_optimizer"] = False
            if self._stage.number == STAGES["parameters"].number:
                zero["offload_param"] = {"device": "cpu"}
        return {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": self._training.granules_per_step // workers,
            "gradient_clipping": self._training.clip_norm,
            "zero_optimization": zero,
            **own,
        }

    def _fill(self, config: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Gives the parameters their numbers; in stage 3 unit by unit, which is split at once."""
        units = [*self._encoder.units(), self._encoder]
        inner = {type(unit) for unit in units[:-1] if any(unit.children())}
        splits = self._stage.number == STAGES["parameters"].number
        if splits and inner:
            # They are gathered as a whole, like those that have their parameters themselves.
            set_z3_leaf_modules(self._encoder, list(inner))
        filled: set[str] = set()
        for unit in units:
            allocate(unit, self._device)
            own = {name: one for name, one in self._weights_of(unit).items() if name not in filled}
            copy_weights(own, arrays)
            filled |= own.keys()
            if splits and own:
                deepspeed.zero.Init(module=unit, config_dict_or_path=config)
        # The library moves those of no module whose parameters are split already.
        for buffer in self._encoder.buffers():
            buffer.data = buffer.data.to(self._device)

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

    def _take(self, checkpoint: Checkpoint) -> None:
        """Gives the optimiser its state.

        The library itself creates it at the first update, and then of one parameter group only.
        """
        zero = self._engine.optimizer
        self._begin_moments(flat for _, flat in self._stage.flat_parts(zero))
        for group, flat in self._stage.flat_parts(zero):
            zero.optimizer.state[flat] = {
                "step": torch.tensor(float(checkpoint.step), device=flat.device),
                **{key: self._moment(flat) for key in KINDS.values()},
            }
            lazy_init_hp_params_optimizer_state(group, flat, zero.optimizer.state)
        weights = self._encoder.weights
        for name, array in checkpoint.moments.items():
            kind, _, weight = name.partition("/")
            whole = torch.tensor(array, device=self._device)
            self._stage.set_moment(weights[weight], whole, KINDS[kind])
            if self._disk is not None:
                self._disk.let_go()


if TYPE_CHECKING:
    # mypy: the class has what the loops need.
    _for_steps: StepperFactory[Stepper] = DeepSpeedStepper
