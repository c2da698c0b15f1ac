"""Messages between workers and the parameter server, over any transport.

A request is a header of a few numbers and a list of arrays, and so is its response. Arrays travel
in the typed binary form of Elephas, which states their types and shapes. Both sides know these
beforehand, so what arrives is compared with what is expected before any of it is kept, and is read
into arrays that are there already.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipelines.models.weights import Weights

ReadInto = Callable[[memoryview], int]


class Request(NamedTuple):
    """The header of a request.

    Attributes:
        step: The step that it is about.
        rank: Of the worker that asks, where that matters.
        amount: The learning rate of a gradient, or the granules behind a difference.
    """

    step: int = 0
    rank: int = 0
    amount: float = 0.0


class ResponseHeader(NamedTuple):
    """The header of a response.

    Attributes:
        updates: How many the parameters have had; of a progress, the steps that are applied.
        saved: Of a progress, the newest step whose state has been saved.
    """

    updates: int = 0
    saved: int = 0


REQUEST = struct.Struct("!qqd")
RESPONSE = struct.Struct("!qq")

# Of the socket protocol: what stands before the body of a request, and before a response.
LENGTH = struct.Struct("!Q")
ACCEPTED, REFUSED = b"+", b"-"


class Layout:
    """A list of fp32 arrays as bytes: what ``elephas.utils.weights_to_bytes`` writes.

    An empty list is no bytes at all.

    Args:
        shapes: Of the arrays, by name, in the order in which they travel.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = dict(shapes)
        self._heads = [_head(shape) for shape in self._shapes.values()]
        if self._heads:
            self._heads[0] = np.uint32(len(shapes)).tobytes() + self._heads[0]
        elements = sum(math.prod(shape) for shape in self._shapes.values())
        self.size = sum(map(len, self._heads)) + 4 * elements

    def new(self) -> Weights:
        """Arrays to read into, not initialised."""
        return {name: np.empty(shape, np.float32) for name, shape in self._shapes.items()}

    def chunks(self, arrays: Weights) -> Iterator[bytes | memoryview]:
        """The bytes of arrays, which are not copied.

        Raises:
            ValueError: An array has another shape.
        """
        for (name, shape), head in zip(self._shapes.items(), self._heads, strict=True):
            array = np.ascontiguousarray(arrays[name], np.float32)
            if array.shape != shape:
                raise ValueError(f"{name} has the shape {array.shape}, not {shape}")
            yield head
            yield array.data.cast("B")

    def read(self, readinto: ReadInto, arrays: Weights) -> None:
        """Reads into arrays that :meth:`new` made.

        Args:
            readinto: Fills a part of the given memory; returns how much.
            arrays: What is read into.

        Raises:
            ValueError: The bytes are those of other arrays; some may have been read.
            ConnectionError: There are too few.
        """
        for array, head in zip(arrays.values(), self._heads, strict=True):
            if read_exactly(readinto, len(head)) != head:
                raise ValueError("other arrays were sent than expected")
            fill(readinto, array.data.cast("B"))


@dataclass(frozen=True, kw_only=True)
class Form:
    """The arrays of a request and of its response, behind their headers.

    Attributes:
        letter: Names the request in the socket protocol.
        sends: Arrays of the request.
        brings: Arrays of the response, which may have none of them.
    """

    letter: bytes
    sends: Layout
    brings: Layout

    @property
    def size(self) -> int:
        """Bytes of a request."""
        return REQUEST.size + self.sends.size


def forms(mode: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Form]:
    """The requests that are known in a mode, by name; the first two are those of Elephas.

    Arrays travel in the order of their names, so that both ends agree on it.

    Args:
        mode: The update rule.
        shapes: Of the weights, by name.
    """
    shapes = dict(sorted(shapes.items()))
    weights, state = Layout(shapes), Layout(_state_shapes(shapes))
    nothing = Layout({})
    if mode == "sync":
        return {
            "parameters": Form(letter=b"g", sends=nothing, brings=state),
            "update": Form(letter=b"u", sends=state, brings=nothing),
        }
    return {
        "parameters": Form(letter=b"g", sends=nothing, brings=weights),
        "update": Form(letter=b"u", sends=weights, brings=nothing),
        "state": Form(letter=b"s", sends=nothing, brings=state),
        "progress": Form(letter=b"p", sends=nothing, brings=nothing),
        "saved": Form(letter=b"m", sends=nothing, brings=nothing),
    }


def read_exactly(readinto: ReadInto, size: int) -> bytes:
    """So many bytes.

    Raises:
        ConnectionError: There are fewer.
    """
    data = bytearray(size)
    fill(readinto, memoryview(data))
    return bytes(data)


def fill(readinto: ReadInto, memory: memoryview) -> None:
    """Fills the memory.

    Raises:
        ConnectionError: The bytes end before.
    """
    filled = 0
    while filled < len(memory):
        count = readinto(memory[filled:])
        if not count:
            raise ConnectionError("the connection ended inside a message")
        filled += count


def _state_shapes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """As :func:`pipelines.training.rounds.state_of` names the arrays."""
    return {
        f"{kind}/{name}": shape for kind in ("weights", "m", "v") for name, shape in shapes.items()
    }


def _head(shape: tuple[int, ...]) -> bytes:
    """What stands before the elements of an array: dimensions, type, size."""
    kind = b"float32"
    return b"".join(
        (
            np.uint8(len(shape)).tobytes(),
            np.asarray(shape, np.int64).tobytes(),
            np.uint16(len(kind)).tobytes(),
            kind,
            np.uint64(4 * math.prod(shape)).tobytes(),
        )
    )
