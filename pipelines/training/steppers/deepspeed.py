"""ZeRO and pipelines by DeepSpeed. Runs on executors.

Sources: Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models", SC 2020, arXiv:1910.02054; Rasley, Rajbhandari, Ruwase and He, "DeepSpeed: System
Optimizations Enable Training Deep Learning Models with Over 100 Billion Parameters", KDD 2020; the
documentation of its ``PipelineModule``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed import get_rank, get_world_size

from pipelines.models.architecture import Shapes
from pipelines.models.arrays import shapes_of
from pipelines.models.frameworks.torch_division import Part
from pipelines.models.frameworks.torch_module import Unit, allocate, copy_weights
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.base import Collectives
from pipelines.training.devices import worker_device
from pipelines.training.steppers.base import Batch, Stepper, StepperFactory, StepWork
from pipelines.training.steppers.model_parallel import (
    OwnPart,
    StagedWork,
    StageModule,
    StepLoss,
)
from pipelines.training.steppers.sharded import (
    DiskTensors,
    ShardedStepper,
    fresh_state,
    kind_and_name,
    lazy_checkpoint,
    optimiser_of,
    set_rate,
)
from pipelines.training.steppers.torch import to_numpy

# Set before the import, since that would probe the machine for accelerators, and warn.
os.environ.setdefault("DS_ACCELERATOR", worker_device().type)
import deepspeed
from deepspeed.ops import __compatible_ops__ as compatible_operations
from deepspeed.runtime.pipe.module import PipelineModule
from deepspeed.runtime.pipe.topology import ProcessTopology
from deepspeed.utils import (
    lazy_init_hp_params_optimizer_state,
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_get_local_optimizer_state,
    safe_set_full_optimizer_state,
    safe_set_local_optimizer_state,
    set_z3_leaf_modules,
)

# The library would compile an all-reduce in shared memory; the process group already has one.
compatible_operations["deepspeed_shm_comm"] = False

BUCKET_ELEMENTS = 2**24
"""Elements to reduce or gather at once; the library's default buffers take 2 GB."""
GROUP_ELEMENTS = 2**26
"""Elements of a worker's part in one update of stage 3."""
LARGEST_WHOLE = 4000
"""Arrays up to this many elements stay whole on each worker, such as biases and layer norms:
gathering each would cost a message."""
_SELDOM = 2**31
"""Steps between two lines of the library's log."""


STAGES = {"optimizer": 1, "gradients": 2, "parameters": 3}
"""ZeRO's stages, by ``training.sharding``."""


def _flat_parts(zero: Any, stage: int) -> list[tuple[list[Any], torch.Tensor]]:
    """Return this worker's joined parts, each with the parameters to link to it."""
    if stage == STAGES["parameters"]:
        # In stage 3 each parameter knows its place by itself.
        return [([], flat) for flat in zero.fp32_partitioned_groups_flat]
    return list(zip(zero.bit16_groups, zero.single_partition_of_fp32_groups, strict=True))


def _set_moment(part: Any, moment: torch.Tensor, kind: str, stage: int) -> None:
    """Give a parameter's part its share of an optimiser's array."""
    if stage != STAGES["parameters"]:
        safe_set_full_optimizer_state(part, moment, kind)
        return
    # The last part has padding, and the library does not pad whole arrays itself.
    size = safe_get_local_optimizer_state(part, kind).numel()
    padding = size * get_world_size() - moment.numel()
    padded = torch.nn.functional.pad(moment.flatten(), (0, padding))
    safe_set_local_optimizer_state(part, padded[size * get_rank() :][:size], kind)


def _take_moments(
    zero: Any,
    stage: int,
    checkpoint: Checkpoint,
    weights: Mapping[str, Any],
    disk: DiskTensors | None = None,
) -> None:
    """Give the library's optimiser `zero` its state, with moments on `disk` if given.

    The library itself would create it at the first update, and only for one parameter group. The
    checkpoint of a start has no moments.
    """
    for group, flat in _flat_parts(zero, stage):
        zero.optimizer.state[flat] = fresh_state(flat, checkpoint.step, disk)
        lazy_init_hp_params_optimizer_state(group, flat, zero.optimizer.state)
    device = worker_device()
    for key, array in checkpoint.moments.items():
        kind, name = kind_and_name(key)
        _set_moment(weights[name], torch.tensor(array, device=device), kind, stage)
        if disk is not None:
            disk.let_go()


