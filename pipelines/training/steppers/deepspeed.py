"""ZeRO by DeepSpeed. Runs on executors.

Source: Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models", SC 2020, arXiv:1910.02054.

DeepSpeed's pipelines, with the optimiser's state split between replicas. Runs on executors.

A stage of the encoder is one layer to the library, which passes granules through the stages by a
schedule of its own, and averages the gradients of replicas.

Source: Rasley, Rajbhandari, Ruwase and He, "DeepSpeed: System Optimizations Enable Training Deep
Learning Models with Over 100 Billion Parameters", KDD 2020; the documentation of its
``PipelineModule``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import deepspeed
import numpy as np
import torch
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
from torch.distributed import get_rank, get_world_size

from pipelines.models.architecture import Shapes, form_of
from pipelines.models.arrays import LazyArrays, shapes_of
from pipelines.models.frameworks.torch import PRECISIONS, finished
from pipelines.models.frameworks.torch_division import Part
from pipelines.models.frameworks.torch_module import (
    Inputs,
    Unit,
    allocate,
    copy_weights,
)
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.base import Collectives
from pipelines.training.devices import worker_device
from pipelines.training.steppers.base import (
    Stepper,
    StepperFactory,
    StepWork,
    batches,
    granule_texts,
)
from pipelines.training.steppers.model_parallel import StageModule
from pipelines.training.steppers.sharded import KINDS, OwnPart, ShardedStepper, optimiser_of
from pipelines.training.steppers.torch import TorchRun, device_inputs, on_device, to_numpy
from pipelines.training.steppers.torch_reconstruction import Part as WorkPart

from deepspeed.runtime.pipe.module import PipelineModule  # isort: skip
from deepspeed.runtime.pipe.topology import ProcessTopology  # isort: skip


# Set before the import, which otherwise probes the machine for accelerators, and warns.
os.environ.setdefault("DS_ACCELERATOR", worker_device().type)

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

    def _embed(self, sides: Sequence[Inputs] | Sequence[WorkPart]) -> list[torch.Tensor]:
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


# Behind the module above, which says what accelerator there is before the library looks for one.

_SELDOM = 2**31
"""Steps between two of the library's own lines."""


