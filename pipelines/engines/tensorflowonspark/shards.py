"""Where parameters are: all weights as one vector, cut into pieces that servers hold.

Pure functions over numbers and arrays; nothing here knows TensorFlow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.encoder.weights import Weights

LARGEST = 1 << 24


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A piece of the vector.

    Attributes:
        server: Number of the server that holds it.
        start: Its first element.
        stop: One past its last.
        decayed: Whether weight decay applies to it.
    """

    server: int
    start: int
    stop: int
    decayed: bool


def shards(matrices: int, others: int, servers: int, largest: int = LARGEST) -> tuple[Shard, ...]:
    """Cuts a vector so that every server holds as much as every other, up to an element a piece.

    Args:
        matrices: Elements that are decayed; they come first.
        others: Elements that are not.
        servers: Number of servers.
        largest: Elements of a piece, at most.
    """
    return tuple(
        Shard(server=number % servers, start=start, stop=stop, decayed=decayed)
        for first, count, decayed in ((0, matrices, True), (matrices, others, False))
        for number, (start, stop) in enumerate(_cut(first, count, servers, largest))
        if stop > start
    )


def _cut(first: int, count: int, servers: int, largest: int) -> Iterator[tuple[int, int]]:
    """Equal pieces, as many on every server."""
    pieces = servers * max(-(-count // (servers * largest)), 1)
    for number in range(pieces):
        yield first + count * number // pieces, first + count * (number + 1) // pieces


class Layout:
    """The order of the weights in the vector: matrices first, since they alone are decayed.

    Args:
        shapes: Of the weights, in canonical order.
        servers: Number of servers.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], servers: int) -> None:
        self._shapes = dict(shapes)
        self._order = sorted(shapes, key=lambda name: len(shapes[name]) < 2)
        sizes = {name: int(np.prod(shape)) for name, shape in shapes.items()}
        ends = np.cumsum([sizes[name] for name in self._order])
        self._ends = dict(zip(self._order, (int(end) for end in ends), strict=True))
        matrices = sum(sizes[name] for name, shape in shapes.items() if len(shape) > 1)
        self.shards = shards(matrices, sum(sizes.values()) - matrices, servers)

    def cut(self, weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The pieces of the vector, fp32, that arrays of the weights' names and shapes make."""
        vector = np.concatenate([weights[name].reshape(-1) for name in self._order])
        return [vector[shard.start : shard.stop] for shard in self.shards]

    def join(self, pieces: Sequence[np.ndarray]) -> Weights:
        """The inverse of :meth:`cut`."""
        vector = np.concatenate(pieces)
        return {
            name: vector[self._ends[name] - int(np.prod(shape)) : self._ends[name]].reshape(shape)
            for name, shape in self._shapes.items()
        }
