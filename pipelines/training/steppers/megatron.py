"""Tensor, pipeline and data parallel training by Megatron-Core. Runs on executors.

Its layers, its schedules and its distributed optimiser, which shares out AdamW's moments among the
replicas. The micro-batches of a step are the granules of a replica.

Sources: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019, arXiv:1909.08053; Narayanan et al., "Efficient Large-Scale Language Model
Training on GPU Clusters Using Megatron-LM", SC 2021, arXiv:2104.04473.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func

from pipelines.models.architecture import architecture_of, form_of
from pipelines.models.frameworks.megatron import MegatronForm, MegatronStage, layer_config
from pipelines.models.frameworks.torch import PRECISIONS
from pipelines.models.weights import dense_shapes
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.settings import TrainingSettings
from pipelines.settings.training import Placement
from pipelines.training.collectives.base import Collectives
from pipelines.training.collectives.process_group import GroupCollectives
from pipelines.training.feed import StepWork
from pipelines.training.steppers.adamw import BETA_1, BETA_2, EPSILON
from pipelines.training.steppers.base import Stepper, StepperFactory
from pipelines.training.steppers.megatron_on_cpu import pass_for_gpu, run_on_cpu
from pipelines.training.steppers.megatron_state import Moments
from pipelines.training.steppers.micro_batches import Batch as Micro
from pipelines.training.steppers.micro_batches import by_side, granule_texts, per_batch
from pipelines.training.steppers.objectives import Objective
from pipelines.training.steppers.own_part import OwnPart
from pipelines.training.steppers.sharded import KINDS
from pipelines.training.steppers.step_negatives import pulls_on_embeddings
from pipelines.training.steppers.torch import TorchRun
from pipelines.training.steppers.torch_inputs import device_inputs
from pipelines.training.steppers.torch_losses import gradients_of_loss, on_device, pulled_loss

LossOf = Callable[[int, list[torch.Tensor]], torch.Tensor]
"""Takes the number of a micro-batch, and the embeddings of its sides."""


class MegatronStepper(TorchRun):
    """Makes updates of a worker's part of the encoder; see :class:`.base.Stepper`.

    Args:
        checkpoint: The state to begin with, of the whole encoder.
        collectives: Between all workers.
    """

    sharded = True
    exchange_seconds: float | None = None

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint, collectives: Collectives) -> None:
        super().__init__(task, checkpoint, collectives)
        self._placement, self._place = task.placement, task.place
        _lay_out(self._placement, self._training.stall_seconds, self._device)
        # The workers that hold the same part, in the last stage also the same embeddings.
        copies = parallel_state.get_data_parallel_group()
        self._copies = GroupCollectives(self._device, copies)
        self._own = OwnPart(task, checkpoint)
        part = self._own.of(checkpoint)
        stage = self._stage({name: self._own.trained[name] for name in part.weights})
        self._weights = stage.weights
        for name, parameter in self._weights.items():
            parameter.data = torch.tensor(part.weights[name], device=self._device)
            # By this mark its gradient counts in the norm on each member; else on the first alone.
            parameter.tensor_model_parallel = name in self._own.axes
            if self._device.type == "cpu":
                pass_for_gpu(parameter)
        self._model = DistributedDataParallel(
            stage.config, DistributedDataParallelConfig(use_distributed_optimizer=True), stage
        )
        self._optimiser = self._new_optimiser()
        self._moments = Moments(self._optimiser, self._weights, copies)
        self._moments.take(part)

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Makes one update from the granules of this worker's replica."""
        self._model.zero_grad_buffer()
        objective = self._objectives[work.source]
        loss = (self._across if objective.across_granules else self._within)(work, objective)
        self._model.finish_grad_sync()
        for group in self._optimiser.param_groups:
            group["lr"] = learning_rate
        _, norm, _ = self._optimiser.step()
        self.gradient_norm = float(norm)
        # The workers of the last stage have it, those of the others nothing.
        (mean,) = self._collectives.all_reduce_mean([loss * self._placement.stages])
        return float(mean)

    def checkpoint(self, step: int) -> Checkpoint:
        """The state before a step; its arrays are with rank 0. All workers call it at once."""
        weights = self._own.gathered(self._weights.__getitem__, self._device)
        moments = self._own.gathered(self._moments.whole, self._device, tuple(KINDS))
        return Checkpoint(step, self._spec, weights, moments)

    @staticmethod
    def prepare_process(settings: TrainingSettings) -> None:
        """Gives PyTorch its threads, and keeps the library's warnings to itself.

        They are of libraries that it would rather have, and of PyTorch's names of before.
        """
        TorchRun.prepare_process(settings)
        warnings.filterwarnings("ignore", module=r"megatron\.")
        warnings.filterwarnings("ignore", "`torch.distributed.*is deprecated", FutureWarning)

    @property
    def _is_last(self) -> bool:
        return self._place.stage == self._placement.stages - 1

    def _stage(self, shapes: dict[str, Sequence[int]]) -> MegatronStage:
        """This worker's layers, without their weights.

        Args:
            shapes: Of the weights of the stage, as they are in the whole encoder.
        """
        division = architecture_of(self._spec).division
        assert division is not None, "refused before the start"
        heads = division.evenly(self._spec)["attention heads"]
        config = layer_config(self._spec, division.layers(self._spec), heads, self._placement)
        behind = {name: shapes.pop(name) for name in dense_shapes(self._spec) if name in shapes}
        form: MegatronForm = form_of(self._spec, "megatron")
        encode = form(
            self._spec,
            config,
            shapes,
            PRECISIONS[self._training.precision],
            checkpointed=self._training.activation_checkpointing,
        )
        finish = {name: torch.nn.Parameter(torch.empty(*shape)) for name, shape in behind.items()}
        return MegatronStage(self._spec, config, encode, finish, self._place, self._placement)

    def _new_optimiser(self) -> Any:
        """AdamW, that does not decay biases and layer norms, with a piece of each weight."""
        config = OptimizerConfig(
            optimizer="adam",
            lr=0.0,
            weight_decay=self._training.weight_decay,
            adam_beta1=BETA_1,
            adam_beta2=BETA_2,
            adam_eps=EPSILON,
            clip_grad=self._training.clip_norm,
            use_distributed_optimizer=True,
        )
        optimiser = get_megatron_optimizer(config, [self._model], use_gloo_process_groups=False)
        for group in optimiser.param_groups:
            # In the library's own training, its schedule of the learning rate does this.
            group["weight_decay"] = self._training.weight_decay * group["wd_mult"]
            group["fused"] = True
        return optimiser

    def _within(self, work: StepWork, objective: Objective) -> torch.Tensor:
        """Adds the gradients with each granule's own negatives, averaged over the granules."""
        targets = [objective.targets(granule) for granule in work.granules]

        def loss_of(number: int, sides: list[torch.Tensor]) -> torch.Tensor:
            return objective.loss(sides, on_device(targets[number], self._device))

        return self._mean(self._run(self._micro_batches(work, objective), loss_of))

    def _across(self, work: StepWork, objective: Objective) -> torch.Tensor:
        """Adds the gradients with the negatives of the whole step; see ``TorchStepper``."""
        some = self._micro_batches(work, objective)
        with torch.no_grad():
            parts = self._run(some, None)
        loss = torch.zeros((), device=self._device)
        of_batches: list[list[torch.Tensor]] = []
        if self._is_last:
            own = [torch.cat(side) for side in by_side(some, parts)]
            candidates = objective.candidates(work.granules, self._copies)
            gradients_of = partial(gradients_of_loss, objective.loss)
            loss, pulls = pulls_on_embeddings(
                own, candidates, self._copies, gradients_of, torch.cat
            )
            # The schedule divides by the number of granules.
            of_batches = per_batch(some, [pull * len(some) for pull in pulls])

        def pulled(number: int, sides: list[torch.Tensor]) -> torch.Tensor:
            return pulled_loss(sides, of_batches[number])

        self._run(some, pulled)
        return loss

    def _mean(self, losses: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.stack([*losses]).mean() if losses else torch.zeros((), device=self._device)

    def _micro_batches(self, work: StepWork, objective: Objective) -> list[Micro]:
        """One of each granule, all of its sides."""
        seed, epoch = self._training.seed, work.noise_epoch
        return [granule_texts(one, objective.sides, seed, epoch) for one in work.granules]

    def _run(self, some: Sequence[Micro], loss_of: LossOf | None) -> list[Any]:
        """Passes micro-batches through the stages, and gradients back, if there is a loss.

        Returns:
            On the last stage the losses of all, or the embeddings of their sides without a loss;
            nothing on the others.
        """
        spec, training = self._spec, self._training
        inputs = [device_inputs(one, spec, training, self._device) for one in some]
        rows = max(sum(len(side.batch.token_ids) for side in sides) for sides in inputs)

        def forward(data: Any, model: Any) -> tuple[Any, Callable[..., Any]]:
            number, sides = next(data)
            return model(sides, rows), partial(told, number)

        def told(number: int, sides: list[torch.Tensor], non_loss_data: bool = False) -> Any:
            if loss_of is None:
                return sides
            loss = loss_of(number, sides)
            # The schedule divides the first in place.
            return loss.clone(), loss.detach()

        found: list[Any] = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter(enumerate(inputs)),
            model=[self._model],
            num_microbatches=len(some),
            seq_length=rows,
            micro_batch_size=1,
            forward_only=loss_of is None,
            collect_non_loss_data=loss_of is None,
        )
        return found


def _lay_out(placement: Placement, seconds: float, device: torch.device) -> None:
    """Makes the library's groups of workers.

    Args:
        seconds: The deadline of an exchange.
    """
    # Of a stepper that this process had before.
    parallel_state.destroy_model_parallel()
    if device.type == "cpu":
        run_on_cpu()
    parallel_state.initialize_model_parallel(
        placement.members,
        placement.stages,
        order="tp-cp-ep-pp-dp",
        create_gloo_process_groups=False,
        distributed_timeout_minutes=seconds / 60,
    )


if TYPE_CHECKING:
    # mypy: the class has what the loops need.
    _for_steps: StepperFactory[Stepper] = MegatronStepper
