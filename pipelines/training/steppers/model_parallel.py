"""Training of one encoder on several workers together. Runs on executors.

**Tensor parallel**: the members of a stage hold each layer together. A worker's part of the encoder
is plain tensors, and :class:`.torch.TorchStepper` trains them unchanged: the workers of the same
part, one of each replica, average its gradients. Only three things differ: the forward pass, the
norm of the gradient, and checkpoints. These hold whole arrays, so any other layout can resume from
them.

**Fully sharded**: each replica holds an equal share of a member's part of every divided matrix, as
in :mod:`.sharded`, so each of W workers holds about 1/W of the state. The replicas gather a
member's part of a layer, and the members compute the layer. Source: Zhao et al., "PyTorch FSDP:
Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023, arXiv:2304.11277; its section on
interoperability combines the two in this way.

**Pipelines**: the encoder is a sequence of stages, run by PyTorch's own schedules. While a stage
computes one granule, later stages compute earlier granules. With as many granules as stages, a
stage holds the activations of as many granules as there are stages from it on; otherwise of all.
The library allocates the buffers of all granules of a step at once. Sources: Narayanan et al.,
"Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021, arXiv:2006.09503 (one forward, one
backward); Huang et al., "GPipe", NeurIPS 2019, arXiv:1811.06965.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as processes
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional

from pipelines.models.adaptation import Frozen
from pipelines.models.architecture import Division, architecture_of
from pipelines.models.arrays import LazyArrays, shapes_of
from pipelines.models.frameworks.torch import Encoder, StageEncode, finished, prepare
from pipelines.models.frameworks.torch_division import Members, Part
from pipelines.models.frameworks.torch_module import EncoderModule, Inputs, encoder_module
from pipelines.models.weights import part_of, part_shape, stage_of
from pipelines.runs.checkpoint import AVERAGE, Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.settings.training import Place, layers_of_stage
from pipelines.training.collectives.base import Collectives, check_agreement
from pipelines.training.collectives.process_group import GroupCollectives
from pipelines.training.devices import worker_device
from pipelines.training.steppers.base import Batch, Stepper, StepperFactory, StepWork, by_side
from pipelines.training.steppers.objectives import Objective
from pipelines.training.steppers.sharded import KINDS, FsdpStepper, lazy_checkpoint
from pipelines.training.steppers.torch import (
    TorchStepper,
    TorchWork,
    on_device,
    pulled_loss,
    to_numpy,
    total_norm,
)

StepLoss = Callable[[list[torch.Tensor], int], torch.Tensor]
"""Maps the embeddings of a micro-batch's sides, and its number, to its share of the step's loss."""

PartOf = Callable[[str], torch.Tensor]
"""Maps the name of a weight to its part; a moment's name has a kind and a slash before it."""


