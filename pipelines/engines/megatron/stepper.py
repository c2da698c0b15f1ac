"""Tensor, pipeline and data parallel training by Megatron-Core. Runs on executors.

Its layers, its schedules and its distributed optimiser, which shares out AdamW's moments among the
replicas. The micro-batches of a step are the granules of a replica.

Sources: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019, arXiv:1909.08053; Narayanan et al., "Efficient Large-Scale Language Model
Training on GPU Clusters Using Megatron-LM", SC 2021, arXiv:2104.04473.

What Megatron-Core needs of CUDA, where there is no GPU. Runs on executors.

The library takes a GPU for granted: some functions ask for tensors on it by name. Its modules that
have such functions get another PyTorch under their own name for it, and nothing else of the process
changes. Releases 0.16 were read for this.

AdamW's moments in Megatron's distributed optimiser. Runs on executors.

The optimiser of a worker has a piece of what the worker holds: the workers that hold the same part
of the encoder, one of each replica, share it out, as one row of numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as processes
from megatron.core import parallel_state, utils
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    param_and_grad_buffer,
)
from megatron.core.optimizer import OptimizerConfig, clip_grads, get_megatron_optimizer, optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func, p2p_communication, schedules

from pipelines.engines.megatron.form import MegatronForm, MegatronStage, layer_config
from pipelines.models.architecture import architecture_of, form_of
from pipelines.models.frameworks.torch import PRECISIONS
from pipelines.models.weights import dense_shapes
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.settings import TrainingSettings
from pipelines.settings.training import Placement
from pipelines.training.collectives.base import Collectives
from pipelines.training.collectives.process_group import GroupCollectives
from pipelines.training.steppers.adamw import BETA_1, BETA_2, EPSILON
from pipelines.training.steppers.base import Batch as Micro
from pipelines.training.steppers.base import (
    Stepper,
    StepperFactory,
    StepWork,
    by_side,
    granule_texts,
    per_batch,
)
from pipelines.training.steppers.objectives import Objective, pulls_on_embeddings
from pipelines.training.steppers.sharded import KINDS, OwnPart
from pipelines.training.steppers.torch import (
    TorchRun,
    device_inputs,
    gradients_of_loss,
    on_device,
    pulled_loss,
)

_MODULES = (
    schedules,  # Counts tokens on the GPU.
    p2p_communication,  # Receives there, and waits for it.
    param_and_grad_buffer,  # Has the buffers of weights and gradients there.
    optimizer,  # Has its scales and flags there,
    clip_grads,  # and norms,
    utils,  # which are added up there.
)


class _CudaOfCpu:
    """What those modules call of ``torch.cuda``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)

    def current_device(self) -> torch.device:
        """Where buffers are made."""
        return torch.device("cpu")

    def synchronize(self) -> None:
        """Nothing is queued on a CPU."""


class _TorchOfCpu:
    """PyTorch, but for tensors on a GPU, which are made in the host's memory."""

    cuda = _CudaOfCpu()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *size: Any, device: Any = None, **named: Any) -> torch.Tensor:
        """See ``torch.zeros``; any device is the CPU."""
        return torch.zeros(*size, **named)

    def tensor(self, data: Any, *, device: Any = None, **named: Any) -> torch.Tensor:
        """See ``torch.tensor``; any device is the CPU."""
        return torch.tensor(data, **named)


def run_on_cpu() -> None:
    """Has the library compute on the CPU, over Gloo; once in a process that has no GPU."""
    for module in _MODULES:
        module.torch = _TorchOfCpu()
    # Gloo does not send several tensors as one, which is what this makes of operations inside.
    param_and_grad_buffer._coalescing_manager = _one_by_one
    # The library's looks for the name of a GPU's type.
    optimizer.clip_grad_by_total_norm_fp32 = _clip


def pass_for_gpu(parameter: torch.nn.Parameter) -> None:
    """Has the distributed optimiser accept a weight, which it does by the name of its type."""
    parameter.type = lambda: "torch.cuda.FloatTensor"


def _clip(parameters: Sequence[Any], max_norm: float, total_norm: float, **others: Any) -> None:
    """Shortens gradients in place, if they are longer than the longest that is allowed."""
    share = max_norm / (total_norm + 1e-6)
    if share < 1:
        torch._foreach_mul_([one.grad for one in parameters], share)


@contextmanager
def _one_by_one(*arguments: Any, **named: Any) -> Iterator[None]:
    yield


class _Piece(NamedTuple):
    """What this worker's optimiser has of a weight.

    Attributes:
        numbers: Which of the numbers of the worker's part they are.
        values: fp32 [numbers], which the optimiser updates in place.
    """

    numbers: slice
    values: torch.Tensor


class Moments:
    """The moments of this worker's part, from and to checkpoints.

    Args:
        optimiser: Megatron's, of one model.
        weights: The parameters of this worker, by canonical name.
        group: The workers that hold the same part.
    """

    def __init__(
        self, optimiser: Any, weights: Mapping[str, torch.nn.Parameter], group: Any
    ) -> None:
        (self._optimiser,) = optimiser.chained_optimizers
        self._weights, self._group = weights, group
        names = {parameter: name for name, parameter in weights.items()}
        self._pieces = {names[parameter]: piece for parameter, piece in self._found()}

    def take(self, part: Checkpoint) -> None:
        """Gives the optimiser its state, which it would begin at its first update.

        Args:
            part: This worker's part of a checkpoint; without moments it is a start.
        """
        for group in self._optimiser.param_groups:
            # Where Transformer Engine or Apex is installed, their AdamW counts updates here.
            group["step"] = part.step
        for name, piece in self._pieces.items():
            state = {"step": torch.tensor(float(part.step), device=piece.values.device)}
            for kind, key in KINDS.items():
                own = torch.zeros_like(piece.values)
                if part.moments:
                    flat = np.ascontiguousarray(part.moments[f"{kind}/{name}"]).reshape(-1)
                    own.copy_(torch.from_numpy(flat[piece.numbers]))
                state[key] = own
            self._optimiser.optimizer.state[piece.values] = state

    def whole(self, key: str) -> torch.Tensor:
        """One of the moments of the part, with the first replica; all replicas call it at once.

        It is the sum of the pieces, with zeros around them, which is exact.

        Args:
            key: Its kind, a slash, and the name of the weight.
        """
        kind, _, name = key.partition("/")
        whole = torch.zeros_like(self._weights[name])
        if (piece := self._pieces.get(name)) is not None:
            own = self._optimiser.optimizer.state[piece.values][KINDS[kind]]
            whole.view(-1)[piece.numbers] = own
        processes.reduce(whole, dst=processes.get_global_rank(self._group, 0), group=self._group)
        return whole

    def _found(self) -> Iterator[tuple[torch.nn.Parameter, _Piece]]:
        """The pieces, by the library's own books."""
        parameters = chain.from_iterable(self._optimiser.model_fp32_groups)
        pieces = chain.from_iterable(self._optimiser.shard_fp32_groups)
        for parameter, values in zip(parameters, pieces, strict=True):
            own = self._optimiser._get_model_param_range_map(parameter)["param"]
            yield parameter, _Piece(slice(own.start, own.end), values)


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
