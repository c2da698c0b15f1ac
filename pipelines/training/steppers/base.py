"""The interface between step loops and frameworks, and the feeds and texts of granules.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from pipelines.lanes.files import Granule
from pipelines.lanes.plan import StepPlan, noise_seed
from pipelines.models.spec import WHOLE_NOISE, NoisePlace
from pipelines.models.weights import Weights
from pipelines.runs.checkpoint import AVERAGE, Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.settings import TrainingSettings
from pipelines.training.collectives.base import Collectives

Item = TypeVar("Item")


@dataclass(frozen=True)
class StepWork:
    """A worker's part of a step.

    `granules` are this worker's, all of one source; `source` is its number. `visit` counts earlier
    passes over the source; None if it equals the epoch.
    """

    index: int
    epoch: int
    granules: list[Granule]
    source: int = 0
    visit: int | None = None

    @classmethod
    def of(cls, step: StepPlan, granules: list[Granule]) -> StepWork:
        """Return the work of a planned step."""
        return cls(step.index, step.epoch, granules, step.source, step.visit)

    @property
    def noise_epoch(self) -> int:
        """A seed of the noise, beside the granule's, for fresh noise on each visit."""
        return self.epoch if self.visit is None else self.visit


def lane_feed(task: WorkerTask) -> Iterator[StepWork]:
    """Read the worker's granules from the lanes, each step's during the step before.

    Reading begins at once, while the encoder is loaded, and so does fetching from an object store.
    """
    reader = task.run.lane_reader()
    steps = reader.ahead(task.steps())
    return one_ahead(
        StepWork.of(step, [reader.granule(address) for address in addresses])
        for step, addresses in steps
    )


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Pass items on while a thread makes the next one; errors come in their item's place."""
    pool = ThreadPoolExecutor(1, "feed")
    return _passed_on(pool, items, pool.submit(next, items, None))


def _passed_on(
    pool: ThreadPoolExecutor, items: Iterator[Item], coming: Future[Item | None]
) -> Iterator[Item]:
    try:
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def memory_feed(task: WorkerTask) -> Iterator[StepWork]:
    """Read all of the worker's granules into memory before the first step.

    The memory holds each once, for all epochs. For small corpora, and as the baseline of
    benchmarks: a feed without any cost.
    """
    reader = task.run.lane_reader()
    wanted = {address for _, addresses in task.steps() for address in addresses}
    # Lane by lane, since the order of the steps would jump between lanes.
    in_order = sorted(wanted, key=lambda address: (address.lane, address.row))
    one_by_one = reader.ahead((address, (address,)) for address in in_order)
    kept = {address: reader.granule(address) for address, _ in one_by_one}
    for step, addresses in task.steps():
        yield StepWork.of(step, [kept[address] for address in addresses])


Feed = Callable[[WorkerTask], Iterator[StepWork]]

FILE_FEEDS: dict[str, Feed] = {"lanes": lane_feed, "memory": memory_feed}


class Stepper(Protocol):
    """Weights, gradients and the optimiser, for the synchronous loop."""

    @property
    def sharded(self) -> bool:
        """Whether a worker holds only a part of the state.

        The workers then make a checkpoint together: reading an array gathers it, so all read in the
        same order; see :meth:`pipelines.runs.checkpoint.Checkpoint.pass_through`.
        """
        ...

    @property
    def precision(self) -> str:
        """The type of the matrix products, ``fp32`` or ``bf16``."""
        ...

    @property
    def exchange_seconds(self) -> float | None:
        """Seconds of its steps in collectives so far, including the wait for others.

        None if inseparable from arithmetic: a library moves parameters during its computation, or a
        GPU only queues the operations.
        """
        ...

    @property
    def gradient_norm(self) -> float | None:
        """The norm of the last step's gradient over all workers and weights, before clipping."""
        ...

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Make one update from this worker's granules; return the loss over all workers."""
        ...

    def checkpoint(self, step: int) -> Checkpoint:
        """Return the state before a step, as numpy arrays; of all workers if ``sharded``."""
        ...


