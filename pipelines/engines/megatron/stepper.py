"""Tensor, pipeline and data parallel training by Megatron-Core. Runs on executors.

Layers, schedules and the distributed optimiser are Megatron's. The optimiser shards AdamW's
moments: of the workers that hold the same part of the encoder, one of each replica, each keeps a
contiguous range of it. The micro-batches of a step are the granules of a replica.

The library assumes a GPU: some functions ask by name for tensors on it. On a machine without a GPU,
the modules with such functions see a substitute for PyTorch under its name; the rest of the process
keeps PyTorch. Written against release 0.16.

Sources: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019, arXiv:1909.08053; Narayanan et al., "Efficient Large-Scale Language Model
Training on GPU Clusters Using Megatron-LM", SC 2021, arXiv:2104.04473.
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
from pipelines.models.architecture import form_of
from pipelines.models.frameworks.torch import PRECISIONS
from pipelines.models.weights import dense_shapes
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.settings import TrainingSettings
from pipelines.training.collectives.base import Collectives
from pipelines.training.collectives.process_group import GroupCollectives
from pipelines.training.devices import worker_device
from pipelines.training.steppers.base import Batch, Stepper, StepperFactory, StepWork
from pipelines.training.steppers.model_parallel import OwnPart, StagedWork, StepLoss
from pipelines.training.steppers.numpy_adamw import BETA_1, BETA_2, EPSILON
from pipelines.training.steppers.sharded import fresh_state, kind_and_name, set_rate
from pipelines.training.steppers.torch import TorchWork

_MODULES = (
    schedules,  # Counts tokens on the GPU.
    p2p_communication,  # Receives there, and waits for it.
    param_and_grad_buffer,  # Has the buffers of weights and gradients there.
    optimizer,  # Has its scales and flags there,
    clip_grads,  # and norms,
    utils,  # which are added up there.
)


class _CudaOfCpu:
    """``torch.cuda`` for those modules."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def synchronize(self) -> None:
        """Do nothing: on a CPU nothing is queued."""


class _TorchOfCpu:
    """PyTorch, but with tensors for a GPU made in the host's memory."""

    cuda = _CudaOfCpu()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *size: Any, device: Any = None, **named: Any) -> torch.Tensor:
        return torch.zeros(*size, **named)

    def tensor(self, data: Any, *, device: Any = None, **named: Any) -> torch.Tensor:
        return torch.tensor(data, **named)


def run_on_cpu() -> None:
    """Make the library compute on the CPU, over Gloo; once in a process without a GPU."""
    for module in _MODULES:
        module.torch = _TorchOfCpu()
    # This would coalesce the operations inside into one, which Gloo does not support.
    param_and_grad_buffer._coalescing_manager = _one_by_one
    # The library's version checks for the name of a GPU's tensor type.
    optimizer.clip_grad_by_total_norm_fp32 = _clip


def pass_for_gpu(parameter: torch.nn.Parameter) -> None:
    """Give a weight the type name of a GPU's, which the distributed optimiser checks."""
    parameter.type = lambda: "torch.cuda.FloatTensor"


def _clip(parameters: Sequence[Any], max_norm: float, total_norm: float, **options: Any) -> None:
    """Scale gradients in place down to the largest norm allowed."""
    share = max_norm / (total_norm + 1e-6)
    if share < 1:
        torch._foreach_mul_([parameter.grad for parameter in parameters], share)


@contextmanager
def _one_by_one(*arguments: Any, **named: Any) -> Iterator[None]:
    yield


class _Piece(NamedTuple):
    """This worker's piece of a weight: a range of its flattened part, and fp32 values.

    The optimiser updates the values in place.
    """

    numbers: slice
    values: torch.Tensor


class Moments:
    """The moments of this worker's part, from and to checkpoints.

    The weights have canonical names; the workers of the group hold the same part.
    """

    def __init__(
        self, optimiser: Any, weights: Mapping[str, torch.nn.Parameter], group: Any
    ) -> None:
        (self._optimiser,) = optimiser.chained_optimizers
        self._weights, self._group = weights, group
        names = {parameter: name for name, parameter in weights.items()}
        self._pieces = {names[parameter]: piece for parameter, piece in self._found()}

    def take(self, part: Checkpoint) -> None:
        """Load this worker's part of a checkpoint; a start has no moments.

        The optimiser would otherwise create its state at the first update.
        """
        for group in self._optimiser.param_groups:
            # Where Transformer Engine or Apex is installed, their AdamW counts updates here.
            group["step"] = part.step
        for piece in self._pieces.values():
            state = fresh_state(piece.values, part.step, None)
            self._optimiser.optimizer.state[piece.values] = state
        for key in part.moments:
            kind, name = kind_and_name(key)
            if name in self._pieces:
                piece = self._pieces[name]
                flat = np.ascontiguousarray(part.moments[key]).reshape(-1)
                state = self._optimiser.optimizer.state[piece.values]
                state[kind].copy_(torch.from_numpy(flat[piece.numbers]))

    def gathered(self, key: str) -> torch.Tensor:
        """Return a moment of the part on the first replica; all replicas call it at once.

        It is the sum of the zero-padded pieces, which is exact. `key` is the moment's kind, a
        slash, and the name of the weight.
        """
        kind, name = kind_and_name(key)
        moment = torch.zeros_like(self._weights[name])
        if (piece := self._pieces.get(name)) is not None:
            moment.view(-1)[piece.numbers] = self._optimiser.optimizer.state[piece.values][kind]
        processes.reduce(moment, dst=processes.get_global_rank(self._group, 0), group=self._group)
        return moment

    def _found(self) -> Iterator[tuple[torch.nn.Parameter, _Piece]]:
        """Yield parameters and their pieces, by the library's own records."""
        parameters = chain.from_iterable(self._optimiser.model_fp32_groups)
        pieces = chain.from_iterable(self._optimiser.shard_fp32_groups)
        for parameter, values in zip(parameters, pieces, strict=True):
            bounds = self._optimiser._get_model_param_range_map(parameter)["param"]
            yield parameter, _Piece(slice(bounds.start, bounds.end), values)


