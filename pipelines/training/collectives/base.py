"""Collective operations between the workers of a step: the engine-specific part.

Also compares the workers' states after the first step. A worker without averaged gradients trains
alone, and its loss falls all the same. Runs on executors.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np

from pipelines.runs.checkpoint import Checkpoint


class Collectives(Protocol):
    """Moves the framework's tensors between the workers of a synchronous run."""

    rank: int
    workers: int

    def all_reduce_mean(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the mean of each tensor over the workers; the same result on all of them."""
        ...

    def begin_mean(self, tensors: Sequence[Any]) -> Callable[[], list[Any]]:
        """Begin :meth:`all_reduce_mean`; the returned function waits for the result.

        Until then the tensors must not change. All workers begin their exchanges in one order.
        Libraries without asynchronous exchanges make all of it in the wait.
        """
        return partial(self.all_reduce_mean, tensors)

    def all_gather(self, tensor: Any) -> Any:
        """Return the workers' tensors joined along the first axis, in the order of the ranks.

        Any numeric type travels unchanged. Numpy arrays work too; numpy can read the result.
        """
        ...

    def begin_gather(self, tensor: Any) -> Callable[[], Any]:
        """Begin :meth:`all_gather`; see :meth:`begin_mean`."""
        return partial(self.all_gather, tensor)

    def reduce_scatter(self, tensor: Any) -> Any:
        """Return this worker's rows of the sum of the workers' tensors [workers x rows, ...].

        The sum is exact, also with compressed gradients. Its first rows go to rank 0, and so on, in
        the order of :meth:`all_gather`.
        """
        ...


class SingleProcess(Collectives):
    """The collectives of a single process: nothing to do."""

    rank = 0
    workers = 1

    def all_reduce_mean(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the tensors themselves."""
        return list(tensors)

    def all_gather(self, tensor: Any) -> Any:
        """Return the tensor itself."""
        return tensor

    def reduce_scatter(self, tensor: Any) -> Any:
        """Return the tensor itself."""
        return tensor


class TimedCollectives(Collectives):
    """Collectives with a clock, in `seconds`.

    The wait for slower workers inside an operation counts too: it is a cost of synchronous
    training. The clock misses queued work, as on a GPU, and the part of an exchange that passes
    between its beginning and the wait for it.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self.rank = collectives.rank
        self.workers = collectives.workers
        self.seconds = 0.0

    def all_reduce_mean(self, tensors: Sequence[Any]) -> list[Any]:
        """See :meth:`Collectives.all_reduce_mean`."""
        with self._clock():
            return self._collectives.all_reduce_mean(tensors)

    def begin_mean(self, tensors: Sequence[Any]) -> Callable[[], list[Any]]:
        """See :meth:`Collectives.begin_mean`."""
        with self._clock():
            return self._timed(self._collectives.begin_mean(tensors))

    def all_gather(self, tensor: Any) -> Any:
        """See :meth:`Collectives.all_gather`."""
        with self._clock():
            return self._collectives.all_gather(tensor)

    def begin_gather(self, tensor: Any) -> Callable[[], Any]:
        """See :meth:`Collectives.begin_gather`."""
        with self._clock():
            return self._timed(self._collectives.begin_gather(tensor))

    def reduce_scatter(self, tensor: Any) -> Any:
        """See :meth:`Collectives.reduce_scatter`."""
        with self._clock():
            return self._collectives.reduce_scatter(tensor)

    def _timed(self, wait: Callable[[], Any]) -> Callable[[], Any]:
        def timed() -> Any:
            with self._clock():
                return wait()

        return timed

    @contextmanager
    def _clock(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began


TOLERANCE = 1e-3
"""Relative to an array's norm. Different processors round differently, by far less; gradients of
different texts differ by about their norm."""


def check_agreement(checkpoint: Checkpoint, collectives: Collectives, among: str = "ranks") -> None:
    """Compare weights and moments by two numbers of each, after a step; all workers call it.

    The first moments hold the gradients of the step. So they differ even if a small learning rate
    has hardly changed the weights. `among` names the ranks in errors, if they are not the run's.

    Raises:
        FloatingPointError: A worker's state has infinity or NaN, so a comparison is impossible.
        RuntimeError: They differ; names the ranks and the first different array.
    """
    arrays = {**checkpoint.weights, **checkpoint.moments}
    numbers = np.array([[_numbers(array) for array in arrays.values()]])
    # [workers, arrays, 2]
    everywhere = np.asarray(collectives.all_gather(numbers))
    finite = np.isfinite(everywhere).all(axis=(0, 2))
    if not finite.all():
        name = list(arrays)[int(np.flatnonzero(~finite)[0])]
        raise FloatingPointError(
            f"after step {checkpoint.step} {name} holds infinity or NaN."
            " Lower training.learning_rate."
        )
    allowed = TOLERANCE * everywhere[:1, :, 1:]
    agree = (np.abs(everywhere - everywhere[:1]) <= allowed).all(axis=2)
    if agree.all():
        return
    ranks = np.flatnonzero(~agree.all(axis=1)).tolist()
    name = list(arrays)[int(np.flatnonzero(~agree.all(axis=0))[0])]
    raise RuntimeError(
        f"after step {checkpoint.step} the state of {among} {ranks} differs from that of 0, first"
        f" in {name}. The workers did not exchange their gradients."
    )


def _numbers(array: np.ndarray) -> tuple[float, float]:
    """Return sum and norm."""
    # Squares of second moments leave the range of fp32.
    flat = array.reshape(-1).astype(np.float64)
    # Infinities of both signs add up to NaN, with a warning of numpy.
    with np.errstate(invalid="ignore"):
        return float(flat.sum()), math.sqrt(float(np.dot(flat, flat)))
