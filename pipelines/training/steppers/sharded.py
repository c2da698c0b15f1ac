"""Training in which each worker holds a part of the state. Runs on executors.

Fully sharded data parallel training by PyTorch itself. Runs on executors.

Source: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023,
arXiv:2304.11277; in the form that shards each parameter by its rows.

Which part of the encoder a worker holds, and how the parts become a checkpoint.

Runs on executors.

The groups that exchange with one another where several workers hold the encoder together.

Runs on executors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as processes
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import normalize

from pipelines.models.adaptation import Frozen
from pipelines.models.architecture import Division, Shapes, architecture_of
from pipelines.models.arrays import LazyArrays, shapes_of
from pipelines.models.frameworks.torch_division import Members
from pipelines.models.frameworks.torch_module import (
    EncoderModule,
    Inputs,
    allocate,
    encoder_module,
)
from pipelines.models.weights import part_of, part_shape, stage_of
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.settings.training import Place, layers_of_stage
from pipelines.training.collectives.base import Collectives, check_agreement
from pipelines.training.collectives.process_group import GroupCollectives
from pipelines.training.steppers.adamw import BETA_1, BETA_2, EPSILON
from pipelines.training.steppers.base import Batch as Micro
from pipelines.training.steppers.base import (
    Stepper,
    StepperFactory,
    StepWork,
    batches,
    by_side,
    granule_texts,
    parts_needed,
    per_batch,
)
from pipelines.training.steppers.objectives import Objective, pulls_on_embeddings
from pipelines.training.steppers.torch import (
    DiskTensors,
    TorchRun,
    device_inputs,
    gradients_of_loss,
    on_device,
    pulled_loss,
    to_numpy,
    total_norm,
)
from pipelines.training.steppers.torch_reconstruction import Part, Rewriting, RewritingModule

KINDS = {"m": "exp_avg", "v": "exp_avg_sq"}
"""The optimiser's names for what checkpoints call m and v."""


