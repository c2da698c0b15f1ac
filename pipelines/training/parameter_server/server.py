"""The parameter server: its state, and the messages to read and change it.

A request is a header of a few numbers and a list of arrays, and so is its response. Arrays travel
in the typed binary form of Elephas, with their types and shapes. Both sides know these beforehand,
so they check arriving bytes before they keep any, and read them into existing arrays. The arrays of
an update belong to the connection. It does not touch them before the same worker's next update.
"""

from __future__ import annotations

import logging
import math
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np

from pipelines.models.weights import Weights
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import TrainingRun
from pipelines.training.asynchronous import round_ends, state_of
from pipelines.training.control.authenticated_server import (
    TOKEN_BYTES,
    Identity,
    SocketTokenServer,
    TokenServer,
)
from pipelines.training.steppers.numpy_adamw import AdamW

logger = logging.getLogger(__name__)

ReadInto = Callable[[memoryview], int]


class Request(NamedTuple):
    """The header of a request: its step, and the rank if the request needs it.

    `amount` is the learning rate of a gradient, or the granules behind a difference.
    """

    step: int = 0
    rank: int = 0
    amount: float = 0.0


class ResponseHeader(NamedTuple):
    """The header of a response: the updates of the parameters so far.

    Of a progress, `updates` are the applied steps, and `saved` is the newest step with a saved
    state.
    """

    updates: int = 0
    saved: int = 0


REQUEST = struct.Struct("!qqd")
RESPONSE = struct.Struct("!qq")

# Of the socket protocol: the length of a request's body, and the first byte of a response.
LENGTH = struct.Struct("!Q")
ACCEPTED, REFUSED = b"+", b"-"


class Layout:
    """A list of fp32 arrays as bytes, in the form of ``elephas.utils.weights_to_bytes``.

    An empty list is no bytes at all. The arrays travel in the order of `shapes`.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = dict(shapes)
        self._heads = [_head(shape) for shape in self._shapes.values()]
        if self._heads:
            self._heads[0] = np.uint32(len(shapes)).tobytes() + self._heads[0]
        elements = sum(math.prod(shape) for shape in self._shapes.values())
        self.size = sum(map(len, self._heads)) + 4 * elements

    def new(self) -> Weights:
        """Return uninitialised arrays to read into."""
        return {name: np.empty(shape, np.float32) for name, shape in self._shapes.items()}

    def chunks(self, arrays: Weights) -> Iterator[bytes | memoryview]:
        """Yield the bytes of arrays, without a copy.

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
        """Read into arrays of :meth:`new`.

        `readinto` fills a part of the given memory and returns its size.

        Raises:
            ValueError: The bytes belong to other arrays; some may have been read.
            ConnectionError: There are too few.
        """
        for array, head in zip(arrays.values(), self._heads, strict=True):
            if read_exactly(readinto, len(head)) != head:
                raise ValueError("the message holds unexpected arrays")
            fill(readinto, array.data.cast("B"))


@dataclass(frozen=True)
class Form:
    """The arrays of a request and of its response, if any.

    `letter` names the request in the socket protocol.
    """

    letter: bytes
    sends: Layout
    brings: Layout

    @property
    def size(self) -> int:
        """Bytes of a request."""
        return REQUEST.size + self.sends.size


def forms(mode: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Form]:
    """Return a mode's requests by name; the first two are those of Elephas.

    Arrays travel in the order of their names, as both ends know it.
    """
    shapes = dict(sorted(shapes.items()))
    # As :func:`pipelines.training.asynchronous.state_of` names the arrays.
    kinds = ("weights", "m", "v")
    state = Layout({f"{kind}/{name}": shape for kind in kinds for name, shape in shapes.items()})
    nothing = Layout({})
    pulled = state if mode == "sync" else Layout(shapes)
    known = {"parameters": Form(b"g", nothing, pulled), "update": Form(b"u", pulled, nothing)}
    if mode == "sync":
        return known
    return known | {
        "state": Form(b"s", nothing, state),
        "progress": Form(b"p", nothing, nothing),
        "saved": Form(b"m", nothing, nothing),
    }


def read_exactly(readinto: ReadInto, size: int) -> bytes:
    """Read `size` bytes.

    Raises:
        ConnectionError: There are fewer.
    """
    data = bytearray(size)
    fill(readinto, memoryview(data))
    return bytes(data)


def fill(readinto: ReadInto, memory: memoryview) -> None:
    """Fill the memory.

    Raises:
        ConnectionError: The bytes end before.
    """
    filled = 0
    while filled < len(memory):
        count = readinto(memory[filled:])
        if not count:
            raise ConnectionError("the connection ended inside a message")
        filled += count


def _head(shape: tuple[int, ...]) -> bytes:
    """Return the header of an array: dimensions, type, size."""
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


Answer = tuple[ResponseHeader, Weights | None]
"""A handler's response; the arrays are those of the form, or None."""
Handler = Callable[[Request, Weights], Answer]


class ParameterStore(Protocol):
    """The parameters of one run, with handlers for the requests of its mode.

    The `reading` handlers only read; the `writing` ones change the arrays.
    """

    forms: Mapping[str, Form]
    reading: Mapping[str, Handler]
    writing: Mapping[str, Handler]

    def weights(self) -> Weights:
        """Return the current weights."""
        ...


