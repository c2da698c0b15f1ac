"""PyTorch's side of training: gradients of a granule, and AdamW. Runs on an executor.

The gradient of the word embedding in PyTorch, of which a step touches few rows.

The embedding is half of a small encoder, and most of one with a vocabulary of many languages. The
rows of words that are in no text of a step are zero on every worker, so they need not travel, nor
be made zero again.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import normalize
from torch.optim.adamw import adamw

from pipelines.errors import InputError
from pipelines.lanes.files import Granule
from pipelines.losses.candidates import Picks, Targets
from pipelines.models.adaptation import effective, of_objective
from pipelines.models.frameworks.torch import (
    Batch as DeviceBatch,
)
from pipelines.models.frameworks.torch import (
    Encoder,
    bound_kernel_caches,
    configure_threads,
    dropout_masks,
    embed,
    has_bf16,
    prepare,
    to_device,
)
from pipelines.models.frameworks.torch_module import Inputs
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import WORDS, Weights
from pipelines.runs.checkpoint import AVERAGE, Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.settings import TrainingSettings
from pipelines.training.collectives.base import Collectives, TimedCollectives
from pipelines.training.devices import with_precision, worker_device
from pipelines.training.steppers.adamw import BETA_1, BETA_2, EPSILON, newest_share
from pipelines.training.steppers.base import (
    Batch,
    GradientStepper,
    LoadableStepper,
    StepperFactory,
    StepWork,
    Texts,
    batches,
    by_side,
    granule_texts,
    parts_needed,
    per_batch,
)
from pipelines.training.steppers.objectives import Objective, objectives, pulls_on_embeddings
from pipelines.training.steppers.torch_reconstruction import Rewriting, rewriting


def device_inputs(
    sides: Sequence[Texts], spec: EncoderSpec, training: TrainingSettings, device: torch.device
) -> list[Inputs]:
    """The sides of a micro-batch, and their dropout, on the device."""
    return [
        Inputs(
            DeviceBatch.of(side.token_ids, side.lengths, device),
            dropout_masks(spec, training.dropout, side.seed, device),
        )
        for side in sides
    ]


def on_device(targets: Targets, device: torch.device) -> Any:
    """What a loss compares with, as tensors."""
    if isinstance(targets, Picks):
        guide = [to_device(vectors, device) for vectors in targets.guide]
        return Picks(to_device(targets.own, device), to_device(targets.excluded, device), guide)
    if isinstance(targets, list):
        return [to_device(vectors, device) for vectors in targets]
    # A copy: the array may be a part of a lane file, which a tensor could write to.
    return to_device(np.array(targets), device)


def gradients_of_loss(
    loss_of: Callable[[Sequence[torch.Tensor], Any], torch.Tensor],
    sides: Sequence[torch.Tensor],
    targets: Targets,
    share: float,
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """A loss times a share, and its gradients; see :data:`.objectives.GradientsOf`."""
    leaves = [side.detach().requires_grad_() for side in sides]
    loss = loss_of(leaves, on_device(targets, sides[0].device)) * share
    return loss.detach(), torch.autograd.grad(loss, leaves)


def pulled_loss(sides: Sequence[torch.Tensor], pulls: Sequence[torch.Tensor]) -> torch.Tensor:
    """A number whose gradients on the embeddings of sides are given ones."""
    return torch.stack([(side * pull).sum() for side, pull in zip(sides, pulls, strict=True)]).sum()


class WordGradient:
    """A buffer that the gradient is added up in, and which rows of it are not zero.

    Args:
        words: The word embedding; sparse gradients of it are what makes rows known. If a gradient
            of it is dense, all rows count as touched.
    """

    def __init__(self, words: torch.Tensor) -> None:
        self._words = words
        self._buffer = torch.zeros_like(words)
        self._touched: list[torch.Tensor] = []
        self._are_all = False
        words.register_hook(self._note)

    def begin(self) -> None:
        """Makes it zero, and has the gradients from now on added to it."""
        if self._are_all:
            self._buffer.zero_()
        for rows in self._touched:
            self._buffer.index_fill_(0, rows, 0.0)
        self._touched, self._are_all = [], False
        self._words.grad = self._buffer

    def rows(self, collectives: Collectives) -> torch.Tensor:
        """The rows that any worker has touched, int64 and in order; all workers call it."""
        own = torch.full((len(self._buffer),), self._are_all, device=self._buffer.device)
        for rows in self._touched:
            own[rows] = True
        # One bit each: of 250,000 words 31 kB, which is less than as many ids as a step has.
        bits = np.packbits(own.cpu().numpy())[None]
        everywhere = np.bitwise_or.reduce(np.asarray(collectives.all_gather(bits)), axis=0)
        touched = np.flatnonzero(np.unpackbits(everywhere, count=len(own)))
        return torch.from_numpy(touched).to(self._buffer.device)

    def at(self, rows: torch.Tensor) -> torch.Tensor:
        """A copy of some rows."""
        return self._buffer.index_select(0, rows)

    def put(self, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Replaces some rows, beyond which all are zero; returns the whole gradient."""
        self._touched = [rows]
        return self._buffer.index_copy_(0, rows, values)

    def _note(self, gradient: torch.Tensor) -> None:
        """Called with each gradient before it is added."""
        if gradient.is_sparse:
            self._touched.append(gradient._indices()[0])
        else:
            self._are_all = True