class MegatronStepper(StagedWork):
    """Makes updates of a worker's part of the encoder; see :class:`.base.Stepper`.

    The start state covers the whole encoder; the collectives connect all workers.
    """

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint, collectives: Collectives) -> None:
        _lay_out(task, worker_device())
        # The workers that hold the same part, in the last stage also the same embeddings.
        copies = parallel_state.get_data_parallel_group()
        super().__init__(task, checkpoint, GroupCollectives(worker_device(), copies), collectives)
        self._everyone = collectives
        self._own = OwnPart(task, checkpoint)
        part = self._own.of(checkpoint)
        stage = self._stage({name: self._own.trained[name] for name in part.weights})
        self._weights = stage.weights
        for name, parameter in self._weights.items():
            parameter.data = torch.tensor(part.weights[name], device=self._device)
            # With this mark its gradient counts in the norm on each member, else only on the first.
            parameter.tensor_model_parallel = name in self._own.axes
            if self._device.type == "cpu":
                pass_for_gpu(parameter)
        self._model = DistributedDataParallel(
            stage.config, DistributedDataParallelConfig(use_distributed_optimizer=True), stage
        )
        self._optimiser = self._new_optimiser()
        self._moments = Moments(self._optimiser, self._weights, copies)
        self._moments.take(part)

    @staticmethod
    def prepare_process(settings: TrainingSettings) -> None:
        """Set PyTorch's threads, and silence the library's warnings.

        They concern libraries that it would prefer, and PyTorch's deprecated names.
        """
        TorchWork.prepare_process(settings)
        warnings.filterwarnings("ignore", module=r"megatron\.")
        warnings.filterwarnings("ignore", "`torch.distributed.*is deprecated", FutureWarning)

    def checkpoint(self, step: int) -> Checkpoint:
        """Return the state before a step on rank 0; all workers call it at once."""
        return self._own.gathered(
            step, self._weights.__getitem__, self._moments.gathered, self._device
        )

    def _stage(self, shapes: dict[str, Sequence[int]]) -> MegatronStage:
        """Return this worker's layers, without weights; `shapes` cover the whole encoder."""
        spec, division, placement = self._spec, self._own.division, self._own.placement
        heads = division.evenly(spec)["attention heads"]
        config = layer_config(spec, division.layers(spec), heads, placement)
        behind = {name: shapes.pop(name) for name in dense_shapes(spec) if name in shapes}
        form: MegatronForm = form_of(spec, "megatron")
        encode = form(
            spec,
            config,
            shapes,
            PRECISIONS[self._training.precision],
            checkpointed=self._training.activation_checkpointing,
        )
        finish = {name: torch.nn.Parameter(torch.empty(*shape)) for name, shape in behind.items()}
        return MegatronStage(spec, config, encode, finish, self._own.place, placement)

    def _new_optimiser(self) -> Any:
        """Return AdamW with a piece of each weight; biases and layer norms are not decayed."""
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

    def _loss(self, work: StepWork) -> torch.Tensor:
        self._model.zero_grad_buffer()
        loss = super()._loss(work)
        self._model.finish_grad_sync()
        return loss

    def _update(self, loss: torch.Tensor, learning_rate: float, number: int) -> torch.Tensor:
        set_rate(self._optimiser, learning_rate)
        _, norm, _ = self._optimiser.step()
        self.gradient_norm = float(norm)
        # Only the workers of the last stage have a loss.
        (mean,) = self._everyone.all_reduce_mean([loss * self._own.placement.stages])
        return torch.as_tensor(mean)

    def _run(self, batches: Sequence[Batch], loss_of: StepLoss | None) -> list[Any]:
        inputs = [self._inputs(batch) for batch in batches]
        rows = max(sum(len(side.batch.token_ids) for side in sides) for sides in inputs)

        def forward(data: Any, model: Any) -> tuple[Any, Callable[..., Any]]:
            number, sides = next(data)
            return model(sides, rows), partial(loss_or_sides, number)

        def loss_or_sides(
            number: int, sides: list[torch.Tensor], non_loss_data: bool = False
        ) -> Any:
            if loss_of is None:
                return sides
            loss = loss_of(sides, number)
            # The schedule divides the first by the number of micro-batches, in place.
            return loss * len(batches), loss.detach()

        found: list[Any] = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter(enumerate(inputs)),
            model=[self._model],
            num_microbatches=len(batches),
            seq_length=rows,
            micro_batch_size=1,
            forward_only=loss_of is None,
            collect_non_loss_data=loss_of is None,
        )
        return found


def _lay_out(task: WorkerTask, device: torch.device) -> None:
    """Make the library's groups of workers."""
    # The groups of an earlier stepper in this process.
    parallel_state.destroy_model_parallel()
    if device.type == "cpu":
        run_on_cpu()
    parallel_state.initialize_model_parallel(
        task.placement.members,
        task.placement.stages,
        order="tp-cp-ep-pp-dp",
        create_gloo_process_groups=False,
        # The deadline of an exchange.
        distributed_timeout_minutes=task.run.config.training.stall_seconds / 60,
    )


if TYPE_CHECKING:
    # mypy: the class has what the loops need.
    _for_steps: StepperFactory[Stepper] = MegatronStepper
