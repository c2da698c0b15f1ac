"""What the parameter server holds and how requests change it; independent of the transport.

A store answers the requests of its mode. The arrays that an update brings belong to the
connection, which does not touch them before the same worker's next update.

Messages between workers and the parameter server, over any transport.

A request is a header of a few numbers and a list of arrays, and so is its response. Arrays travel
in the typed binary form of Elephas, which states their types and shapes. Both sides know these
beforehand, so what arrives is compared with what is expected before any of it is kept, and is read
into arrays that are there already.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from pipelines.models.weights import Weights
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import TrainingRun
from pipelines.training.asynchronous import round_ends, state_of
from pipelines.training.steppers.adamw import AdamW

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
    """As :func:`pipelines.training.asynchronous.state_of` names the arrays."""
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


@dataclass(frozen=True)
class Response:
    """A response: its header and arrays.

    Attributes:
        header: A few numbers.
        arrays: The arrays of the form, or none of them.
    """

    header: ResponseHeader = field(default_factory=ResponseHeader)
    arrays: Weights | None = None


Handler = Callable[[Request, Weights], Response]


class ParameterStore(Protocol):
    """Holds the parameters of one run.

    Attributes:
        forms: The requests that it knows, by name.
        reading: The handlers of those that only read.
        writing: The handlers of those that change the arrays.
    """

    forms: Mapping[str, Form]
    reading: Mapping[str, Handler]
    writing: Mapping[str, Handler]

    def weights(self) -> Weights:
        """The weights as they are now."""
        ...


class SharedParameters:
    """Weights that every gradient moves as it comes, by AdamW.

    Counters are exact under any number of threads. The arrays are as exact as the lock that is
    held around the handlers; without one, updates of the same elements may be lost, as in Niu,
    Recht, Ré and Wright, "Hogwild!", NIPS 2011, arXiv:1106.5730.

    Args:
        checkpoint: The state to begin with.
    """

    def __init__(self, run: TrainingRun, checkpoint: Checkpoint) -> None:
        self.forms: Mapping[str, Form] = forms(run.config.training.mode, _shapes(checkpoint))
        self.reading: Mapping[str, Handler] = {
            "parameters": self._parameters,
            "state": self._state,
            "progress": self._progress,
            "saved": self._mark_saved,
        }
        self.writing: Mapping[str, Handler] = {"update": self._update}
        self._run = run
        self._rule = AdamW(checkpoint.weights, checkpoint.moments, run.config.training.weight_decay)
        self._counting = threading.Lock()
        # The number of an update corrects AdamW's bias, so a resumed run counts on.
        self._begun = self._made = self._applied = self._saved = run.first_step
        self._begun_steps: set[int] = set()
        self._made_steps: set[int] = set()

    def weights(self) -> Weights:
        """See :class:`ParameterStore`."""
        return self._rule.weights

    def _parameters(self, request: Request, _: Weights) -> Response:
        made = self._made
        return Response(
            ResponseHeader(made), {name: value.copy() for name, value in self._rule.weights.items()}
        )

    def _state(self, request: Request, _: Weights) -> Response:
        state = {f"weights/{name}": value.copy() for name, value in self._rule.weights.items()}
        state |= {name: value.copy() for name, value in self._rule.moments.items()}
        return Response(ResponseHeader(self._made), state)

    def _update(self, request: Request, gradients: Weights) -> Response:
        if not math.isfinite(request.amount):
            raise ValueError(f"{request.amount} is no learning rate")
        with self._counting:
            known = request.step in self._begun_steps or request.step < self._applied
            if known or request.step >= self._run.last_step:
                raise ValueError(f"no gradient of step {request.step} is due")
            self._begun_steps.add(request.step)
            self._begun += 1
            number = self._begun
        self._rule.update(gradients, request.amount, number)
        with self._counting:
            self._made += 1
            self._made_steps.add(request.step)
            while self._applied in self._made_steps:
                self._made_steps.discard(self._applied)
                self._begun_steps.discard(self._applied)
                self._applied += 1
            return Response(ResponseHeader(self._made))

    def _progress(self, request: Request, _: Weights) -> Response:
        with self._counting:
            return Response(ResponseHeader(self._applied, self._saved))

    def _mark_saved(self, request: Request, _: Weights) -> Response:
        with self._counting:
            if not self._saved <= request.step <= self._applied:
                raise ValueError(f"the state before step {request.step} cannot have been saved")
            self._saved = request.step
        return Response()


class AveragedState:
    """A state from which the mean of all workers' differences is taken, round by round.

    The differences are added up in the order of the ranks, so that a run repeats exactly. The
    state is not copied for a response: it changes when all have added to it, and a worker adds
    to it after it has read it.

    Args:
        checkpoint: The state to begin with.
    """

    def __init__(self, run: TrainingRun, checkpoint: Checkpoint) -> None:
        self.forms: Mapping[str, Form] = forms(run.config.training.mode, _shapes(checkpoint))
        self.reading: Mapping[str, Handler] = {"parameters": self._parameters}
        self.writing: Mapping[str, Handler] = {"update": self._update}
        self._workers = run.config.training.workers
        self._weight_names = tuple(checkpoint.weights)
        self._state = {name: value.copy() for name, value in state_of(checkpoint).items()}
        self._ends = round_ends(run)
        self._round = (run.first_step, next(self._ends))
        self._adding = threading.Lock()
        self._begin_round()

    def weights(self) -> Weights:
        """See :class:`ParameterStore`."""
        return {name: self._state[f"weights/{name}"] for name in self._weight_names}

    def _begin_round(self) -> None:
        self._waiting: dict[int, tuple[Weights, float]] = {}
        self._turn = 0
        self._granules = 0.0
        self._total: Weights = {}

    def _parameters(self, request: Request, _: Weights) -> Response:
        begin, end = self._round
        if request.step == begin:
            return Response(ResponseHeader(begin), self._state)
        if request.step == end:
            return Response(ResponseHeader(begin))
        raise ValueError(f"the round is of steps {begin} to {end}, not of {request.step}")

    def _update(self, request: Request, deltas: Weights) -> Response:
        with self._adding:
            end = self._round[1]
            due = request.rank not in self._waiting and self._turn <= request.rank < self._workers
            if request.step != end or not due or not request.amount > 0:
                raise ValueError(f"{request} is not due in the round up to step {end}")
            self._waiting[request.rank] = (deltas, request.amount)
            while self._turn in self._waiting:
                self._add(*self._waiting.pop(self._turn))
                self._turn += 1
            if self._turn == self._workers:
                self._take_mean(end)
        return Response(ResponseHeader(end))

    def _add(self, deltas: Weights, granules: float) -> None:
        self._granules += granules
        for name, delta in deltas.items():
            if name in self._total:
                self._total[name] += granules * delta
            else:
                self._total[name] = granules * delta

    def _take_mean(self, end: int) -> None:
        for name, total in self._total.items():
            self._state[name] -= total / self._granules
        self._begin_round()
        # Last, since readers look at it without the lock.
        self._round = (end, next(self._ends, end))


def _shapes(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in checkpoint.weights.items()}


STORES: Mapping[str, Callable[[TrainingRun, Checkpoint], ParameterStore]] = {
    "sync": AveragedState,
    "async": SharedParameters,
    "hogwild": SharedParameters,
}