_ALIGNMENT = 64
_BYTES = 4


class DiskTensors:
    """fp32 tensors that lie one after the other in a file, which is mapped into memory.

    The file has no name from the beginning, so that it goes with the process, however that ends. It
    is in the folder that ``tempfile`` takes: that of ``TMPDIR``, or ``/tmp``.

    Args:
        sizes: Numbers of each tensor that :meth:`zeros` will be asked for, in any order.

    Raises:
        InputError: The disk has no room for it.
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        length = sum(map(_room, sizes))
        self._taken = 0
        with tempfile.TemporaryFile() as file:
            try:
                # A file with holes would end the process where the disk is full.
                os.posix_fallocate(file.fileno(), 0, max(length, 1))
            except OSError as error:
                raise InputError(
                    "training.offload",
                    f"{tempfile.gettempdir()} has no room for {length / 1e9:.1f} GB of moments"
                    f" ({error.strerror})",
                    "set TMPDIR of the executors to a larger disk, or take more workers",
                ) from error
            self._mapped = mmap.mmap(file.fileno(), max(length, 1))

    def zeros(self, size: int) -> torch.Tensor:
        """A flat tensor of its own place in the file."""
        if not size:
            return torch.zeros(0)
        begin, self._taken = self._taken, self._taken + _room(size)
        return torch.frombuffer(self._mapped, dtype=torch.float32, count=size, offset=begin)

    def let_go(self) -> None:
        """Takes what has been touched out of this process's memory; the system writes it out."""
        self._mapped.madvise(mmap.MADV_DONTNEED)


