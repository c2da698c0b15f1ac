"""DeepSpeed's pipelines, with the optimiser's state split between replicas. Runs on executors.

A stage of the encoder is one layer to the library, which passes granules through the stages by a
schedule of its own, and averages the gradients of replicas.

Source: Rasley, Rajbhandari, Ruwase and He, "DeepSpeed: System Optimizations Enable Training Deep
Learning Models with Over 100 Billion Parameters", KDD 2020; the documentation of its
``PipelineModule``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch

from pipelines.models.architecture import Shapes, form_of
from pipelines.models.arrays import shapes_of
from pipelines.models.frameworks.torch import PRECISIONS, finished
from pipelines.models.frameworks.torch_division import Members, Part, StageForm
from pipelines.models.frameworks.torch_sharding import Unit, allocate, copy_weights
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.base import Collectives
from pipelines.training.feed import StepWork
from pipelines.training.steppers.base import Stepper, StepperFactory
from pipelines.training.steppers.deepspeed import BUCKET_ELEMENTS, STAGES
from pipelines.training.steppers.micro_batches import batches, granule_texts
from pipelines.training.steppers.own_part import OwnPart
from pipelines.training.steppers.pipeline import StageModule
from pipelines.training.steppers.sharded import KINDS, optimiser_of
from pipelines.training.steppers.torch import TorchRun
from pipelines.training.steppers.torch_inputs import device_inputs
from pipelines.training.steppers.torch_losses import on_device

# Behind the module above, which says what accelerator there is before the library looks for one.
import deepspeed  # isort: skip
from deepspeed.ops import __compatible_ops__ as compatible_operations  # isort: skip
from deepspeed.runtime.pipe.module import PipelineModule  # isort: skip
from deepspeed.runtime.pipe.topology import ProcessTopology  # isort: skip
from deepspeed.utils import (  # isort: skip
    lazy_init_hp_params_optimizer_state,
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
)

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
        form: StageForm = form_of(self._spec, "torch_division")
        dtype, part = PRECISIONS[self._training.precision], Part(self._own.layers, Members())
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
        """See :meth:`.pipeline.StageModule.forward`."""
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
    _for_steps: StepperFactory[Stepper] = DeepSpeedPipelineStepper
