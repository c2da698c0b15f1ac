"""What differs between engines inside a step: how numbers cross from worker to worker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol


class Exchange(Protocol):
    """Moves the framework's tensors between the workers of a synchronous run.

    Attributes:
        rank: Number of this worker.
        workers: How many there are.
    """

    rank: int
    workers: int

    def mean(self, tensors: Sequence[Any]) -> list[Any]:
        """The mean of each tensor over the workers; the same result on all of them."""
        ...

    def gather(self, tensor: Any) -> Any:
        """The workers' tensors joined along the first axis, in the order of the ranks.

        Outside of a step it takes numpy arrays too, and gives what numpy can read.
        """
        ...


class Alone:
    """The exchange of a single process: nothing to do."""

    rank = 0
    workers = 1

    def mean(self, tensors: Sequence[Any]) -> list[Any]:
        """The tensors themselves."""
        return list(tensors)

    def gather(self, tensor: Any) -> Any:
        """The tensor itself."""
        return tensor


class Timed:
    """An exchange with a clock.

    What a worker waits for slower ones inside of an operation counts too: it is the price of
    working in step. Operations that only queue work, as a GPU's do, are not timed by this.

    Args:
        exchange: What moves the tensors, operation by operation.

    Attributes:
        seconds: In all operations so far.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.rank = exchange.rank
        self.workers = exchange.workers
        self.seconds = 0.0

    def mean(self, tensors: Sequence[Any]) -> list[Any]:
        """See :meth:`Exchange.mean`."""
        began = time.perf_counter()
        means = self._exchange.mean(tensors)
        self.seconds += time.perf_counter() - began
        return means

    def gather(self, tensor: Any) -> Any:
        """See :meth:`Exchange.gather`."""
        began = time.perf_counter()
        joined = self._exchange.gather(tensor)
        self.seconds += time.perf_counter() - began
        return joined