class ShardedStepper(TorchRun, ABC):
    """What the libraries share that split the state; see :class:`.base.Stepper`.

    They average the gradients themselves, so the collectives carry losses and embeddings only.

    Args:
        checkpoint: The state to begin with.
        collectives: Between the workers that split it.
        everyone: Between all workers, where `collectives` is between some of them.
    """

    sharded = True
    exchange_seconds: float | None = None

    def __init__(
        self,
        task: WorkerTask,
        checkpoint: Checkpoint,
        collectives: Collectives,
        everyone: Collectives | None = None,
    ) -> None:
        super().__init__(task, checkpoint, collectives, everyone)
        self._shapes = shapes_of(checkpoint.weights)
        # Without memory: nobody holds all of it at any time.
        self._encoder: EncoderModule | RewritingModule
        if self._rewriting is not None:
            self._encoder = RewritingModule(self._rewriting, self._shapes)
        else:
            self._encoder = self._module()
        self._disk: DiskTensors | None = None

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Makes one update from this worker's granules; returns the loss over all workers."""
        objective = self._objectives[work.source]
        if self._rewriting is not None:
            loss = self._rewritten(work, self._rewriting)
        elif objective.across_granules:
            loss = self._across(work, objective)
        else:
            loss = self._within(work, objective)
        self._update(learning_rate)
        (mean,) = self._collectives.all_reduce_mean([loss])
        return float(mean)

    def _module(self) -> EncoderModule:
        """The encoder, without memory."""
        return encoder_module(self._spec, self._training)

    @abstractmethod
    def checkpoint(self, step: int) -> Checkpoint:
        """The state before a step, see :class:`.base.Stepper`; its arrays come when read."""

    def _weights_of(self, module: torch.nn.Module) -> dict[str, Any]:
        """The parameters of a part of the encoder, in canonical names."""
        own = {id(parameter) for parameter in module.parameters()}
        return {name: one for name, one in self._encoder.weights.items() if id(one) in own}

    def _moment(self, like: torch.Tensor) -> torch.Tensor:
        """Zeros in the shape of a part of the state, on the disk if that is asked for."""
        if self._disk is None:
            return torch.zeros_like(like)
        return self._disk.zeros(like.numel()).view(like.shape)

    def _begin_moments(self, parts: Iterable[torch.Tensor]) -> None:
        """Makes room for the moments of this worker's parts; before any :meth:`_moment`."""
        if self._training.offload == "disk":
            self._disk = DiskTensors(part.numel() for part in parts for _ in KINDS)

    def _let_go_after(self, optimiser: torch.optim.Optimizer) -> None:
        """Has an optimiser keep no more of the moments in memory than it updates at once."""
        if (disk := self._disk) is not None:
            optimiser.register_step_post_hook(lambda *of_step: disk.let_go())

    def _moment_shapes(self) -> Shapes:
        return {f"{kind}/{name}": shape for kind in KINDS for name, shape in self._shapes.items()}

    @abstractmethod
    def _embed(self, sides: Sequence[Inputs] | Sequence[Part]) -> list[torch.Tensor]:
        """The embeddings of the sides of a granule; gathers parameters on the way.

        Of an objective that has texts written out again, the losses of parts of a granule.
        """

    @abstractmethod
    def _backward(self, loss: torch.Tensor, granules: int, *, last: bool) -> None:
        """Adds a granule's gradients, over all workers.

        Args:
            loss: Of the granule.
            granules: Of this worker in the step; their gradients are averaged.
            last: Whether the update comes next.
        """

    @abstractmethod
    def _update(self, learning_rate: float) -> None:
        """Makes an update from the gradients, and forgets them."""

    def _within(self, work: StepWork, objective: Objective) -> torch.Tensor:
        """Adds the gradients with each granule's own negatives; see ``TorchStepper``."""
        losses, count = [], len(work.granules)
        for number, (granule, some) in enumerate(
            zip(work.granules, self._batches(work, objective), strict=True), 1
        ):
            targets = objective.targets(granule)
            if len(some) == 1:
                loss = objective.loss(self._embed_batch(some[0]), on_device(targets, self._device))
                self._backward(loss, count, last=number == count)
            else:
                own = self._embedded(some)
                loss, pulls = gradients_of_loss(objective.loss, own, targets, 1.0)
                self._pull(some, pulls, count, last=number == count)
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def _rewritten(self, work: StepWork, rewriting: Rewriting) -> torch.Tensor:
        """Adds the gradients of an objective that has texts written out again."""
        count, needed = len(work.granules), [rewriting.parts_needed(one) for one in work.granules]
        if self._training.tokens_per_micro_batch is not None:
            # As many on every worker: they compute in step.
            needed = np.asarray(self._collectives.all_gather(np.array([needed]))).ravel().tolist()
        parts = [
            part
            for granule in work.granules
            for part in rewriting.parts(granule, work.noise_epoch, max(needed))
        ]
        total = torch.zeros((), device=self._device)
        for number, part in enumerate(parts, 1):
            (loss,) = self._embed([part])
            self._backward(loss, count, last=number == len(parts))
            total += loss.detach()
        return total / count

    def _across(self, work: StepWork, objective: Objective) -> torch.Tensor:
        """Adds the gradients with the negatives of the whole step; see ``TorchStepper``.

        Every batch is embedded twice, the last one too, so that each graph is pulled through
        right after it was made: the libraries then gather the units in the same order each time.
        """
        candidates = objective.candidates(work.granules, self._collectives)
        some = [batch for of_granule in self._batches(work, objective) for batch in of_granule]
        own = self._embedded(some)
        gradients_of = partial(gradients_of_loss, objective.loss)
        loss, pulls = pulls_on_embeddings(
            own, candidates, self._collectives, gradients_of, torch.cat
        )
        # What adds a gradient divides by the number of granules.
        count = len(work.granules)
        self._pull(some, [pull * count for pull in pulls], count, last=True)
        return loss

    def _embedded(self, some: Sequence[Micro]) -> list[torch.Tensor]:
        """The embeddings of each side, without a graph."""
        with torch.no_grad():
            parts = [self._embed_batch(batch) for batch in some]
        return [torch.cat(side) for side in by_side(some, parts)]

    def _pull(
        self, some: Sequence[Micro], pulls: Sequence[torch.Tensor], granules: int, *, last: bool
    ) -> None:
        """Adds the gradients of batches, given those on the embeddings of each side.

        Args:
            granules: Of this worker in the step.
            last: Whether the update comes next.
        """
        for number, (batch, own) in enumerate(zip(some, per_batch(some, pulls), strict=True), 1):
            embeddings = self._embed_batch(batch)
            self._backward(
                pulled_loss(embeddings, own), granules, last=last and number == len(some)
            )

    def _batches(self, work: StepWork, objective: Objective) -> list[list[Micro]]:
        """The batches of each granule, as many on every worker, which embed in step.

        The numbers follow from all granules of the step, so not from how many workers there are.
        """
        most, seed = self._training.tokens_per_micro_batch, self._training.seed
        sides, epoch = objective.sides, work.noise_epoch
        granules = [granule_texts(one, sides, seed, epoch) for one in work.granules]
        parts = np.array([[parts_needed(side, most) for side in sides] for sides in granules])
        if most is not None:
            parts = np.asarray(self._collectives.all_gather(parts))
        return [batches(sides, parts.max(axis=0).tolist()) for sides in granules]

    def _embed_batch(self, batch: Micro) -> list[torch.Tensor]:
        inputs = device_inputs(batch, self._spec, self._training, self._device)
        return [normalize(side, dim=-1) for side in self._embed(inputs)]


