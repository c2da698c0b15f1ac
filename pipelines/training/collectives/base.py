"""Collective operations between the workers of a step: the part that differs between engines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol


class Collectives(Protocol):
    """Moves the framework's tensors between the workers of a synchronous run.

    Attributes:
        rank: Number of this worker.
        workers: How many there are.
    """

    rank: int
    workers: int

    def all_reduce_mean(self, tensors: Sequence[Any]) -> list[Any]:
        """The mean of each tensor over the workers; the same result on all of them."""
        ...

    def all_gather(self, tensor: Any) -> Any:
        """The workers' tensors joined along the first axis, in the order of the ranks.

        Of any type of number, which travels as it is. It takes numpy arrays too, and gives then
        what numpy can read.
        """
        ...

    def reduce_scatter(self, tensor: Any) -> Any:
        """The sum of the workers' tensors, of which each worker gets its own part of the rows.

        Args:
            tensor: [workers x rows, ...], exact, whatever gradients are compressed to. Of the sum
                the first rows are rank 0's, and so on: where :meth:`gather` has them from.
        """
        ...


class SingleProcess:
    """The collectives of a single process: nothing to do."""

    rank = 0
    workers = 1

    def all_reduce_mean(self, tensors: Sequence[Any]) -> list[Any]:
        """The tensors themselves."""
        return list(tensors)

    def all_gather(self, tensor: Any) -> Any:
        """The tensor itself."""
        return tensor

    def reduce_scatter(self, tensor: Any) -> Any:
        """The tensor itself."""
        return tensor


class TimedCollectives:
    """Collectives whose time is measured.

    What a worker waits for slower ones inside an operation counts too: it is a cost of
    synchronous training. Operations that only queue work, as a GPU's do, are not timed by this.

    Args:
        collectives: What moves the tensors, operation by operation.

    Attributes:
        seconds: In all operations so far.
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

    def all_gather(self, tensor: Any) -> Any:
        """See :meth:`Collectives.all_gather`."""
        with self._clock():
            return self._collectives.all_gather(tensor)

    def reduce_scatter(self, tensor: Any) -> Any:
        """See :meth:`Collectives.reduce_scatter`."""
        with self._clock():
            return self._collectives.reduce_scatter(tensor)

    @contextmanager
    def _clock(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began