class DeepSpeedPipelineStepper(TorchRun):
    """Makes updates of a stage; see :class:`.base.Stepper`.

    Args:
        checkpoint: The state to begin with, of the whole encoder.
        collectives: Between all workers.
    """

    sharded = True
    exchange_seconds: float | None = None

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint, collectives: Collectives) -> None:
        super().__init__(task, checkpoint, collectives)
        self._place, self._placement = task.place, task.placement
        self._own = OwnPart(task, checkpoint)
        own = self._own.of(checkpoint)
        self._layer = _StageLayer(shapes_of(own.weights))
        allocate(self._layer, self._device)
        weights = self._layer.weights
        copy_weights(weights, own.weights)
        # The library would compile its own all-reduce in shared memory; the group has one.
        compatible_operations["deepspeed_shm_comm"] = False
        # Takes the process group that there is. Its further groups wait as long as PyTorch has it:
        # the driver ends a run before.
        deepspeed.init_distributed(dist_init_required=False)
        stages = range(self._placement.stages)
        model = PipelineModule(
            [self._layer if one == self._place.stage else torch.nn.Identity() for one in stages],
            topology=ProcessTopology(
                axes=["data", "pipe"], dims=[self._placement.replicas, len(stages)]
            ),
            loss_fn=self._layer.loss,
            partition_method="uniform",
            dynamic_shape=True,
        )
        self._engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=optimiser_of(weights, self._own.trained, self._training.weight_decay),
            config={
                "train_micro_batch_size_per_gpu": 1,
                "gradient_accumulation_steps": self._training.granules_per_step
                // self._placement.replicas,
                "gradient_clipping": self._training.clip_norm,
                "steps_per_print": _SELDOM,
                "zero_optimization": {
                    "stage": STAGES["optimizer"].number,
                    "reduce_bucket_size": BUCKET_ELEMENTS,
                    "allgather_bucket_size": BUCKET_ELEMENTS,
                },
            },
        )
        self._take(own)

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Makes one update from the granules of this worker's replica."""
        self._layer.begin(self._module_of(work), self._loss_of(work))
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        loss = float(self._engine.train_batch(_numbers(len(work.granules))))
        self.gradient_norm = float(self._engine.get_global_grad_norm())
        return loss

    def checkpoint(self, step: int) -> Checkpoint:
        """The state before a step; its arrays are with rank 0. All workers call it at once."""
        weights = self._own.gathered(self._weight, self._device)
        moments = self._own.gathered(self._moment, self._device, list(KINDS))
        return Checkpoint(step, self._spec, weights, moments)

    def _weight(self, name: str) -> torch.Tensor:
        """A weight of the stage, whole."""
        weight: torch.Tensor = safe_get_full_fp32_param(self._layer.weights[name])
        return weight

    def _moment(self, key: str) -> torch.Tensor:
        """One of the moments of the stage, whole; all replicas call it at once."""
        kind, _, name = key.partition("/")
        part = self._layer.weights[name]
        moment: torch.Tensor = safe_get_full_optimizer_state(part, KINDS[kind])
        return moment

    def _take(self, own: Checkpoint) -> None:
        """Gives the optimiser the stage's state, which the library would begin with zeros."""
        stage, zero = STAGES["optimizer"], self._engine.optimizer
        for group, flat in stage.flat_parts(zero):
            zero.optimizer.state[flat] = {
                "step": torch.tensor(float(own.step), device=flat.device),
                **{key: torch.zeros_like(flat) for key in KINDS.values()},
            }
            lazy_init_hp_params_optimizer_state(group, flat, zero.optimizer.state)
        weights = self._layer.weights
        for name, array in own.moments.items():
            kind, _, weight = name.partition("/")
            whole = torch.tensor(array, device=self._device)
            stage.set_moment(weights[weight], whole, KINDS[kind])

    def _module_of(self, work: StepWork) -> StageModule:
        """The stage's part of a step."""
        objective, seed = self._objectives[work.source], self._training.seed
        texts = [
            granule_texts(granule, objective.sides, seed, work.noise_epoch)
            for granule in work.granules
        ]
        inputs = [
            device_inputs(
                batches(sides, [1] * len(sides))[0], self._spec, self._training, self._device
            )
            for sides in texts
        ]
        form = form_of(self._spec, "torch")
        dtype, part = PRECISIONS[self._training.precision], Part(self._own.layers)
        weights = self._layer.weights
        is_last = self._place.stage == self._placement.stages - 1
        return StageModule(
            lambda: form(self._spec, weights, dtype, part),
            inputs,
            partial(finished, self._spec, weights) if is_last else None,
            self._training.activation_checkpointing,
            sparse_words=False,
        )

    def _loss_of(self, work: StepWork) -> Callable[[list[torch.Tensor], int], torch.Tensor]:
        objective = self._objectives[work.source]
        targets = [objective.targets(granule) for granule in work.granules]
        return lambda sides, number: objective.loss(sides, on_device(targets[number], self._device))


class _StageLayer(Unit):
    """A stage as a layer of the library's, which calls it for one micro-batch after the other.

    Args:
        shapes: Of the stage's weights.
    """

    def __init__(self, shapes: Shapes) -> None:
        super().__init__(shapes)
        self._next = 0

    def begin(
        self, module: StageModule, loss_of: Callable[[list[torch.Tensor], int], torch.Tensor]
    ) -> None:
        """Takes the work of the next step."""
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
        """Of a micro-batch."""
        return self._loss(output, number)


def _numbers(count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """What the library passes to the first stage, and to the loss: the numbers of micro-batches."""
    return ((torch.tensor([number]), torch.tensor([number])) for number in range(count))


if TYPE_CHECKING:
    # mypy: the class has what the loops need.
    _for_steps_of_stages: StepperFactory[Stepper] = DeepSpeedPipelineStepper
