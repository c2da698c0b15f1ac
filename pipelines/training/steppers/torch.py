"""PyTorch's side of training: one step, and the stepper that holds the whole state.

Runs on executors. All steppers of PyTorch share :class:`TorchWork`. Steppers for one batch after
the other share :class:`BatchedWork`, steppers for micro-batches through stages of the encoder
:class:`.model_parallel.StagedWork`. A stepper adds the place of its weights, and its update.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import normalize
from torch.optim.adamw import adamw

from pipelines.files.copies import cache_folder
from pipelines.lanes.files import Side
from pipelines.losses.candidates import Picks, Targets
from pipelines.models.adaptation import effective, layer_of, of_objective
from pipelines.models.architecture import architecture_of
from pipelines.models.frameworks.torch import (
    Encoder,
    bound_kernel_caches,
    configure_threads,
    embed_batch,
    has_bf16,
    prepare,
)
from pipelines.models.frameworks.torch_batch import Batch as DeviceBatch
from pipelines.models.frameworks.torch_batch import by_segment, to_device
from pipelines.models.frameworks.torch_compile import compile_layers, compile_nothing
from pipelines.models.frameworks.torch_division import WHOLE, Part
from pipelines.models.frameworks.torch_dropout import dropout_masks, joined_masks
from pipelines.models.frameworks.torch_module import Inputs
from pipelines.models.weights import Weights
from pipelines.runs.checkpoint import AVERAGE, Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.settings import TrainingSettings
from pipelines.training.collectives.base import Collectives, TimedCollectives
from pipelines.training.devices import with_precision, worker_device
from pipelines.training.steppers.base import (
    Batch,
    GradientStepper,
    LoadableStepper,
    StepperFactory,
    StepWork,
    by_side,
    granule_texts,
    moments_of,
    per_batch,
)
from pipelines.training.steppers.numpy_adamw import BETA_1, BETA_2, EPSILON, newest_share
from pipelines.training.steppers.objectives import Objective, objectives, pulls_on_embeddings
from pipelines.training.steppers.packing import (
    CPU_STATES,
    Forward,
    default_tokens,
    forwards,
    packs,
    packs_by_width,
)
from pipelines.training.steppers.torch_exchange import GradientExchange
from pipelines.training.steppers.torch_token_loss import Examples, token_work


def on_device(targets: Targets, device: torch.device) -> Any:
    """Return a loss's targets as tensors."""
    if isinstance(targets, Picks):
        guide = [to_device(vectors, device) for vectors in targets.guide]
        return Picks(to_device(targets.own, device), to_device(targets.excluded, device), guide)
    if isinstance(targets, list):
        return [to_device(vectors, device) for vectors in targets]
    # A copy, since the array may be a part of a lane file, and tensors are writable.
    return to_device(np.array(targets), device)


def gradients_of_loss(
    loss_of: Callable[[Sequence[torch.Tensor], Any], torch.Tensor],
    sides: Sequence[torch.Tensor],
    targets: Targets,
    share: float,
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return a loss times a share, and its gradients; see :data:`.objectives.GradientsOf`."""
    leaves = [side.detach().requires_grad_() for side in sides]
    loss = loss_of(leaves, on_device(targets, sides[0].device)) * share
    return loss.detach(), torch.autograd.grad(loss, leaves)


def pulled_loss(sides: Sequence[torch.Tensor], pulls: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a scalar with the gradients `pulls` on the sides' embeddings."""
    return torch.stack([(side * pull).sum() for side, pull in zip(sides, pulls, strict=True)]).sum()


def memory_of(device: torch.device) -> int | None:
    """Return the bytes of a GPU's memory; None for a CPU."""
    if device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).total_memory)