def _moment(weights: Mapping[str, Any], key: str) -> torch.Tensor:
    kind, name = kind_and_name(key)
    gathered: torch.Tensor = safe_get_full_optimizer_state(weights[name], kind)
    return gathered


class DeepSpeedStepper(ShardedStepper):
    """Holds the state in shards, by ``training.sharding``; see :class:`.ShardedStepper`.

    The library computes in fp32; the encoder casts the inputs of its matrix products. The optimiser
    is PyTorch's AdamW: the library's own ones need a compiler on the executors.
    """

    # ZeRO-3 notes the outputs of a module on the way back, and is told the number of granules.
    # Both must be the same on all workers, in every step.
    packs_texts = False

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint, collectives: Collectives) -> None:
        super().__init__(task, checkpoint, collectives)
        self._stage = STAGES[self._training.sharding]
        config = self._config(collectives.workers)
        self._fill(config, checkpoint.weights)
        weights = self._encoder.weights
        optimiser = optimiser_of(weights, self._shapes, self._training.weight_decay)
        self._engine, *_ = deepspeed.initialize(
            model=self._encoder, optimizer=optimiser, config=config
        )
        self._forward, zero = self._engine, self._engine.optimizer
        self._begin_moments(flat for _, flat in _flat_parts(zero, self._stage))
        _take_moments(zero, self._stage, checkpoint, weights, self._disk)
        self._let_go_after(optimiser)

    def checkpoint(self, step: int) -> Checkpoint:
        """Return the state before a step; reading an array gathers it."""
        parts = self._encoder.weights

        def moment(key: str) -> np.ndarray:
            gathered = _moment(parts, key)
            self._let_go()
            return to_numpy(gathered)

        return lazy_checkpoint(
            step,
            self._spec,
            self._shapes,
            lambda name: to_numpy(safe_get_full_fp32_param(parts[name])),
            moment,
        )

    def _config(self, workers: int) -> dict[str, Any]:
        """Return the library's configuration."""
        zero: dict[str, Any] = {
            "stage": self._stage,
            "reduce_bucket_size": BUCKET_ELEMENTS,
            "allgather_bucket_size": BUCKET_ELEMENTS,
            "stage3_param_persistence_threshold": LARGEST_WHOLE,
            "stage3_prefetch_bucket_size": BUCKET_ELEMENTS,
            "stage3_max_live_parameters": BUCKET_ELEMENTS,
            "stage3_max_reuse_distance": 0,
            "sub_group_size": GROUP_ELEMENTS,
        }
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": self._training.granules_per_step // workers,
            "gradient_clipping": self._training.clip_norm,
            "zero_optimization": zero,
        }
        if self._is_away:
            zero["offload_optimizer"] = {"device": "cpu"}
            # The optimiser stays PyTorch's, in the host's memory too.
            config["zero_force_ds_cpu_optimizer"] = False
            if self._splits_weights:
                zero["offload_param"] = {"device": "cpu"}
        return config

    @property
    def _splits_weights(self) -> bool:
        return self._stage == STAGES["parameters"]

    def _fill(self, config: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Fill the parameters; in stage 3 unit by unit, each sharded at once."""
        units = [*self._encoder.units(), self._encoder]
        inner = {type(unit) for unit in units[:-1] if any(unit.children())}
        if self._splits_weights and inner:
            # The library gathers these units as a whole, like units without inner modules.
            set_z3_leaf_modules(self._encoder, list(inner))
        filled: set[str] = set()
        for unit in units:
            allocate(unit, self._device)
            weights = self._weights_of(unit).items()
            new = {name: weight for name, weight in weights if name not in filled}
            copy_weights(new, arrays)
            filled |= new.keys()
            if self._splits_weights and new:
                deepspeed.zero.Init(module=unit, config_dict_or_path=config)
        # The library does not move the buffers of a module with already split parameters.
        for buffer in self._encoder.buffers():
            buffer.data = buffer.data.to(self._device)

    def _backward(self, loss: torch.Tensor, *, last: bool) -> None:
        self._engine.set_gradient_accumulation_boundary(last)
        # The loss is already a share of the step's.
        self._engine.backward(loss, scale_wrt_gas=False)

    def _update(self, loss: torch.Tensor, learning_rate: float, number: int) -> torch.Tensor:
        set_rate(self._engine.optimizer, learning_rate)
        self._engine.step()
        self.gradient_norm = float(self._engine.get_global_grad_norm())
        return self._mean(loss)


class DeepSpeedPipelineStepper(StagedWork):
    """Updates a stage; see :class:`.base.Stepper`.

    The library sees a stage as one layer. It passes granules through the stages by its own
    schedule, averages the gradients of replicas, and shards the optimiser's state between them. The
    checkpoint is of the whole encoder; `collectives` join all workers.
    """

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint, collectives: Collectives) -> None:
        super().__init__(task, checkpoint, collectives)
        self._own = OwnPart(task, checkpoint)
        placement, place = self._own.placement, self._own.place
        part = self._own.of(checkpoint)
        self._layer = _StageLayer(shapes_of(part.weights))
        allocate(self._layer, self._device)
        weights = self._layer.weights
        copy_weights(weights, part.weights)
        # Takes the existing process group. The library's further groups have PyTorch's timeout: the
        # driver ends a run before.
        deepspeed.init_distributed(dist_init_required=False)
        stages = range(placement.stages)
        model = PipelineModule(
            [self._layer if stage == place.stage else torch.nn.Identity() for stage in stages],
            topology=ProcessTopology(axes=["data", "pipe"], dims=[placement.replicas, len(stages)]),
            loss_fn=self._layer.loss,
            partition_method="uniform",
            dynamic_shape=True,
        )
        zero_stage = STAGES["optimizer"]
        self._engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=optimiser_of(weights, self._own.trained, self._training.weight_decay),
            config={
                "train_micro_batch_size_per_gpu": 1,
                "gradient_accumulation_steps": self._training.granules_per_step
                // placement.replicas,
                "gradient_clipping": self._training.clip_norm,
                "steps_per_print": _SELDOM,
                "zero_optimization": {
                    "stage": zero_stage,
                    "reduce_bucket_size": BUCKET_ELEMENTS,
                    "allgather_bucket_size": BUCKET_ELEMENTS,
                },
            },
        )
        _take_moments(self._engine.optimizer, zero_stage, part, weights)

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Make one update from the granules of this worker's replica."""
        # The library makes the update as soon as it has the gradients.
        set_rate(self._engine.optimizer, learning_rate)
        return super().step(work, learning_rate)

    def checkpoint(self, step: int) -> Checkpoint:
        """Return the state before a step, on rank 0; all workers call it at once."""
        weights = self._layer.weights
        return self._own.gathered(
            step,
            lambda name: safe_get_full_fp32_param(weights[name]),
            partial(_moment, weights),
            self._device,
        )

    def _run(self, batches: Sequence[Batch], loss_of: StepLoss | None) -> list[torch.Tensor]:
        """Make the update too; return the loss over all workers, on each of them."""
        assert loss_of is not None, "refused before the start"
        part = Part(self._own.layers)
        module = self._stage_module(batches, self._layer.weights, part, sparse_words=False)
        # The library divides by the number of micro-batches itself.
        self._layer.begin(module, lambda sides, number: loss_of(sides, number) * len(batches))
        return [self._engine.train_batch(_numbers(len(batches)))]

    def _update(self, loss: torch.Tensor, learning_rate: float, number: int) -> torch.Tensor:
        self.gradient_norm = float(self._engine.get_global_grad_norm())
        return loss


class _StageLayer(Unit):
    """A stage as the library's layer, called for one micro-batch after the other.

    `shapes` are those of the stage's weights.
    """

    def __init__(self, shapes: Shapes) -> None:
        super().__init__(shapes)
        self._next = 0

    def begin(self, module: StageModule, loss_of: StepLoss) -> None:
        """Take the work of the next step."""
        # In a list: a module in an attribute would become a part of this one.
        self._work, self._next = [module], 0
        self._loss = module.loss_by(loss_of)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """See :meth:`.model_parallel.StageModule.forward`."""
        (module,), number = self._work, self._next
        self._next += 1
        after: torch.Tensor = module(states, number=number)
        return after

    def loss(self, output: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        """Return the loss of a micro-batch."""
        return self._loss(output, number)


def _numbers(count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the numbers of micro-batches, the library's input of first stage and loss."""
    return ((torch.tensor([number]), torch.tensor([number])) for number in range(count))


if TYPE_CHECKING:
    # mypy: the classes have what the loop needs.
    _zero: StepperFactory[Stepper] = DeepSpeedStepper
    _pipeline: StepperFactory[Stepper] = DeepSpeedPipelineStepper
