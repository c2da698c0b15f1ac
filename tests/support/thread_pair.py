"""Two workers of one process, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pipelines.training.collectives.base import Collectives


class Meeting:
    """Where they exchange; counts what they average.

    Attributes:
        averaged: Shapes of the tensors of each average.
    """

    def __init__(self) -> None:
        self._parts = {}
        self._barrier = threading.Barrier(2, timeout=60)
        self.averaged = []

    def everybodys(self, rank: int, value):
        """What both have brought, in the order of their ranks."""
        self._parts[rank] = value
        self._barrier.wait()
        parts = [self._parts[0], self._parts[1]]
        self._barrier.wait()
        return parts


class OneOfTwo(Collectives):
    """The collectives of one of them."""

    workers = 2

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank = rank
        self._meeting = meeting

    def all_reduce_mean(self, tensors):
        own = [tensor.clone() for tensor in tensors]
        one, other = self._meeting.everybodys(self.rank, own)
        if self.rank == 0:
            self._meeting.averaged.append([tuple(tensor.shape) for tensor in own])
        return [(a + b).div_(2) for a, b in zip(one, other, strict=True)]

    def all_gather(self, tensor):
        return _like(tensor, np.concatenate(self._arrays(tensor)))

    def reduce_scatter(self, tensor):
        return _like(tensor, np.split(sum(self._arrays(tensor)), 2)[self.rank])

    def _arrays(self, tensor):
        return [np.asarray(part) for part in self._meeting.everybodys(self.rank, tensor)]


def _like(tensor, array):
    """The array as a tensor of the same framework."""
    if isinstance(tensor, np.ndarray):
        return array
    if type(tensor).__module__.startswith("torch"):
        return tensor.new_tensor(array)
    import tensorflow as tf

    return tf.constant(array)


def run_both(worker: Callable[[OneOfTwo], object], kind: type[OneOfTwo] = OneOfTwo):
    """What each worker gives, and where they met.

    Args:
        worker: Is given its collectives.
        kind: Of these.
    """
    meeting = Meeting()
    with ThreadPoolExecutor(2) as pool:
        return [*pool.map(worker, (kind(0, meeting), kind(1, meeting)))], meeting