def optimiser_of(
    weights: Mapping[str, torch.Tensor], shapes: Shapes, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW, that does not decay biases and layer norms.

    Args:
        weights: What this worker has of them, by name; parts may be flat.
        shapes: Of the whole.
        weight_decay: Of the others.
    """
    matrices = [value for name, value in weights.items() if len(shapes[name]) > 1]
    vectors = [value for name, value in weights.items() if len(shapes[name]) == 1]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        betas=(BETA_1, BETA_2),
        eps=EPSILON,
        fused=True,
    )


class FsdpStepper(ShardedStepper):
    """Parameters, gradients and moments in parts; see :class:`.sharded.ShardedStepper`.

    Gradients are reduced after each granule, so that only those of one unit are ever whole. Each
    unit has an optimiser of its own, for the moments of one to be in memory at a time if they are
    on the disk.
    """

    def __init__(
        self,
        task: WorkerTask,
        checkpoint: Checkpoint,
        collectives: Collectives,
        everyone: Collectives | None = None,
    ) -> None:
        super().__init__(task, checkpoint, collectives, everyone)
        mesh = self._mesh()
        # Where the workers compute on GPUs, what is not gathered is in the memory of the host.
        away = self._training.offload != "none" and self._device.type == "cuda"
        policy = CPUOffloadPolicy() if away else OffloadPolicy()
        units = list(self._encoder.units())
        for unit in units:
            fully_shard(unit, mesh=mesh, offload_policy=policy)
        fully_shard(self._encoder, mesh=mesh, offload_policy=policy)
        allocate(self._encoder, torch.device("cpu") if away else self._device)
        self._parts: dict[str, DTensor] = self._encoder.weights
        for name, part in self._parts.items():
            self._fill(_local(part), checkpoint.weights[name])
        # The optimisers see this worker's part alone. The library's tensors in parts would have
        # their moments on the GPU, also where the part is in the memory of the host.
        self._locals = {
            name: torch.nn.Parameter(_local(part)) for name, part in self._parts.items()
        }
        decay = self._training.weight_decay
        self._optimisers = [
            optimiser_of({name: self._locals[name] for name in own}, self._shapes, decay)
            for own in self._by_unit(units)
            if own
        ]
        self._state: dict[str, dict[str, Any]] = {}
        self._take(checkpoint)

    def checkpoint(self, step: int) -> Checkpoint:
        """See :meth:`.sharded.ShardedStepper.checkpoint`."""
        return Checkpoint(
            step,
            self._spec,
            LazyArrays(self._shapes, lambda name: to_numpy(self._weight(name))),
            LazyArrays(self._moment_shapes(), lambda key: to_numpy(self._moment_of(key))),
        )

    def _mesh(self) -> DeviceMesh:
        """Of the workers that share the state out."""
        return init_device_mesh(self._device.type, (self._collectives.workers,))

    def _embed(self, sides: Sequence[Inputs] | Sequence[Part]) -> list[torch.Tensor]:
        embeddings: list[torch.Tensor] = self._encoder(sides)
        return embeddings

    def _backward(self, loss: torch.Tensor, granules: int, *, last: bool) -> None:
        (loss / granules).backward()

    def _update(self, learning_rate: float) -> None:
        norm = self._norm()
        clip = self._training.clip_norm
        if clip:
            excess = (norm / clip).clamp(min=1.0)
            for one in self._parts.values():
                gradient = _local(one.grad)
                gradient.div_(excess.to(gradient.device))
        self.gradient_norm = float(norm)
        for name, part in self._parts.items():
            # The library may have given the part another place in memory before the first pass.
            self._locals[name].data, self._locals[name].grad = _local(part), _local(part.grad)
            part.grad = None
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = learning_rate
            optimiser.step()
            optimiser.zero_grad()

    def _norm(self) -> torch.Tensor:
        """The norm of the gradient over all workers, on the device that they exchange from."""
        return self._square(self._parts).sqrt()

    def _square(self, names: Iterable[str]) -> torch.Tensor:
        """The square of the norm of some weights' gradients, over those who share them out."""
        own = total_norm(_local(self._parts[name].grad) for name in names).to(self._device)
        (mean,) = self._collectives.all_reduce_mean([own.square()])
        return mean * self._collectives.workers

    def _by_unit(self, units: Sequence[torch.nn.Module]) -> Iterator[Sequence[str]]:
        """The names of what is in each unit, and in none of them."""
        rest = dict.fromkeys(self._parts)
        for unit in units:
            own = list(self._weights_of(unit))
            yield own
            for name in own:
                del rest[name]
        yield list(rest)

    def _fill(self, local: torch.Tensor, array: np.ndarray) -> None:
        """Gives this worker's rows their numbers; no others are read of an array."""
        workers = self._collectives.workers
        begin = self._collectives.rank * -(-len(array) // workers)
        local.copy_(torch.from_numpy(array[begin : begin + len(local)]))

    def _take(self, checkpoint: Checkpoint) -> None:
        """Gives the optimisers this worker's part of the moments."""
        self._begin_moments(self._locals.values())
        names = {id(local): name for name, local in self._locals.items()}
        for optimiser in self._optimisers:
            for local in chain.from_iterable(group["params"] for group in optimiser.param_groups):
                name = names[id(local)]
                state = {"step": torch.tensor(float(checkpoint.step), device=local.device)}
                for kind, key in KINDS.items():
                    moment = self._moment(local.detach())
                    if checkpoint.moments:
                        self._fill(moment, checkpoint.moments[f"{kind}/{name}"])
                    state[key] = moment
                optimiser.state[local] = self._state[name] = state
            self._let_go_after(optimiser)
        if self._disk is not None:
            self._disk.let_go()

    def _weight(self, name: str) -> torch.Tensor:
        """A weight, put together by those who share it out; all of them call it."""
        return self._whole(name, _local(self._parts[name]))

    def _moment_of(self, key: str) -> torch.Tensor:
        """The same of a moment, by its kind and the name of its weight with a slash between."""
        kind, _, name = key.partition("/")
        return self._whole(name, self._state[name][KINDS[kind]])

    def _whole(self, name: str, local: torch.Tensor) -> torch.Tensor:
        part = self._parts[name]
        # A GPU's library of messages sends nothing that is in the host's memory.
        here = DTensor.from_local(
            local.to(self._device),
            part.device_mesh,
            part.placements,
            run_check=False,
            shape=part.shape,
            stride=part.stride(),
        )
        whole: torch.Tensor = here.full_tensor()
        return whole


def _local(part: DTensor) -> torch.Tensor:
    """This worker's part, to be written to."""
    local: torch.Tensor = part.detach().to_local()
    return local


if TYPE_CHECKING:
    # mypy: the class has what the loops need.
    _for_steps: StepperFactory[Stepper] = FsdpStepper


PartOf = Callable[[str], torch.Tensor]
"""Takes the name of a weight, behind a kind and a slash where it is one of the moments."""


class OwnPart:
    """A worker's part of an encoder.

    Args:
        task: Of the worker.
        checkpoint: A state of the whole encoder, whose architecture can be divided.

    Attributes:
        axes: Along which members divide a weight, by name; of all stages.
        layers: Those of this worker's stage.
        trained: The shapes of all trained weights, by name, in canonical order.
    """

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint) -> None:
        self._spec = checkpoint.spec
        division = architecture_of(self._spec).division
        assert division is not None, "refused before the start"
        self._division: Division = division
        self._placement, self._place = task.placement, task.place
        self.axes = division.axes(self._spec)
        self.layers = layers_of_stage(
            division.layers(self._spec), self._placement.stages, self._place.stage
        )
        self.trained = shapes_of(checkpoint.weights)

    def of(self, checkpoint: Checkpoint) -> Checkpoint:
        """The part of a state that the worker holds: views of its arrays, of which none is read."""
        frozen = checkpoint.frozen
        return replace(
            checkpoint,
            weights=self._parts(checkpoint.weights),
            moments=self._parts(checkpoint.moments),
            frozen=Frozen(weights=self._parts(frozen.weights), scale=frozen.scale),
        )

    def gathered(
        self, part_of: PartOf, device: torch.device, kinds: Sequence[str] = ()
    ) -> LazyArrays:
        """Whole arrays, each sent to rank 0 when it is read: all workers read them in one order.

        Args:
            part_of: Gives this worker's part of an array of its stage; called by all replicas, so
                that it may put the part together of what they share out.
            device: Of the parts, from which the process group can send.
            kinds: What stands before the names, with a slash; none for the weights themselves.

        Returns:
            In canonical order; with the other ranks they are empty.
        """
        kinds = [f"{kind}/" for kind in kinds] or [""]
        shapes = {f"{kind}{name}": self.trained[name] for kind in kinds for name in self.trained}
        return LazyArrays(shapes, partial(self._sent, part_of, device))

    def _sent(self, part_of: PartOf, device: torch.device, key: str) -> np.ndarray:
        """Has rank 0 put together the parts of an array, which come from the first replica."""
        name, rank = name_of(key), self._placement.rank(self._place)
        own = part_of(key).detach() if self._stage(name) == self._place.stage else None
        holders = [self._placement.rank(place) for place in self._holders(name)]
        if rank == 0:
            # One part after the other: the whole is in memory once, and no more than a part twice.
            whole = np.empty(self.trained[name], np.float32)
            for holder in holders:
                part = self._received(holder, name, device) if holder else own
                self._part(whole, name, self._placement.place(holder))[...] = to_numpy(part)
            return whole
        if rank in holders and own is not None:
            processes.send(own.contiguous(), dst=0)
        return np.empty(0, np.float32)

    def _holders(self, name: str) -> Iterator[Place]:
        """Where the parts of a weight are, in the first replica and in their order."""
        stage = self._stage(name)
        members = range(self._placement.members if name in self.axes else 1)
        return (Place(0, stage, member) for member in members)

    def _received(self, holder: int, name: str, device: torch.device) -> torch.Tensor:
        shape = self._shape(name, self.trained[name], self._placement.place(holder))
        part = torch.empty(shape, device=device)
        processes.recv(part, src=holder)
        return part

    def _parts(self, arrays: Mapping[str, np.ndarray]) -> LazyArrays:
        """Those of the worker's stage, by names that may stand behind a kind and a slash."""
        shapes = {
            key: self._shape(name_of(key), shape, self._place)
            for key, shape in shapes_of(arrays).items()
            if self._stage(name_of(key)) == self._place.stage
        }
        return LazyArrays(shapes, lambda key: self._part(arrays[key], name_of(key), self._place))

    def _stage(self, name: str) -> int:
        return stage_of(self._division, self._spec, name, self._placement)

    def _part(self, array: np.ndarray, name: str, place: Place) -> np.ndarray:
        """A view."""
        axis = self.axes.get(name)
        return array if axis is None else part_of(array, axis, self._placement, place)

    def _shape(self, name: str, whole: Sequence[int], place: Place) -> tuple[int, ...]:
        return part_shape(whole, self.axes.get(name), self._placement.members, place.member)


def name_of(key: str) -> str:
    """The name of a weight, which may stand behind a kind and a slash, as that of a moment does."""
    return key.partition("/")[2] or key


class WorkerGroups(NamedTuple):
    """A worker's groups; see :mod:`pipelines.settings.training`.

    Attributes:
        members: Those of its stage, in its replica.
        stages: Those of its replica that hold the same part of matrices.
        copies: Those that hold the same part of the encoder, one of each replica.
    """

    members: Members
    stages: Members
    copies: GroupCollectives


def worker_groups(task: WorkerTask, device: torch.device) -> WorkerGroups:
    """Makes the groups of all workers, which call it at once; returns this worker's.

    Args:
        device: Where the worker computes.
    """
    placement, seconds = task.placement, task.run.config.training.stall_seconds
    members, stages, copies = (
        _group([ranks_of(rank) for rank in range(task.workers)], seconds)
        for ranks_of in (placement.member_ranks, placement.stage_ranks, placement.copy_ranks)
    )
    return WorkerGroups(Members(members), Members(stages), GroupCollectives(device, copies))


def check_members(
    own: Checkpoint, divided: Container[str], members: Members, device: torch.device
) -> None:
    """Compares what each member has as a whole; all members call it, after a step.

    Args:
        own: The worker's own state, or its part of it where replicas share it out.
        divided: Names of the weights that members have parts of.
        members: The worker's.
        device: From which they exchange.

    Raises:
        RuntimeError: They differ; see :func:`.agreement.check_agreement`.
    """
    weights, moments = (
        {key: arrays[key] for key in arrays if name_of(key) not in divided}
        for arrays in (own.weights, own.moments)
    )
    if members.size > 1 and weights:
        group = GroupCollectives(device, members.group)
        check_agreement(replace(own, weights=weights, moments=moments), group, "tensor ranks")


def _group(all_ranks: Sequence[Sequence[int]], seconds: float) -> Any:
    """This worker's group of some that all workers are divided into.

    Args:
        all_ranks: Of each worker, its group.
        seconds: The deadline of an exchange.
    """
    groups = list(dict.fromkeys(tuple(ranks) for ranks in all_ranks))
    own, _ = processes.new_subgroups_by_enumeration(groups, timeout=timedelta(seconds=seconds))
    return own
