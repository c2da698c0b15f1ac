"""Training in which several workers hold each layer together (tensor parallel). Runs on executors.

A worker's part of the encoder is plain tensors, so all that :class:`.torch.TorchStepper` does is
done with it as it is: gradients are averaged over the workers that hold the same part, one of each
replica. What differs is the forward pass, the norm of the gradient, and how a checkpoint is read
and written: in whole arrays, so that it can be gone on from in any other layout.

Tensor parallel training whose replicas share out the state (fully sharded). Runs on executors.

Each of the members of a replica has a part of every divided matrix, and of that part each replica
holds an equal share, as in :mod:`.sharded`. So of W workers each holds about 1/W of the state; a
member's part of a layer is put together among the replicas, and the layer computed by the members.

Source: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023,
arXiv:2304.11277, whose section on interoperability puts the two together in this way.

Training in which stages of the encoder stand one behind the other. Runs on executors.

By PyTorch's own schedules. The micro-batches are the granules of a replica: while a stage computes
one, the stages behind it compute those before. Where there are as many granules as stages, a stage
holds the activations of as many granules as there are stages from it on, and of all of them
otherwise. The library makes the buffers for all granules of a step at once.

Source: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021,
arXiv:2006.09503 (one forward, one backward); Huang et al., "GPipe", NeurIPS 2019,
arXiv:1811.06965.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional

from pipelines.models.adaptation import effective
from pipelines.models.architecture import form_of
from pipelines.models.frameworks.torch import PRECISIONS, Encoder, StageEncode, finished, prepare
from pipelines.models.frameworks.torch_division import Part
from pipelines.models.frameworks.torch_module import EncoderModule, Inputs, encoder_module
from pipelines.runs.checkpoint import AVERAGE, Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.base import Collectives, check_agreement
from pipelines.training.devices import worker_device
from pipelines.training.steppers.base import (
    Batch,
    Stepper,
    StepperFactory,
    StepWork,
    by_side,
    per_batch,
)
from pipelines.training.steppers.objectives import Objective, pulls_on_embeddings
from pipelines.training.steppers.sharded import (
    KINDS,
    FsdpStepper,
    OwnPart,
    check_members,
    worker_groups,
)
from pipelines.training.steppers.torch import (
    TorchStepper,
    device_inputs,
    gradients_of_loss,
    on_device,
    pulled_loss,
    to_numpy,
    total_norm,
)


class ModelParallelStepper(TorchStepper):
    """Makes updates of a part of the encoder; see :class:`.base.Stepper`.

    Args:
        checkpoint: The state to begin with, of the whole encoder.
        collectives: Between all workers.
    """

    sharded = True

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint, collectives: Collectives) -> None:
        self._placement, self._place = task.placement, task.place
        self._own = OwnPart(task, checkpoint)
        groups = worker_groups(task, worker_device())
        self._members, self._stages = groups.members, groups.stages
        super().__init__(task, self._own.of(checkpoint), groups.copies, collectives)
        self._has_agreed = False

    @property
    def exchange_seconds(self) -> float | None:
        """See :class:`.base.Stepper`; the members' exchanges within layers count too."""
        seconds = super().exchange_seconds
        return None if seconds is None else seconds + self._members.seconds

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Makes one update from the granules of this worker's replica."""
        loss = super().step(work, learning_rate)
        if not self._has_agreed:
            self._check_agreement(work.index + 1)
            self._has_agreed = True
        return loss

    def checkpoint(self, step: int) -> Checkpoint:
        """The state before a step; its arrays are with rank 0. All workers call it at once."""
        kinds = ("m", "v") if self._training.ema is None else ("m", "v", AVERAGE)
        weights = self._own.gathered(self._weights.__getitem__, self._device)
        moments = self._own.gathered(self._moments.__getitem__, self._device, kinds)
        return Checkpoint(step, self._spec, weights, moments)

    def _encoder(self) -> Encoder:
        weights = effective(self._weights, self._frozen, self._scale)
        return prepare(self._spec, weights, self._training.precision, self._part)

    @property
    def _part(self) -> Part:
        return Part(self._own.layers, self._members)

    def _norm(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The norm over all parts; what each member has counts once."""
        own = [
            gradient
            for name, gradient in gradients.items()
            if name in self._own.axes or self._place.member == 0
        ]
        square = torch.zeros((), device=self._device)
        if own:
            square += total_norm(own) ** 2
        self._members.add_up_in_place(square)
        self._stages.add_up_in_place(square)
        return square.sqrt()

    def _check_agreement(self, step: int) -> None:
        """Whether replicas hold the same part, and members what each of them has as a whole."""
        own = TorchStepper.checkpoint(self, step)
        if self._collectives.workers > 1:
            check_agreement(own, self._collectives, "replicas")
        check_members(own, self._own.axes, self._members, self._device)


if TYPE_CHECKING:
    # mypy: the class has what the loops need.
    _for_steps: StepperFactory[Stepper] = ModelParallelStepper


class DividedFsdpStepper(FsdpStepper):
    """Makes updates of this worker's share of a member's part; see :class:`.base.Stepper`.

    Args:
        checkpoint: The state to begin with, of the whole encoder.
        collectives: Between all workers.
    """

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint, collectives: Collectives) -> None:
        self._own = OwnPart(task, checkpoint)
        self._groups = worker_groups(task, worker_device())
        part = self._own.of(checkpoint)
        super().__init__(task, part, self._groups.copies, collectives)
        self._has_agreed = False

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Makes one update from the granules of this worker's replica."""
        loss = super().step(work, learning_rate)
        if not self._has_agreed:
            self._check_members(work.index + 1)
            self._has_agreed = True
        return loss

    def checkpoint(self, step: int) -> Checkpoint:
        """The state before a step; its arrays are with rank 0. All workers call it at once."""
        weights = self._own.gathered(self._weight, self._device)
        moments = self._own.gathered(self._moment_of, self._device, list(KINDS))
        return Checkpoint(step, self._spec, weights, moments)

    def _module(self) -> EncoderModule:
        return encoder_module(self._spec, self._training, self._groups.members)

    def _mesh(self) -> DeviceMesh:
        return DeviceMesh.from_group(self._groups.copies.group, self._device.type)

    def _norm(self) -> torch.Tensor:
        """The norm over all parts; what each member has counts once."""
        members = self._groups.members
        counted = [name for name in self._parts if name in self._own.axes or members.member == 0]
        return members.add_up_in_place(self._square(counted)).sqrt()

    def _check_members(self, step: int) -> None:
        """Whether members hold the same share of what each of them has as a whole."""
        names = [name for name in self._locals if name not in self._own.axes]
        weights = {name: to_numpy(self._locals[name]) for name in names}
        moments = {
            f"{kind}/{name}": to_numpy(self._state[name][key])
            for kind, key in KINDS.items()
            for name in names
        }
        own = Checkpoint(step, self._spec, weights, moments)
        check_members(own, self._own.axes, self._groups.members, self._device)


if TYPE_CHECKING:
    # mypy: the class has what the loops need.
    _for_steps_of_shares: StepperFactory[Stepper] = DividedFsdpStepper


LossOf = Callable[[list[torch.Tensor], int], torch.Tensor]
"""Takes the embeddings of the sides of a micro-batch, and its number."""


class PipelineStepper(ModelParallelStepper):
    """Makes updates of a stage, or of a member's part of it; see :class:`.base.Stepper`.

    The last stage compares the embeddings.
    """

    exchange_seconds: float | None = None

    def _divided(self, weights: Mapping[str, torch.Tensor]) -> StageEncode:
        form: Callable[..., StageEncode] = form_of(self._spec, "torch")
        return form(self._spec, weights, PRECISIONS[self._training.precision], self._part)

    @property
    def _is_last(self) -> bool:
        return self._place.stage == self._placement.stages - 1

    def _within(self, work: StepWork, objective: Objective) -> torch.Tensor:
        targets = [objective.targets(granule) for granule in work.granules]

        def loss_of(sides: list[torch.Tensor], number: int) -> torch.Tensor:
            loss = objective.loss(sides, on_device(targets[number], self._device))
            return loss / len(targets)

        return self._told(sum(self._run(self._micro_batches(work, objective), loss_of)))

    def _across(self, work: StepWork, objective: Objective) -> torch.Tensor:
        some = self._micro_batches(work, objective)
        with torch.no_grad():
            parts = self._run(some, None)
        if not self._is_last:
            self._run(some, _no_loss)
            return self._told(0.0)
        own = [torch.cat(side) for side in by_side(some, parts)]
        candidates = objective.candidates(work.granules, self._timed)
        gradients_of = partial(gradients_of_loss, objective.loss)
        loss, pulls = pulls_on_embeddings(own, candidates, self._timed, gradients_of, torch.cat)
        of_batches = per_batch(some, pulls)

        def pulled(sides: list[torch.Tensor], number: int) -> torch.Tensor:
            return pulled_loss(sides, of_batches[number])

        self._run(some, pulled)
        return self._told(loss)

    def _micro_batches(self, work: StepWork, objective: Objective) -> list[Batch]:
        """One of each granule, all of its sides."""
        epoch = work.noise_epoch
        return [self._batches(granule, objective, epoch)[0] for granule in work.granules]

    def _told(self, loss: Any) -> torch.Tensor:
        """The loss of the last stage, on all stages."""
        own = torch.zeros((), device=self._device)
        if self._is_last:
            own += loss.detach()
        return self._stages.add_up_in_place(own)

    def _run(self, some: Sequence[Batch], loss_of: LossOf | None) -> list[Any]:
        """Passes micro-batches through the stages, and gradients back, if there is a loss.

        Returns:
            On the last stage the losses of all, or the embeddings of their sides without a loss;
            nothing on the others.
        """
        weights = effective(self._weights, self._frozen, self._scale)
        finish = partial(finished, self._spec, weights) if self._is_last else None
        module = StageModule(
            partial(self._divided, weights),
            [device_inputs(one, self._spec, self._training, self._device) for one in some],
            finish,
            self._training.activation_checkpointing,
            sparse_words=True,
        )
        tokens = torch.empty(
            module.tokens, self._spec.hidden, device="meta", requires_grad=loss_of is not None
        )
        outputs = tokens
        if self._is_last:
            outputs = torch.empty(module.texts, self._spec.embedding_width, device="meta")
        numbers = torch.arange(len(some))
        first = self._place.stage == 0
        stage = PipelineStage(
            module,
            self._place.stage,
            self._placement.stages,
            self._device,
            input_args=numbers[:1] if first else tokens,
            output_args=outputs,
            group=self._stages.group,
        )
        schedule = Schedule1F1B if len(some) >= self._placement.stages else ScheduleGPipe
        loss = None if loss_of is None else module.loss_by(loss_of)
        losses: list[torch.Tensor] | None = None if loss_of is None else []
        schedule(stage, len(some), loss, scale_grads=False).step(
            *([numbers] if first else []),
            number=numbers,
            target=numbers,
            losses=losses,
            return_outputs=False,
        )
        return module.embeddings if losses is None else [one.detach() for one in losses]


class StageModule(torch.nn.Module):  # type: ignore[misc] # torch is not followed
    """A stage as PyTorch's pipelines take it, for the micro-batches of a step.

    Between stages states travel as a matrix [tokens, hidden] with the tokens of all sides, which
    has as many rows for each micro-batch as the one with the most tokens needs.

    Args:
        prepare: Makes the forward pass of the stage, for each micro-batch anew: the graph of what
            weights are cast to goes with the first gradient.
        inputs: Of each micro-batch, its sides.
        finish: Gives the embeddings of pooled states; of the last stage alone.
        checkpointed: Whether activations are computed again for their gradients.
        sparse_words: Makes the gradient of words a sparse tensor.

    Attributes:
        tokens: Rows of the matrix.
        texts: Of all sides of a micro-batch, as many in each.
        embeddings: Of each micro-batch so far, those of its sides, of length 1; on the last stage.
    """

    def __init__(
        self,
        prepare: Callable[[], StageEncode],
        inputs: Sequence[Sequence[Inputs]],
        finish: Callable[[torch.Tensor], torch.Tensor] | None,
        checkpointed: bool,
        *,
        sparse_words: bool,
    ) -> None:
        super().__init__()
        self._sparse_words = sparse_words
        self._prepare, self._inputs, self._finish = prepare, inputs, finish
        self._checkpointed = checkpointed
        self._counts = [[len(side.batch.token_ids) for side in sides] for sides in inputs]
        self.tokens = max(sum(counts) for counts in self._counts)
        self.texts = sum(side.batch.texts for side in inputs[0])
        self.embeddings: list[list[torch.Tensor]] = []

    def loss_by(self, loss_of: LossOf) -> Callable[..., torch.Tensor]:
        """The loss as a schedule takes it."""
        return lambda output, target: loss_of(self.embeddings[int(target)], int(target))

    def forward(self, states: torch.Tensor, *, number: torch.Tensor | int) -> torch.Tensor:
        """States for the next stage, or all embeddings.

        Args:
            states: Of the stage before; anything for the first stage.
            number: Of the micro-batch.
        """
        encode, sides = self._prepare(), self._inputs[int(number)]
        counts = self._counts[int(number)]
        if states.is_floating_point():
            parts = states[: sum(counts)].split(counts)
        else:
            parts = [
                encode.first_states(side.batch, side.masks, sparse_words=self._sparse_words)
                for side in sides
            ]
        after = [
            encode.run_layers(
                part, side.batch, side.masks, activation_checkpointing=self._checkpointed
            )
            for part, side in zip(parts, sides, strict=True)
        ]
        if self._finish is None:
            return functional.pad(torch.cat(after), (0, 0, 0, self.tokens - sum(counts)))
        pooled = [
            self._finish(encode.pooled(states, side.batch))
            for states, side in zip(after, sides, strict=True)
        ]
        self.embeddings.append([functional.normalize(one, dim=-1) for one in pooled])
        return torch.cat(self.embeddings[-1])


def _no_loss(sides: list[torch.Tensor], number: int) -> torch.Tensor:
    """Has stages before the last take part in backward passes."""
    raise AssertionError("the last stage has a loss of its own")


if TYPE_CHECKING:
    # mypy: the class has what the loops need.
    _for_steps_of_stages: StepperFactory[Stepper] = PipelineStepper