def _room(size: int) -> int:
    """Bytes of a tensor's place."""
    return -(-size * _BYTES // _ALIGNMENT) * _ALIGNMENT


class TorchRun:
    """What all steppers of PyTorch hold of a run: its losses, and how they are computed here.

    Args:
        checkpoint: The state to begin with.
        collectives: Between the workers.
        everyone: Between all workers, where `collectives` is between some of them.
    """

    def __init__(
        self,
        task: WorkerTask,
        checkpoint: Checkpoint,
        collectives: Collectives,
        everyone: Collectives | None = None,
    ) -> None:
        config = task.run.config
        self._spec = checkpoint.spec
        self._collectives = collectives
        self._objectives = objectives(task.run, "torch")
        self._device = worker_device()
        bf16 = has_bf16(self._device)
        self._training = with_precision(config.training, everyone or collectives, has_bf16=bf16)
        self._rewriting = rewriting(task.run, self._spec, self._training)
        self.precision = self._training.precision
        self.gradient_norm: float | None = None

    @staticmethod
    def prepare_process(settings: TrainingSettings) -> None:
        """Gives PyTorch its threads."""
        bound_kernel_caches()
        configure_threads(settings.threads)


class TorchStepper(TorchRun):
    """Makes optimiser updates; see :mod:`pipelines.training.steppers.base`.

    Weights and moments are plain tensors by name, of what is trained alone. Gradients come from
    ``backward``, which adds granule to granule in place.

    Args:
        checkpoint: The state to begin with.
        collectives: How gradients are averaged between workers.
        everyone: See :class:`TorchRun`.
    """

    sharded = False

    def __init__(
        self,
        task: WorkerTask,
        checkpoint: Checkpoint,
        collectives: Collectives,
        everyone: Collectives | None = None,
    ) -> None:
        super().__init__(task, checkpoint, collectives, everyone)
        self._timed = TimedCollectives(collectives)
        self._weights = {
            name: torch.tensor(value, device=self._device, requires_grad=True)
            for name, value in checkpoint.weights.items()
        }
        self._frozen = {
            name: torch.tensor(value, device=self._device)
            for name, value in checkpoint.frozen.weights.items()
        }
        self._scale = checkpoint.frozen.scale
        self._moments = {
            f"{kind}/{name}": torch.tensor(
                checkpoint.moments.get(f"{kind}/{name}", np.zeros_like(value)), device=self._device
            )
            for kind in ("m", "v")
            for name, value in checkpoint.weights.items()
        }
        if self._training.ema is not None:
            self._moments |= {
                f"{AVERAGE}/{name}": torch.tensor(value, device=self._device)
                for name, value in checkpoint.averages.items()
            }
        words = self._weights.get(WORDS)
        self._word_gradient = None if words is None else WordGradient(words)
        self._embed = partial(
            embed,
            dropout=self._training.dropout,
            activation_checkpointing=self._training.activation_checkpointing,
            sparse_words=True,
        )

    @property
    def exchange_seconds(self) -> float | None:
        """Seconds in the exchange so far; None on a GPU, which only queues what it is given."""
        return None if self._device.type == "cuda" else self._timed.seconds

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Makes one update from this worker's granules; returns the loss over all workers."""
        loss, gradients = self._loss_and_gradients(work)
        means, mean_loss = self._means(gradients, loss)
        norm = self._norm(means)
        self._update(means, self._excess(norm), learning_rate, work.index + 1)
        self.gradient_norm = float(norm)
        return float(mean_loss)

    def gradients(self, work: StepWork, weights: Weights) -> tuple[float, Weights]:
        """Loss and clipped gradients of this worker's granules at given weights."""
        _assign(self._weights, weights)
        loss, gradients = self._loss_and_gradients(work)
        norm = total_norm(gradients.values())
        excess = self._excess(norm)
        self.gradient_norm = float(norm)
        return float(loss), {
            name: to_numpy(gradient if excess is None else gradient / excess)
            for name, gradient in gradients.items()
        }

    def load(self, checkpoint: Checkpoint) -> None:
        """Takes another state, of the same shape."""
        _assign(self._weights, checkpoint.weights)
        _assign(self._moments, checkpoint.moments)

    def checkpoint(self, step: int) -> Checkpoint:
        """The state before a step, as numpy arrays."""
        return Checkpoint(
            step=step,
            spec=self._spec,
            weights={name: to_numpy(value) for name, value in self._weights.items()},
            moments={name: to_numpy(value) for name, value in self._moments.items()},
        )

    def _loss_and_gradients(self, work: StepWork) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The mean loss, and its gradients; they are valid until the next call."""
        for weight in self._weights.values():
            weight.grad = None
        if self._word_gradient is not None:
            self._word_gradient.begin()
        objective = self._objectives[work.source]
        if self._rewriting is not None:
            loss = self._rewritten(work, self._rewriting)
        elif objective.across_granules:
            loss = self._across(work, objective)
        else:
            loss = self._within(work, objective)
        return loss, {name: weight.grad for name, weight in self._weights.items()}

    def _means(
        self, gradients: Mapping[str, torch.Tensor], loss: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Gradients and loss, averaged over the workers.

        Of the words' gradient those rows travel that some worker has touched.
        """
        words = self._word_gradient if self._timed.workers > 1 else None
        sent = dict(gradients)
        if words is not None:
            rows = words.rows(self._timed)
            sent[WORDS] = words.at(rows)
        *averaged, mean_loss = self._timed.all_reduce_mean([*sent.values(), loss])
        means = dict(zip(sent, averaged, strict=True))
        if words is not None:
            means[WORDS] = words.put(rows, means[WORDS])
        return means, mean_loss

    def _within(self, work: StepWork, objective: Objective) -> torch.Tensor:
        """Adds the gradients with each granule's own negatives, averaged over the granules."""
        losses = []
        for granule in work.granules:
            targets = objective.targets(granule)
            some = self._batches(granule, objective, work.noise_epoch)
            if len(some) == 1:
                loss = objective.loss(self._embed_batch(some[0]), on_device(targets, self._device))
                (loss / len(work.granules)).backward()
                losses.append(loss.detach())
            else:
                losses.append(self._in_parts(some, objective, targets, len(work.granules)))
        return torch.stack(losses).mean()

    def _rewritten(self, work: StepWork, rewriting: Rewriting) -> torch.Tensor:
        """Adds the gradients of an objective that has texts written out again.

        Each is a sum over texts, so those of a granule's parts are added up.
        """
        total = torch.zeros((), device=self._device)
        of_granules = (
            rewriting.parts(granule, work.noise_epoch, rewriting.parts_needed(granule))
            for granule in work.granules
        )
        for part in chain.from_iterable(of_granules):
            encoder = effective(self._weights, self._frozen, self._scale)
            loss = rewriting.loss(encoder, of_objective(self._weights), part) / len(work.granules)
            loss.backward()
            total += loss.detach()
        return total

    def _in_parts(
        self, some: Sequence[Batch], objective: Objective, targets: Targets, granules: int
    ) -> torch.Tensor:
        """Adds the gradients of a granule, one batch of it in memory; returns its loss."""
        own, with_graph = self._embedded(some)
        loss, pulls = gradients_of_loss(objective.loss, own, targets, 1.0)
        self._pull(some, [pull / granules for pull in pulls], with_graph)
        return loss

    def _across(self, work: StepWork, objective: Objective) -> torch.Tensor:
        """Adds the gradients with the negatives of the whole step, one batch in memory.

        Embeddings without a graph; the loss's gradient on them, see :mod:`.objectives`; then
        each batch once more, pulling its part of that gradient through.
        """
        candidates = objective.candidates(work.granules, self._timed)
        some = [
            one
            for part in work.granules
            for one in self._batches(part, objective, work.noise_epoch)
        ]
        own, with_graph = self._embedded(some)
        gradients_of = partial(gradients_of_loss, objective.loss)
        loss, pulls = pulls_on_embeddings(own, candidates, self._timed, gradients_of, torch.cat)
        self._pull(some, pulls, with_graph)
        return loss

    def _embedded(self, some: Sequence[Batch]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The embeddings of each side without a graph, and those of the last batch with its graph.

        The last batch keeps it, which spares that one the second pass.
        """
        *earlier, last = some
        with torch.no_grad():
            parts = [self._embed_batch(batch) for batch in earlier]
        with_graph = self._embed_batch(last)
        parts.append([embeddings.detach() for embeddings in with_graph])
        sides = by_side(some, parts)
        return [torch.cat(side) for side in sides], with_graph

    def _pull(
        self,
        some: Sequence[Batch],
        pulls: Sequence[torch.Tensor],
        with_graph: Sequence[torch.Tensor],
    ) -> None:
        """Adds the gradients of batches, given those on the embeddings of each side.

        Args:
            with_graph: The embeddings of the last batch.
        """
        *earlier, last = per_batch(some, pulls)
        torch.autograd.backward(with_graph, last)
        for batch, own in zip(some[:-1], earlier, strict=True):
            torch.autograd.backward(self._embed_batch(batch), own)

    def _batches(self, granule: Granule, objective: Objective, epoch: int) -> list[Batch]:
        texts = granule_texts(granule, objective.sides, self._training.seed, epoch)
        most = self._training.tokens_per_micro_batch
        return batches(texts, [parts_needed(side, most) for side in texts])

    def _embed_batch(self, batch: Batch) -> list[torch.Tensor]:
        """Of length 1. Side by side: what a CPU computes then stays in its cache more often."""
        encoder = self._encoder()
        return [
            normalize(self._embed(encoder, one.token_ids, one.lengths, seed=one.seed), dim=-1)
            for one in batch
        ]

    def _encoder(self) -> Encoder:
        weights = effective(self._weights, self._frozen, self._scale)
        return prepare(self._spec, weights, self._training.precision)

    def _norm(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The norm of the whole encoder's gradient."""
        return total_norm(gradients.values())

    def _excess(self, norm: torch.Tensor) -> torch.Tensor | None:
        """What gradients of a norm are divided by to be clipped; None if they never are."""
        clip = self._training.clip_norm
        return (norm / clip).clamp(min=1.0) if clip else None

    def _update(
        self,
        gradients: Mapping[str, torch.Tensor],
        excess: torch.Tensor | None,
        learning_rate: float,
        number: int,
    ) -> None:
        """AdamW, in the fused kernel, which divides gradients by their excess too.

        Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019,
        arXiv:1711.05101. Biases and layer norms are not decayed.
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
                # Of each tensor, how many updates came before.
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


def total_norm(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """The norm of all numbers of some gradients."""
    norm: torch.Tensor = torch.nn.utils.get_total_norm(list(gradients))
    return norm


def _assign(tensors: Mapping[str, torch.Tensor], values: Mapping[str, np.ndarray]) -> None:
    for name, value in values.items():
        tensors[name].detach().copy_(torch.from_numpy(value))


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy in the host's memory."""
    array: np.ndarray = tensor.detach().to("cpu", copy=True).numpy()
    return array


if TYPE_CHECKING:
    # mypy: the class has what the loops need.
    _for_rounds: StepperFactory[LoadableStepper] = TorchStepper
    _for_gradients: StepperFactory[GradientStepper] = TorchStepper
