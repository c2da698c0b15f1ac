"""What the collectives of both frameworks share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any


def means_peer_lost(error: Exception) -> bool:
    """Whether Horovod gave up because of another rank: its own error, or TensorFlow's for it."""
    name = type(error).__name__
    return name == "HorovodInternalError" or (name == "UnknownError" and "Horovod" in str(error))


class HorovodCollectives(ABC):
    """Starts Horovod in this process; see :class:`pipelines.training.collectives.base.Collectives`.

    All gradients of a step travel as one vector: the order of the sums is then the same each
    time, and each collective operation costs time.

    Args:
        library: ``horovod.torch`` or ``horovod.tensorflow``, which is started.
        compression: What gradients travel as, ``training.compression``.
    """

    def __init__(self, library: Any, compression: str) -> None:
        library.init()
        self.rank: int = library.rank()
        self.workers: int = library.size()
        self._library = library
        self._exact = library.Compression.none
        self._compression = getattr(library.Compression, compression)

    def all_reduce_mean(self, tensors: Sequence[Any]) -> list[Any]:
        """The mean of each tensor over the workers; in TensorFlow, while a graph is traced."""
        if self._compression is self._exact:
            return self._mean("all", tensors, self._exact)
        # The loss is a single number that people read: it is not rounded.
        is_number = [len(tensor.shape) == 0 for tensor in tensors]
        groups = {}
        for name, numbers, compression in (
            ("gradients", False, self._compression),
            ("numbers", True, self._exact),
        ):
            own = [one for one, is_one in zip(tensors, is_number, strict=True) if is_one == numbers]
            groups[numbers] = iter(self._mean(name, own, compression) if own else [])
        return [next(groups[is_one]) for is_one in is_number]

    @abstractmethod
    def all_gather(self, tensor: Any) -> Any:
        """The workers' tensors joined along the first axis, in the order of the ranks."""

    def reduce_scatter(self, tensor: Any) -> Any:
        """See :meth:`pipelines.training.collectives.base.Collectives.reduce_scatter`."""
        return self._library.reducescatter(tensor, op=self._library.Sum, name="reduce_scatter")

    def leave(self) -> None:
        """Ends Horovod's threads and connections; all workers call it."""
        self._library.shutdown()

    @abstractmethod
    def _mean(self, name: str, tensors: Sequence[Any], compression: Any) -> list[Any]:
        """The means, by one collective operation of a name, which is the same on all workers."""
