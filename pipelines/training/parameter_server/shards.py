"""Parameters that several servers share: each holds some rows of every array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pipelines.models.architecture import Shapes
from pipelines.models.weights import Rows, Weights
from pipelines.training.asynchronous import Progress
from pipelines.training.parameter_server.remote_state import ServedParameters


def rows_of(server: int, servers: int) -> Rows:
    """The rows of an array that a server holds: as many as every other, up to one.

    Args:
        server: Number of the server.
        servers: How many there are.
    """

    def rows(count: int) -> slice:
        return slice(count * server // servers, count * (server + 1) // servers)

    return rows


def shard(arrays: Mapping[str, np.ndarray], server: int, servers: int) -> Weights:
    """The rows that a server holds, as views; arrays of which it holds none are left out.

    Args:
        arrays: By name, of one axis at least.
        server: Number of the server.
        servers: How many there are.
    """
    rows = rows_of(server, servers)
    parts = {name: array[rows(len(array))] for name, array in arrays.items()}
    return {name: part for name, part in parts.items() if len(part)}


def shard_shapes(shapes: Shapes, server: int, servers: int) -> Shapes:
    """The shapes of what :func:`shard` leaves of arrays of these shapes."""
    rows = rows_of(server, servers)
    held = {
        name: (rows(count).stop - rows(count).start, *others)
        for name, (count, *others) in shapes.items()
    }
    return {name: shape for name, shape in held.items() if shape[0]}


def join(shards: Sequence[Mapping[str, np.ndarray]]) -> Weights:
    """The inverse of :func:`shard`: the arrays that the shards of all servers make."""
    if len(shards) == 1:
        return dict(shards[0])
    # No server lacks an array that the last one lacks: its part is the largest.
    return {
        name: np.concatenate([part[name] for part in shards if name in part]) for name in shards[-1]
    }


class ShardedParameters:
    """See :class:`pipelines.training.asynchronous.Parameters`.

    Requests go to all servers at once. Each server counts its own updates, so that a gradient is
    as old as the oldest rows that it was computed on.

    Args:
        parts: Access to each server.
    """

    def __init__(self, parts: Sequence[ServedParameters]) -> None:
        self._parts = parts
        self._threads = ThreadPoolExecutor(len(parts), "parameter-server")
        self._pulled = [0] * len(parts)

    def pull(self) -> tuple[Weights, int]:
        """The weights as they are now, and how many updates they have had at least."""
        responses = list(self._threads.map(ServedParameters.pull, self._parts))
        self._pulled = [updates for _, updates in responses]
        return join([weights for weights, _ in responses]), min(self._pulled)

    def push(self, step: int, gradients: Weights, learning_rate: float) -> int:
        """Requests an update; returns how many the oldest rows have had, this one included."""

        def push(server: int) -> int:
            part = shard(gradients, server, len(self._parts))
            return self._parts[server].push(step, part, learning_rate)

        pushed = self._threads.map(push, range(len(self._parts)))
        between = max(after - before for after, before in zip(pushed, self._pulled, strict=True))
        return min(self._pulled) + between

    def progress(self) -> Progress:
        """The progress of the run on all servers."""
        known = list(self._threads.map(ServedParameters.progress, self._parts))
        return Progress(
            applied=min(one.applied for one in known), saved=min(one.saved for one in known)
        )

    def state(self) -> tuple[Weights, Weights]:
        """Weights, and the optimiser's arrays as a checkpoint holds them."""
        states = list(self._threads.map(ServedParameters.state, self._parts))
        return join([weights for weights, _ in states]), join([moments for _, moments in states])

    def mark_saved(self, step: int) -> None:
        """Lets the others go on from a step whose state has been saved."""
        list(self._threads.map(lambda part: part.mark_saved(step), self._parts))
