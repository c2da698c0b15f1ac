"""Parameters that several servers share: each holds some rows of every array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pipelines.encoder.weights import Weights
from pipelines.training.asynchronous import Progress
from pipelines.training.checkpoint import Checkpoint
from pipelines.training.parameter_server.exchanges import ServedParameters


def shard(arrays: Mapping[str, np.ndarray], server: int, servers: int) -> Weights:
    """The rows that a server holds, as views; arrays of which it holds none are left out.

    Every server holds as many rows of an array as every other, up to one.

    Args:
        arrays: By name, of one axis at least.
        server: Number of the server.
        servers: How many there are.
    """
    parts = {
        name: array[len(array) * server // servers : len(array) * (server + 1) // servers]
        for name, array in arrays.items()
    }
    return {name: part for name, part in parts.items() if len(part)}


def join(shards: Sequence[Mapping[str, np.ndarray]]) -> Weights:
    """The inverse of :func:`shard`: the arrays that the shards of all servers make."""
    if len(shards) == 1:
        return dict(shards[0])
    # No server lacks an array that the last one lacks: its part is the largest.
    return {
        name: np.concatenate([part[name] for part in shards if name in part]) for name in shards[-1]
    }


def checkpoint_shard(checkpoint: Checkpoint, server: int, servers: int) -> Checkpoint:
    """What a server holds of a state."""
    return Checkpoint(
        step=checkpoint.step,
        spec=checkpoint.spec,
        weights=shard(checkpoint.weights, server, servers),
        moments=shard(checkpoint.moments, server, servers),
    )


class ShardedParameters:
    """See :class:`pipelines.training.asynchronous.Parameters`.

    All servers are asked at once. Each numbers its own updates, so that a gradient is as old as
    the oldest rows that it was computed on.

    Args:
        parts: The way to each server.
    """

    def __init__(self, parts: Sequence[ServedParameters]) -> None:
        self._parts = parts
        self._asking = ThreadPoolExecutor(len(parts), "parameter-server")
        self._pulled = [0] * len(parts)

    def pull(self) -> tuple[Weights, int]:
        """The weights as they are now, and how many updates they have had at least."""
        answers = list(self._asking.map(ServedParameters.pull, self._parts))
        self._pulled = [updates for _, updates in answers]
        return join([weights for weights, _ in answers]), min(self._pulled)

    def push(self, step: int, gradients: Weights, learning_rate: float) -> int:
        """Has an update made; returns how many the oldest rows have had with it."""

        def push(server: int) -> int:
            part = shard(gradients, server, len(self._parts))
            return self._parts[server].push(step, part, learning_rate)

        pushed = self._asking.map(push, range(len(self._parts)))
        between = max(after - before for after, before in zip(pushed, self._pulled, strict=True))
        return min(self._pulled) + between

    def progress(self) -> Progress:
        """How far the run is on every server."""
        known = list(self._asking.map(ServedParameters.progress, self._parts))
        return Progress(
            applied=min(one.applied for one in known), saved=min(one.saved for one in known)
        )

    def state(self) -> tuple[Weights, Weights]:
        """Weights, and the optimiser's arrays as a checkpoint holds them."""
        states = list(self._asking.map(ServedParameters.state, self._parts))
        return join([weights for weights, _ in states]), join([moments for _, moments in states])

    def mark_saved(self, step: int) -> None:
        """Lets the others go on from a step whose state has been saved."""
        list(self._asking.map(lambda part: part.mark_saved(step), self._parts))
