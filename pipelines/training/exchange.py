"""What differs between engines inside a step: how numbers cross from worker to worker."""

from __future__ import annotations

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