class LoadableStepper(Stepper, Protocol):
    """A stepper with a replaceable state, for the loop of averaging rounds."""

    def load(self, checkpoint: Checkpoint) -> None:
        """Take another state, of the same shape."""
        ...


class GradientStepper(Protocol):
    """A stepper for weights from a server, in the asynchronous loop."""

    @property
    def precision(self) -> str:
        """The type of the matrix products, ``fp32`` or ``bf16``."""
        ...

    @property
    def gradient_norm(self) -> float | None:
        """The norm of the last gradient, before clipping."""
        ...

    def gradients(self, work: StepWork, weights: Weights) -> tuple[float, Weights]:
        """Return loss and clipped gradients of this worker's granules at given weights.

        The stepper keeps these weights; its optimiser stays unused.
        """
        ...


Stepper_co = TypeVar("Stepper_co", covariant=True)


class StepperFactory(Protocol[Stepper_co]):
    """A class of steppers."""

    def __call__(
        self, task: WorkerTask, checkpoint: Checkpoint, collectives: Collectives
    ) -> Stepper_co:
        """Make the framework's stepper from a checkpoint."""
        ...

    def prepare_process(self, settings: TrainingSettings) -> None:
        """Prepare this process, before the framework computes anything in it."""
        ...


def moments_of(checkpoint: Checkpoint, *, averaged: bool) -> Iterator[tuple[str, np.ndarray]]:
    """Yield an optimiser's moments by key; zeros for a start.

    With `averaged`, yield the moving average of the weights too.
    """
    for kind in ("m", "v"):
        for name, weight in checkpoint.weights.items():
            key = f"{kind}/{name}"
            yield key, checkpoint.moments.get(key, np.zeros_like(weight))
    if averaged:
        for name, average in checkpoint.averages.items():
            yield f"{AVERAGE}/{name}", average


class Texts(NamedTuple):
    """A side of a granule, or a part of one.

    Attributes:
        side: Position of the side among the loss's inputs.
        token_ids: int32 [texts, width].
        lengths: int32 [texts].
        seed: Seed of the noise on the whole side.
        within: Place of a part in its side, which has the noise.
        reach: A width in tokens that decides about packing, alike on all workers; 0 for their own.
    """

    side: int
    token_ids: np.ndarray
    lengths: np.ndarray
    seed: tuple[int, ...]
    within: NoisePlace = WHOLE_NOISE
    reach: int = 0

    @property
    def width(self) -> int:
        """The tokens of the longest text."""
        return int(self.lengths.max())

    @property
    def room(self) -> int:
        """The padded tokens."""
        return len(self.lengths) * (self.reach or self.width)


Batch = list[Texts]
"""Texts to embed together, with their graphs in memory."""


def granule_texts(granule: Granule, sides: Sequence[str], seed: int, epoch: int) -> list[Texts]:
    """Return the named sides of a granule, with seeds of their noise."""
    return [
        Texts(
            number,
            granule.sides[name].token_ids,
            granule.sides[name].lengths,
            noise_seed(seed, epoch, granule.number, number),
        )
        for number, name in enumerate(sides)
    ]


def by_side(texts_of_batches: Sequence[Batch], values: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Regroup values by side, in order; a batch has one value for each of its :class:`Texts`."""
    sides = 1 + max(texts.side for batch in texts_of_batches for texts in batch)
    regrouped: list[list[Any]] = [[] for _ in range(sides)]
    for batch, of_batch in zip(texts_of_batches, values, strict=True):
        for texts, value in zip(batch, of_batch, strict=True):
            regrouped[texts.side].append(value)
    return regrouped


def per_batch(texts_of_batches: Sequence[Batch], values: Sequence[Any]) -> list[list[Any]]:
    """Return the rows of each batch, given tensors of all rows of each side, in order."""
    sizes = [[len(texts.lengths) for texts in batch] for batch in texts_of_batches]
    of_sides = by_side(texts_of_batches, sizes)
    # Batches take their rows in order, as :func:`by_side` has joined them.
    parts = [iter(value.split(of_side)) for value, of_side in zip(values, of_sides, strict=True)]
    return [[next(parts[texts.side]) for texts in batch] for batch in texts_of_batches]