class OwnPart:
    """A worker's part of an encoder, from a checkpoint of the whole.

    Attributes:
        placement: The layout of the workers.
        place: This worker's place in it.
        division: How the architecture is divided.
        axes: The members' axis of division of a weight, by name; of all stages.
        layers: The layers of this worker's stage.
        trained: The shapes of all trained weights, by name, in canonical order.
    """

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint) -> None:
        self._spec = checkpoint.spec
        division = architecture_of(self._spec).division
        assert division is not None, "refused before the start"
        self.division: Division = division
        self.placement, self.place = task.placement, task.place
        self.axes = division.axes(self._spec)
        self.layers = layers_of_stage(
            division.layers(self._spec), self.placement.stages, self.place.stage
        )
        self.trained = shapes_of(checkpoint.weights)

    @property
    def is_last(self) -> bool:
        """Whether the worker's stage is the last one."""
        return self.place.stage == self.placement.stages - 1

    def of(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the worker's part of a state: views of its arrays, still unread."""
        frozen = checkpoint.frozen
        return replace(
            checkpoint,
            weights=self._parts(checkpoint.weights),
            moments=self._parts(checkpoint.moments),
            frozen=Frozen(weights=self._parts(frozen.weights), scale=frozen.scale),
        )

    def gathered(
        self,
        step: int,
        weight: PartOf,
        moment: PartOf,
        device: torch.device,
        kinds: Sequence[str] = tuple(KINDS),
    ) -> Checkpoint:
        """Return the state before a step as whole arrays; reading one sends it to rank 0.

        All workers read them in the same order; on other ranks they are empty. `weight` and
        `moment` give this worker's part of an array of its stage. All replicas call them, so they
        may gather the replicas' shares. The process group must be able to send from `device`.
        """
        arrays = partial(self._sent, weight, device), partial(self._sent, moment, device)
        return lazy_checkpoint(step, self._spec, self.trained, *arrays, kinds)

    def _sent(self, part_of: PartOf, device: torch.device, key: str) -> np.ndarray:
        """Assemble an array on rank 0 from the parts of the first replica."""
        name, rank = _name_of(key), self.placement.rank(self.place)
        # On every replica, as a gather between replicas needs all of them.
        mine = part_of(key).detach() if self._stage(name) == self.place.stage else None
        holders = [self.placement.rank(place) for place in self._holders(name)]
        if rank == 0:
            # One part after the other: the memory holds the array once, and one part twice.
            array = np.empty(self.trained[name], np.float32)
            for holder in holders:
                part = self._received(holder, name, device) if holder else mine
                self._part(array, name, self.placement.place(holder))[...] = to_numpy(part)
            return array
        if rank in holders and mine is not None:
            processes.send(mine.contiguous(), dst=0)
        return np.empty(0, np.float32)

    def _holders(self, name: str) -> Iterator[Place]:
        """Yield the places of a weight's parts, in the first replica and in their order."""
        stage = self._stage(name)
        members = range(self.placement.members if name in self.axes else 1)
        return (Place(0, stage, member) for member in members)

    def _received(self, holder: int, name: str, device: torch.device) -> torch.Tensor:
        shape = self._shape(name, self.trained[name], self.placement.place(holder))
        part = torch.empty(shape, device=device)
        processes.recv(part, src=holder)
        return part

    def _parts(self, arrays: Mapping[str, np.ndarray]) -> LazyArrays:
        """Return the arrays of the worker's stage, by names with or without a moment's kind."""
        shapes = {
            key: self._shape(_name_of(key), shape, self.place)
            for key, shape in shapes_of(arrays).items()
            if self._stage(_name_of(key)) == self.place.stage
        }
        return LazyArrays(shapes, lambda key: self._part(arrays[key], _name_of(key), self.place))

    def _stage(self, name: str) -> int:
        return stage_of(self.division, self._spec, name, self.placement)

    def _part(self, array: np.ndarray, name: str, place: Place) -> np.ndarray:
        axis = self.axes.get(name)
        return array if axis is None else part_of(array, axis, self.placement, place)

    def _shape(self, name: str, shape: Sequence[int], place: Place) -> tuple[int, ...]:
        return part_shape(shape, self.axes.get(name), self.placement.members, place.member)


def _name_of(key: str) -> str:
    """Return the weight's name in a key; a moment's key begins with its kind and a slash."""
    return key.partition("/")[2] or key


class WorkerGroups(NamedTuple):
    """A worker's groups; see :mod:`pipelines.settings.training`.

    Attributes:
        members: The workers of its stage, in its replica.
        stages: The workers of its replica with the same part of matrices.
        copies: The workers with the same part of the encoder, one of each replica.
    """

    members: Members
    stages: Members
    copies: GroupCollectives


def worker_groups(task: WorkerTask, device: torch.device) -> WorkerGroups:
    """Make the groups of all workers; return this worker's. All workers call it at once."""
    placement, seconds = task.placement, task.run.config.training.stall_seconds
    members, stages, copies = (
        _group([ranks_of(rank) for rank in range(task.workers)], seconds)
        for ranks_of in (placement.member_ranks, placement.stage_ranks, placement.copy_ranks)
    )
    return WorkerGroups(Members(members), Members(stages), GroupCollectives(device, copies))


def _group(all_ranks: Sequence[Sequence[int]], seconds: float) -> Any:
    """Return this worker's group, given the ranks of each worker's group."""
    groups = list(dict.fromkeys(tuple(ranks) for ranks in all_ranks))
    group, _ = processes.new_subgroups_by_enumeration(groups, timeout=timedelta(seconds=seconds))
    return group


def check_members(
    state: Checkpoint, divided: Container[str], members: Members, device: torch.device
) -> None:
    """Compare the undivided weights of each member; all members call it, after a step.

    `state` is the worker's, or its share if replicas split it; `divided` names the weights that
    members divide.

    Raises:
        RuntimeError: They differ; see :func:`.base.check_agreement`.
    """
    weights, moments = (
        {key: arrays[key] for key in arrays if _name_of(key) not in divided}
        for arrays in (state.weights, state.moments)
    )
    if members.size > 1 and weights:
        group = GroupCollectives(device, members.group)
        check_agreement(replace(state, weights=weights, moments=moments), group, "tensor ranks")


class DividedWork(TorchWork):
    """Updates a part of the encoder; after the first update it compares the common weights.

    The checkpoint holds the whole encoder; `collectives` join all workers.
    """

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint, collectives: Collectives) -> None:
        self._own = OwnPart(task, checkpoint)
        self._groups = worker_groups(task, worker_device())
        self._has_agreed = False
        super().__init__(task, self._own.of(checkpoint), self._groups.copies, collectives)

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Make one update from the granules of this worker's replica."""
        loss = super().step(work, learning_rate)
        if not self._has_agreed:
            self._check_agreement(work.index + 1)
            self._has_agreed = True
        return loss

    @abstractmethod
    def _check_agreement(self, step: int) -> None:
        """Compare the state before a step with those of other workers; all call it."""