class SharedParameters:
    """Weights with an AdamW update for each arriving gradient.

    Counters are exact under any number of threads. The arrays are as exact as the lock around the
    handlers; without one, updates of the same elements may be lost, as in Niu, Recht, Ré and
    Wright, "Hogwild!", NIPS 2011, arXiv:1106.5730.
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

    def _parameters(self, request: Request, _: Weights) -> Answer:
        # Before the copy: under concurrent updates staleness may be overstated, never understated.
        made = self._made
        return ResponseHeader(made), _copied(self._rule.weights)

    def _state(self, request: Request, _: Weights) -> Answer:
        state = _copied(self._rule.weights, "weights/") | _copied(self._rule.moments)
        return ResponseHeader(self._made), state

    def _update(self, request: Request, gradients: Weights) -> Answer:
        if not math.isfinite(request.amount):
            raise ValueError(f"{request.amount} is no learning rate")
        with self._counting:
            # Each step has one update, whatever clients send.
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
            return ResponseHeader(self._made), None

    def _progress(self, request: Request, _: Weights) -> Answer:
        with self._counting:
            return ResponseHeader(self._applied, self._saved), None

    def _mark_saved(self, request: Request, _: Weights) -> Answer:
        with self._counting:
            if not self._saved <= request.step <= self._applied:
                raise ValueError(f"the state before step {request.step} cannot have been saved")
            self._saved = request.step
        return ResponseHeader(), None


class AveragedState:
    """A state minus the mean of all workers' differences, round by round.

    The server adds differences in the order of the ranks, so runs repeat exactly. A response needs
    no copy of the state: it changes after the additions of all workers, and each worker reads it
    before its addition.
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

    def _parameters(self, request: Request, _: Weights) -> Answer:
        begin, end = self._round
        if request.step == begin:
            return ResponseHeader(begin), self._state
        if request.step == end:
            return ResponseHeader(begin), None
        raise ValueError(f"the round covers steps {begin} to {end}, not {request.step}")

    def _update(self, request: Request, deltas: Weights) -> Answer:
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
        return ResponseHeader(end), None

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


def _copied(arrays: Weights, prefix: str = "") -> Weights:
    return {f"{prefix}{name}": value.copy() for name, value in arrays.items()}


def _shapes(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in checkpoint.weights.items()}


STORES: Mapping[str, Callable[[TrainingRun, Checkpoint], ParameterStore]] = {
    "sync": AveragedState,
    "async": SharedParameters,
    "hogwild": SharedParameters,
}


class RequestHandler:
    """Reads requests of known forms and answers them by the handlers of the same names.

    Many threads call the handlers.
    """

    def __init__(self, forms: Mapping[str, Form], handlers: Mapping[str, Handler]) -> None:
        self.forms = forms
        self._handlers = handlers
        self._received = threading.local()

    def answer(self, name: str, readinto: ReadInto) -> tuple[int, Iterator[bytes | memoryview]]:
        """Read a request of the expected size, act on it, and return its response's size and bytes.

        Raises:
            ValueError: It has another form, or is not due; nothing has changed.
            ConnectionError: It ends too early; nothing has changed.
        """
        request = Request(*REQUEST.unpack(read_exactly(readinto, REQUEST.size)))
        form = self.forms[name]
        # A connection has a thread of its own, so these are the connection's arrays.
        received: Weights | None = getattr(self._received, name, None)
        if received is None:
            received = form.sends.new()
            setattr(self._received, name, received)
        form.sends.read(readinto, received)
        header, arrays = self._handlers[name](request, received)
        packed = RESPONSE.pack(*header)
        if arrays is None:
            return len(packed), iter([packed])
        return len(packed) + form.brings.size, chain([packed], form.brings.chunks(arrays))


def answer_connection(
    connection: socket.socket, server: TokenServer, handler: RequestHandler
) -> None:
    """Answer the requests of one connection until it ends.

    Each is a letter, a length of eight bytes and a body; the token comes first.
    """
    names = {form.letter: name for name, form in handler.forms.items()}
    with connection.makefile("rb") as lines:
        if not server.authenticate(connection, lines.read(TOKEN_BYTES)):
            return
        while letter := lines.read(1):
            (size,) = LENGTH.unpack(read_exactly(lines.readinto, LENGTH.size))
            name = names.get(letter)
            if name is None or size != handler.forms[name].size:
                connection.sendall(REFUSED)
                return
            try:
                length, chunks = handler.answer(name, lines.readinto)
            except ValueError as error:
                logger.warning("refused the request `%s`: %s", name, error)
                connection.sendall(REFUSED)
                return
            connection.sendall(ACCEPTED + LENGTH.pack(length))
            for chunk in chunks:
                connection.sendall(chunk)


class ParameterServer:
    """Serves parameters over sockets, one request at a time; a context manager.

    The run's token has ``TOKEN_BYTES`` characters; `identity` encrypts the connections, if given.

    Raises:
        OSError: It cannot listen at the address.
    """

    def __init__(
        self,
        store: ParameterStore,
        address: tuple[str, int],
        token: str,
        identity: Identity | None = None,
    ) -> None:
        self._lock = threading.Lock()
        handlers = {
            name: self._locked(handler)
            for name, handler in {**store.reading, **store.writing}.items()
        }
        self._handler = RequestHandler(store.forms, handlers)
        self._server = SocketTokenServer(address, self._attend, token=token, identity=identity)
        self.address = (address[0], self._server.server_address[1])

    def __enter__(self) -> ParameterServer:
        self._server.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def _attend(self, connection: socket.socket) -> None:
        answer_connection(connection, self._server, self._handler)

    def _locked(self, handler: Handler) -> Handler:
        def locked(request: Request, arrays: Weights) -> Answer:
            with self._lock:
                return handler(request, arrays)

        return locked