def total_norm(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the norm over all gradients together."""
    norm: torch.Tensor = torch.nn.utils.get_total_norm(list(gradients))
    return norm


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Return a copy in the host's memory."""
    # A copy even on a CPU, where the array would share the tensor's memory.
    array: np.ndarray = tensor.detach().to("cpu", copy=True).numpy()
    return array


class TorchWork(ABC):
    """The common part of PyTorch's steppers; see :class:`.base.Stepper`.

    `collectives` join the workers of one comparison of embeddings and one mean of losses;
    `everyone` joins all workers, if there are more.
    """

    sharded = True

    def __init__(
        self,
        task: WorkerTask,
        checkpoint: Checkpoint,
        collectives: Collectives,
        everyone: Collectives | None = None,
    ) -> None:
        everyone = everyone or collectives
        self._spec = checkpoint.spec
        self._collectives = TimedCollectives(collectives)
        self._objectives = objectives(task.run, "torch")
        self._device = worker_device()
        settings = task.run.config.training
        if settings.compile:
            compile_layers(self._device, cache_folder(task.run.config.storage) / "compiled")
        else:
            # A process of Spark trains one run after the other.
            compile_nothing()
        self._training = with_precision(settings, everyone, has_bf16=has_bf16(self._device))
        self._token_work = token_work(task.run, self._spec, self._training)
        self.precision = self._training.precision
        self.gradient_norm: float | None = None

    @property
    def exchange_seconds(self) -> float | None:
        """Seconds spent in exchanges; None if a library exchanges during its computation."""
        return None

    @staticmethod
    def prepare_process(settings: TrainingSettings) -> None:
        """Set PyTorch's number of threads."""
        bound_kernel_caches()
        configure_threads(settings.threads)

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Make one update from this worker's granules; return the loss over all workers."""
        return float(self._update(self._loss(work), learning_rate, work.index + 1))

    @abstractmethod
    def checkpoint(self, step: int) -> Checkpoint:
        """Return the state before a step; see :class:`.base.Stepper`."""

    def _loss(self, work: StepWork) -> torch.Tensor:
        """Add up the gradients of a step, and return the loss of this worker's granules."""
        objective = self._objectives[work.source]
        make = self._across if objective.across_granules else self._within
        return make(work, objective)

    @abstractmethod
    def _within(self, work: StepWork, objective: Objective) -> torch.Tensor:
        """Do as :meth:`_loss` with each granule's own negatives; the mean over the granules."""

    @abstractmethod
    def _across(self, work: StepWork, objective: Objective) -> torch.Tensor:
        """Do as :meth:`_loss` with the negatives of the whole step."""

    @abstractmethod
    def _update(self, loss: torch.Tensor, learning_rate: float, number: int) -> torch.Tensor:
        """Make update `number`, from 1, from the gradients; return the mean loss of all workers."""

    def _mean(self, loss: torch.Tensor) -> torch.Tensor:
        (mean,) = self._collectives.all_reduce_mean([loss])
        return mean

    def _excess(self, norm: torch.Tensor) -> torch.Tensor | None:
        """Return the divisor that clips gradients of a norm; None without clipping."""
        clip = self._training.clip_norm
        return (norm / clip).clamp(min=1.0) if clip else None

    def _texts(self, work: StepWork, objective: Objective) -> list[Batch]:
        seed, epoch = self._training.seed, work.noise_epoch
        return [granule_texts(granule, objective.sides, seed, epoch) for granule in work.granules]

    def _inputs(self, batch: Batch) -> list[Inputs]:
        """Return each of the texts of a batch, and their dropout, on the device."""
        return [self._pack([texts]) for texts in batch]

    def _pack(self, batch: Batch) -> Inputs:
        """Return the texts of a batch as one sequence, and their dropout, on the device."""
        arrays = [(texts.token_ids, texts.lengths) for texts in batch]
        joined = DeviceBatch.joined(arrays, self._device)
        share = self._training.dropout
        masks = [
            dropout_masks(self._spec, share, texts.seed, self._device, texts.within)
            for texts in batch
        ]
        return Inputs(joined, joined_masks(masks, joined))

    def _compared(
        self,
        work: StepWork,
        objective: Objective,
        texts_of_batches: Sequence[Batch],
        sides: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, list[list[torch.Tensor]]]:
        """Compare the embeddings of this worker with the candidates of all workers.

        Returns the mean loss of this worker's anchors, and its gradients on the embeddings of each
        batch.
        """
        loss, pulls = pulls_on_embeddings(
            sides,
            objective.candidates(work.granules, self._collectives),
            self._collectives,
            partial(gradients_of_loss, objective.loss),
            torch.cat,
        )
        return loss, per_batch(texts_of_batches, pulls)


class BatchedWork(TorchWork):
    """Embeds one batch after the other; see :mod:`.packing` for batches.

    Attributes:
        keeps_last: Whether to keep the graph of a step's last batch during the comparison, to save
            its second pass. Some libraries gather weights in the order of the first pass: they need
            a backward pass through each graph at once.
        packs_texts: Whether a batch may have several granules, and join texts of several sides.
    """

    keeps_last = False
    packs_texts = True

    def __init__(
        self,
        task: WorkerTask,
        checkpoint: Checkpoint,
        collectives: Collectives,
        everyone: Collectives | None = None,
    ) -> None:
        super().__init__(task, checkpoint, collectives, everyone)
        self._takes_segments = architecture_of(self._spec).packs
        names = [*checkpoint.weights, *checkpoint.frozen.weights]
        enough = default_tokens(
            self._spec.hidden,
            len({layer_of(name) for name in names} - {None}),
            self._training,
            memory_of(self._device),
        )
        if self.sharded:
            # Workers that compute one encoder together embed the same texts at the same time.
            everywhere = (everyone or collectives).all_gather(np.array([enough]))
            enough = int(np.asarray(everywhere).min())
        self._enough = self._training.tokens_per_forward or enough

    @abstractmethod
    def _embeddings(self, packs: Sequence[Inputs]) -> list[torch.Tensor]:
        """Return the embeddings of each pack, [texts, width]."""

    @abstractmethod
    def _token_loss(self, part: Examples) -> torch.Tensor:
        """Return the loss over hidden states of a part of a granule."""

    @abstractmethod
    def _backward(self, loss: torch.Tensor, *, last: bool) -> None:
        """Add the gradients of a share of the step's loss; `last` if the update comes next."""

    def _agreed(self, widths: np.ndarray) -> np.ndarray:
        """Return the width of each side, int [granules, sides], from which batches follow."""
        return widths

    def _loss(self, work: StepWork) -> torch.Tensor:
        return super()._loss(work) if self._token_work is None else self._over_tokens(work)

    def _within(self, work: StepWork, objective: Objective) -> torch.Tensor:
        count, losses = len(work.granules), []
        for granules, batches in self._forwards(work, objective):
            targets = [objective.targets(work.granules[number]) for number in granules]
            last = granules.stop == count
            if len(batches) == 1:
                embedded, sides = self._embed(batches[0]), len(batches[0]) // len(granules)
                of_granules = (embedded[sides * place :][:sides] for place in range(len(granules)))
                found = [
                    objective.loss(of_sides, on_device(of_granule, self._device))
                    for of_sides, of_granule in zip(of_granules, targets, strict=True)
                ]
                self._backward(torch.stack(found).sum() / count, last=last)
            else:
                # The gradients of a whole granule, with one batch of it in memory.
                embedded, kept = self._embedded(batches)
                loss, pulls = gradients_of_loss(objective.loss, embedded, targets[0], 1.0)
                shares = per_batch(batches, [pull / count for pull in pulls])
                self._pull(batches, shares, kept, last=last)
                found = [loss]
            losses += [loss.detach() for loss in found]
        return torch.stack(losses).mean()

    def _across(self, work: StepWork, objective: Objective) -> torch.Tensor:
        """See :class:`TorchWork`; only one batch is in memory.

        Embeds without a graph, takes the loss's gradient on the embeddings (see
        :mod:`.objectives`), then embeds each batch once more and pulls its part of that gradient
        through.
        """
        of_step = [batch for part in self._forwards(work, objective) for batch in part.batches]
        sides, kept = self._embedded(of_step)
        loss, pulls = self._compared(work, objective, of_step, sides)
        self._pull(of_step, pulls, kept, last=True)
        return loss

    def _over_tokens(self, work: StepWork) -> torch.Tensor:
        """Add the gradients of a loss over hidden states, a sum over the parts of each granule."""
        assert self._token_work is not None
        token_work, source = self._token_work, work.source
        widths = np.array([[token_work.width(granule, source)] for granule in work.granules])
        parts = [
            part
            for granule, (width,) in zip(work.granules, self._agreed(widths).tolist(), strict=True)
            for part in token_work.parts(granule, source, work.noise_epoch, width)
        ]
        total = torch.zeros((), device=self._device)
        for number, part in enumerate(parts, 1):
            loss = self._token_loss(part) / len(work.granules)
            self._backward(loss, last=number == len(parts))
            total += loss.detach()
        return total

    def _forwards(self, work: StepWork, objective: Objective) -> Iterator[Forward]:
        granules = self._texts(work, objective)
        widths = self._agreed(np.array([[side.width for side in sides] for sides in granules]))
        granules = [
            [side._replace(reach=width) for side, width in zip(sides, of_sides, strict=True)]
            for sides, of_sides in zip(granules, widths.tolist(), strict=True)
        ]
        enough = self._enough if self.packs_texts else 0
        return forwards(granules, widths, self._training.tokens_per_forward, enough)

    def _embed(self, batch: Batch) -> list[torch.Tensor]:
        """Return the embeddings of each of a batch's texts, of length 1."""
        packs = self._packed(batch)
        inputs = [self._pack([batch[place] for place in places]) for places in packs]
        found: dict[int, torch.Tensor] = {}
        for places, embeddings in zip(packs, self._embeddings(inputs), strict=True):
            sizes = [len(batch[place].lengths) for place in places]
            found |= zip(places, normalize(embeddings, dim=-1).split(sizes), strict=True)
        return [found[place] for place in range(len(batch))]

    def _packed(self, batch: Batch) -> list[list[int]]:
        """Return the positions of texts to pass through the encoder as one sequence of tokens."""
        enough = self._enough
        if by_segment(self._device):
            # One side after the other, if they are large: a CPU's cache then holds more of them.
            enough = min(enough, CPU_STATES // self._spec.hidden)
        # A library draws the noise of all texts from one generator.
        has_own_noise = self._spec.dropout(self._training.dropout) is not None
        if not self.packs_texts or (has_own_noise and not self._takes_segments):
            return [[place] for place in range(len(batch))]
        return packs(batch, enough) if self._takes_segments else packs_by_width(batch, enough)

    def _embedded(
        self, parts: Sequence[Batch]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor] | None]:
        """Return each side's embeddings without a graph, and the last batch's with it, if kept."""
        kept = None
        with torch.no_grad():
            found = [self._embed(batch) for batch in (parts[:-1] if self.keeps_last else parts)]
        if self.keeps_last:
            kept = self._embed(parts[-1])
            found.append([embeddings.detach() for embeddings in kept])
        return [torch.cat(side) for side in by_side(parts, found)], kept

    def _pull(
        self,
        parts: Sequence[Batch],
        pulls: Sequence[Sequence[torch.Tensor]],
        kept: Sequence[torch.Tensor] | None,
        *,
        last: bool,
    ) -> None:
        """Add the gradients of batches.

        `pulls` holds the gradients on each batch's embeddings; `kept` the last batch's embeddings
        with their graph, if kept. With `last` the update comes next.
        """
        todo = list(zip(parts, pulls, strict=True))
        if kept is not None:
            # First, so that its graph leaves the memory before the next one.
            _, of_batch = todo.pop()
            self._backward(pulled_loss(kept, of_batch), last=last and not todo)
        for number, (batch, of_batch) in enumerate(todo, 1):
            loss = pulled_loss(self._embed(batch), of_batch)
            self._backward(loss, last=last and number == len(todo))


class TorchStepper(BatchedWork):
    """Holds the whole state of the trained weights, as plain tensors by name.

    ``backward`` adds the gradients of granule after granule in place. The arguments are those of
    :class:`TorchWork`; its collectives average the gradients.
    """

    sharded = False
    keeps_last = True

    def __init__(
        self,
        task: WorkerTask,
        checkpoint: Checkpoint,
        collectives: Collectives,
        everyone: Collectives | None = None,
    ) -> None:
        super().__init__(task, checkpoint, collectives, everyone)
        place = partial(torch.tensor, device=self._device)
        self._weights = {
            name: place(value, requires_grad=True) for name, value in checkpoint.weights.items()
        }
        self._frozen = {name: place(value) for name, value in checkpoint.frozen.weights.items()}
        self._scale = checkpoint.frozen.scale
        moments = moments_of(checkpoint, averaged=self._training.ema is not None)
        self._moments = {key: place(value) for key, value in moments}
        self._exchange = GradientExchange(self._weights, self._collectives)

    @property
    def exchange_seconds(self) -> float | None:
        """Seconds spent in exchanges; None on a GPU, since it only queues them."""
        return None if self._device.type == "cuda" else self._collectives.seconds

    def gradients(self, work: StepWork, weights: Weights) -> tuple[float, Weights]:
        """Return loss and clipped gradients of this worker's granules at given weights."""
        _assign(self._weights, weights)
        loss, gradients = self._loss(work), self._exchange.gradients()
        norm = total_norm(gradients.values())
        excess = self._excess(norm)
        self.gradient_norm = float(norm)
        return float(loss), {
            name: to_numpy(gradient if excess is None else gradient / excess)
            for name, gradient in gradients.items()
        }

    def load(self, checkpoint: Checkpoint) -> None:
        """Take another state, of the same shape."""
        _assign(self._weights, checkpoint.weights)
        _assign(self._moments, checkpoint.moments)

    def checkpoint(self, step: int) -> Checkpoint:
        """Return the state before a step, as numpy arrays."""
        return Checkpoint(
            step=step,
            spec=self._spec,
            weights={name: to_numpy(value) for name, value in self._weights.items()},
            moments={name: to_numpy(value) for name, value in self._moments.items()},
        )

    def _loss(self, work: StepWork) -> torch.Tensor:
        """See :class:`TorchWork`; the gradients are valid until the next call."""
        self._exchange.begin(self._sides_with_words(work))
        return super()._loss(work)

    def _sides_with_words(self, work: StepWork) -> list[Side] | None:
        """Return the texts of a step if only their words have gradients; None if others may."""
        # Such a loss may replace words. A part may number its words by itself.
        if self._token_work is not None or self._part is not WHOLE:
            return None
        names = self._objectives[work.source].sides
        return [granule.sides[name] for granule in work.granules for name in names]

    def _embeddings(self, packs: Sequence[Inputs]) -> list[torch.Tensor]:
        encoder, checkpointed = self._encoder(), self._training.activation_checkpointing
        return [
            embed_batch(encoder, *pack, activation_checkpointing=checkpointed, sparse_words=True)
            for pack in packs
        ]

    def _token_loss(self, part: Examples) -> torch.Tensor:
        assert self._token_work is not None
        return self._token_work.loss(self._effective(), of_objective(self._weights), part)

    def _backward(self, loss: torch.Tensor, *, last: bool) -> None:
        self._exchange.backward(loss, last=last)

    def _effective(self) -> Weights:
        """Return the encoder's weights, with frozen ones and LoRA's additions."""
        return effective(self._weights, self._frozen, self._scale)

    @property
    def _part(self) -> Part:
        """The part of the encoder in these weights."""
        return WHOLE

    def _encoder(self) -> Encoder:
        return prepare(self._spec, self._effective(), self._training.precision, self._part)

    def _update(self, loss: torch.Tensor, learning_rate: float, number: int) -> torch.Tensor:
        gradients, mean_loss = self._exchange.means(loss)
        norm = self._norm(gradients)
        self._move(gradients, self._excess(norm), learning_rate, number)
        self.gradient_norm = float(norm)
        return mean_loss

    def _norm(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the norm of the whole encoder's gradient."""
        return total_norm(gradients.values())

    def _move(
        self,
        gradients: Mapping[str, torch.Tensor],
        excess: torch.Tensor | None,
        learning_rate: float,
        number: int,
    ) -> None:
        """Update by AdamW, in the fused kernel; it also divides gradients by their excess.

        Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019,
        arXiv:1711.05101. Biases and layer norms do not decay.
        """
        matrices = [name for name, weight in self._weights.items() if weight.ndim > 1]
        vectors = [name for name, weight in self._weights.items() if weight.ndim == 1]
        for names, decay in ((matrices, self._training.weight_decay), (vectors, 0.0)):
            adamw(
                [self._weights[name].detach() for name in names],
                [gradients[name] for name in names],
                [self._moments[f"m/{name}"] for name in names],
                [self._moments[f"v/{name}"] for name in names],
                [],
                # The kernel takes each tensor's number of earlier updates, and adds one.
                list(torch.full([len(names)], number - 1.0, device=self._device).unbind()),
                fused=True,
                grad_scale=excess,
                amsgrad=False,
                beta1=BETA_1,
                beta2=BETA_2,
                lr=learning_rate,
                weight_decay=decay,
                eps=EPSILON,
                maximize=False,
            )
        if self._training.ema is not None:
            torch._foreach_lerp_(
                [self._moments[f"{AVERAGE}/{name}"] for name in self._weights],
                [weight.detach() for weight in self._weights.values()],
                newest_share(self._training.ema, number),
            )


def _assign(tensors: Mapping[str, torch.Tensor], values: Mapping[str, np.ndarray]) -> None:
    for name, value in values.items():
        # Autograd refuses changes in place of a leaf that requires a gradient, unless detached.
        tensors[name].detach().copy_(torch.from_numpy(value))


if TYPE_CHECKING:
    # mypy: the class has what the loops need.
    _for_rounds: StepperFactory[LoadableStepper] = TorchStepper
    _for_gradients: StepperFactory[GradientStepper] = TorchStepper