class ModelParallelStepper(DividedWork, TorchStepper):
    """Updates a member's part of the encoder, as plain tensors."""

    sharded = True

    @property
    def exchange_seconds(self) -> float | None:
        """See :class:`.base.Stepper`; the members' exchanges within layers count too."""
        seconds = super().exchange_seconds
        return None if seconds is None else seconds + self._groups.members.seconds

    def checkpoint(self, step: int) -> Checkpoint:
        """Return the state before a step, on rank 0; all workers call it at once."""
        kinds = tuple(KINDS) if self._training.ema is None else (*KINDS, AVERAGE)
        return self._own.gathered(
            step, self._weights.__getitem__, self._moments.__getitem__, self._device, kinds
        )

    @property
    def _part(self) -> Part:
        return Part(self._own.layers, self._groups.members)

    def _norm(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the norm over all parts; undivided weights count once."""
        counted = [
            gradient
            for name, gradient in gradients.items()
            if name in self._own.axes or self._own.place.member == 0
        ]
        square = torch.zeros((), device=self._device)
        if counted:
            square += total_norm(counted) ** 2
        self._groups.members.add_up_in_place(square)
        self._groups.stages.add_up_in_place(square)
        return square.sqrt()

    def _check_agreement(self, step: int) -> None:
        """Compare parts among replicas, and undivided weights among members."""
        # This worker's part only; `self.checkpoint` would gather the whole encoder.
        state = TorchStepper.checkpoint(self, step)
        if self._collectives.workers > 1:
            check_agreement(state, self._collectives, "replicas")
        check_members(state, self._own.axes, self._groups.members, self._device)


class DividedFsdpStepper(DividedWork, FsdpStepper):
    """Updates this worker's share of a member's part."""

    def checkpoint(self, step: int) -> Checkpoint:
        """Return the state before a step, on rank 0; all workers call it at once."""
        return self._own.gathered(step, self._weight, self._moment, self._device)

    def _module(self) -> EncoderModule:
        return encoder_module(self._spec, self._training, self._groups.members)

    def _mesh(self) -> DeviceMesh:
        return DeviceMesh.from_group(self._groups.copies.group, self._device.type)

    def _norm(self) -> torch.Tensor:
        """Return the norm over all parts; undivided weights count once."""
        members = self._groups.members
        counted = [name for name in self._parts if name in self._own.axes or members.member == 0]
        return members.add_up_in_place(self._square(counted)).sqrt()

    def _check_agreement(self, step: int) -> None:
        """Compare the members' shares of undivided weights."""
        names = [name for name in self._locals if name not in self._own.axes]
        weights = {name: to_numpy(self._locals[name]) for name in names}
        moments = {
            f"{kind}/{name}": to_numpy(self._state[name][key])
            for kind, key in KINDS.items()
            for name in names
        }
        state = Checkpoint(step, self._spec, weights, moments)
        check_members(state, self._own.axes, self._groups.members, self._device)


class StagedWork(TorchWork):
    """Passes micro-batches through stages of the encoder on different workers.

    The micro-batches are whole granules of a replica. The last stage compares the embeddings.
    """

    _own: OwnPart

    @abstractmethod
    def _run(self, batches: Sequence[Batch], loss_of: StepLoss | None) -> list[Any]:
        """Pass micro-batches through the stages, and gradients back if there is a loss.

        On the last stage return the losses of all, or without a loss the embeddings of their sides;
        on other stages nothing.
        """

    def _stage_module(
        self,
        batches: Sequence[Batch],
        weights: Mapping[str, torch.Tensor],
        part: Part,
        *,
        sparse_words: bool,
    ) -> StageModule:
        """Return the stage for micro-batches; `sparse_words` makes the word gradient sparse."""
        return StageModule(
            partial(prepare, self._spec, weights, self._training.precision, part),
            [self._inputs(batch) for batch in batches],
            self._training.activation_checkpointing,
            is_last=self._own.is_last,
            sparse_words=sparse_words,
        )

    def _within(self, work: StepWork, objective: Objective) -> torch.Tensor:
        """See :class:`TorchWork`; zero before the last stage."""
        targets = [objective.targets(granule) for granule in work.granules]

        def loss_of(sides: list[torch.Tensor], number: int) -> torch.Tensor:
            loss = objective.loss(sides, on_device(targets[number], self._device))
            return loss / len(targets)

        losses = self._run(self._texts(work, objective), loss_of)
        return sum(losses, torch.zeros((), device=self._device))

    def _across(self, work: StepWork, objective: Objective) -> torch.Tensor:
        """See :class:`TorchWork`; zero before the last stage, since that has the candidates."""
        batches = self._texts(work, objective)
        with torch.no_grad():
            found = self._run(batches, None)
        pulls: list[list[torch.Tensor]] = []
        loss = torch.zeros((), device=self._device)
        if self._own.is_last:
            sides = [torch.cat(side) for side in by_side(batches, found)]
            loss, pulls = self._compared(work, objective, batches, sides)
        self._run(batches, lambda sides, number: pulled_loss(sides, pulls[number]))
        return loss


class PipelineStepper(StagedWork, ModelParallelStepper):
    """Updates a stage, or a member's part of it."""

    @property
    def exchange_seconds(self) -> float | None:
        """None: stages wait for one another while they compute."""
        return None

    def _loss(self, work: StepWork) -> torch.Tensor:
        """See :class:`.torch.TorchWork`; all stages return the loss of the last one."""
        # A sum, since the other stages have zero.
        return self._groups.stages.add_up_in_place(super()._loss(work))

    def _run(self, batches: Sequence[Batch], loss_of: StepLoss | None) -> list[Any]:
        first = self._own.place.stage == 0
        module = self._stage_module(batches, self._effective(), self._part, sparse_words=True)
        tokens = torch.empty(
            module.tokens, self._spec.hidden, device="meta", requires_grad=loss_of is not None
        )
        outputs = tokens
        if self._own.is_last:
            outputs = torch.empty(module.texts, self._spec.embedding_width, device="meta")
        numbers, stages = torch.arange(len(batches)), self._own.placement.stages
        stage = PipelineStage(
            module,
            self._own.place.stage,
            stages,
            self._device,
            input_args=numbers[:1] if first else tokens,
            output_args=outputs,
            group=self._groups.stages.group,
        )
        # 1F1B needs at least as many micro-batches as stages.
        schedule = Schedule1F1B if len(batches) >= stages else ScheduleGPipe
        loss = None if loss_of is None else module.loss_by(loss_of)
        losses: list[torch.Tensor] | None = None if loss_of is None else []
        # Each loss is already a share of the step's.
        schedule(stage, len(batches), loss, scale_grads=False).step(
            *([numbers] if first else []),
            number=numbers,
            target=numbers,
            losses=losses,
            return_outputs=False,
        )
        return module.embeddings if losses is None else [each.detach() for each in losses]


class StageModule(torch.nn.Module):  # type: ignore[misc] # torch is not followed
    """A stage in the form of PyTorch's pipelines, for the micro-batches of a step.

    Stages exchange a matrix [tokens, hidden] with the tokens of all sides. The micro-batch with the
    most tokens sets its rows. `encoder` makes the forward pass of each micro-batch anew: the graph
    of cast weights goes with the first gradient. `checkpointed` recomputes activations for their
    gradients.

    Attributes:
        tokens: Rows of the matrix.
        texts: Of all sides of a micro-batch; the same for all micro-batches.
        embeddings: Of each micro-batch so far, by side, of length 1; on the last stage.
    """

    def __init__(
        self,
        encoder: Callable[[], Encoder],
        inputs: Sequence[Sequence[Inputs]],
        checkpointed: bool,
        *,
        is_last: bool,
        sparse_words: bool,
    ) -> None:
        super().__init__()
        self._encoder, self._inputs = encoder, inputs
        self._checkpointed, self._is_last, self._sparse_words = checkpointed, is_last, sparse_words
        self._counts = [[len(side.batch.token_ids) for side in sides] for sides in inputs]
        self.tokens = max(sum(counts) for counts in self._counts)
        self.texts = sum(side.batch.texts for side in inputs[0])
        self.embeddings: list[list[torch.Tensor]] = []

    def loss_by(self, loss_of: StepLoss) -> Callable[..., torch.Tensor]:
        """Return the loss in the form of a schedule."""
        return lambda output, target: loss_of(self.embeddings[int(target)], int(target))

    def forward(self, states: torch.Tensor, *, number: torch.Tensor | int) -> torch.Tensor:
        """Return states for the next stage, or all embeddings.

        `states` come from the stage before; the first stage ignores them. `number` is the
        micro-batch's.
        """
        encoder, sides = self._encoder(), self._inputs[int(number)]
        encode, counts = encoder.encode, self._counts[int(number)]
        assert isinstance(encode, StageEncode)
        # The first stage gets the micro-batch's number, an integer, in place of states.
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
        if not self._is_last:
            return functional.pad(torch.cat(after), (0, 0, 0, self.tokens - sum(counts)))
        pooled = [
            encode.pooled(states, side.batch) for states, side in zip(after, sides, strict=True)
        ]
        vectors = [finished(encoder.spec, encoder.weights, side) for side in pooled]
        self.embeddings.append([functional.normalize(side, dim=-1) for side in vectors])
        return torch.cat(self.embeddings[-1])


if TYPE_CHECKING:
    # mypy: the classes have what the loop needs.
    _tensor: StepperFactory[Stepper] = ModelParallelStepper
    _tensor_fsdp: StepperFactory[Stepper] = DividedFsdpStepper
    _pipeline: StepperFactory[Stepper] = PipelineStepper
