"""A worker's connection to a parameter server. Runs on an executor."""

from __future__ import annotations

import errno
import http.client
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from typing_extensions import override

from pipelines.models.architecture import Shapes
from pipelines.models.weights import Rows, Weights
from pipelines.runs.run import WorkerTask
from pipelines.training.asynchronous import Progress
from pipelines.training.control.authenticated_server import connect
from pipelines.training.parameter_server.server import (
    ACCEPTED,
    LENGTH,
    REQUEST,
    RESPONSE,
    Form,
    ReadInto,
    Request,
    ResponseHeader,
    read_exactly,
)

_REFUSED = "the parameter server refused"
_UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH)


def means_server_lost(error: Exception) -> bool:
    """Return whether a client's error is the loss of the server, or of the network to it."""
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return True
    return isinstance(error, ConnectionError | TimeoutError) and _REFUSED not in str(error)


class Client(ABC):
    """A connection to a server, made with the first request; can be pickled before it.

    Args:
        forms: The server's requests.
        seconds: The longest wait of a request for the server.
        fingerprint: Of the server's certificate; None for plain connections.
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: str,
        forms: Mapping[str, Form],
        seconds: float,
        fingerprint: str | None = None,
    ) -> None:
        self.address = address
        self.token = token
        self.forms = forms
        self.seconds = seconds
        self.fingerprint = fingerprint
        self._connection: Any = None

    def ask(
        self, name: str, request: Request, arrays: Weights | None = None
    ) -> tuple[ResponseHeader, Weights | None]:
        """Send a request with its arrays, if any, and return the response's header and arrays.

        Raises:
            OSError: The server cannot be reached, or the connection ended.
            PipelineError: Another process is in the server's place.
            ValueError: The response has another form.
        """
        form = self.forms[name]
        size, readinto = self.converse(name, form.size, self._chunks(form, request, arrays))
        header = ResponseHeader(*RESPONSE.unpack(read_exactly(readinto, RESPONSE.size)))
        if size == RESPONSE.size:
            return header, None
        if size != RESPONSE.size + form.brings.size:
            raise ValueError(f"the parameter server sent {size} bytes for `{name}`")
        brought = form.brings.new()
        form.brings.read(readinto, brought)
        return header, brought

    @abstractmethod
    def converse(
        self, name: str, size: int, chunks: Iterator[bytes | memoryview]
    ) -> tuple[int, ReadInto]:
        """Send the bytes of a request; return the size of the response and its reader."""

    def _chunks(
        self, form: Form, request: Request, arrays: Weights | None
    ) -> Iterator[bytes | memoryview]:
        yield REQUEST.pack(*request)
        yield from form.sends.chunks(arrays or {})


class HttpClient(Client):
    """A client over HTTP, on one persistent connection."""

    def converse(
        self, name: str, size: int, chunks: Iterator[bytes | memoryview]
    ) -> tuple[int, ReadInto]:
        """See :class:`Client`."""
        if self._connection is None:
            self._connection = _HttpConnection(self)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Length": str(size)}
        self._connection.request("POST", f"/{name}", chunks, headers)
        response = self._connection.getresponse()
        if response.status != 200 or response.length is None:
            raise ConnectionError(f"{_REFUSED} `{name}` ({response.status})")
        return response.length, response.readinto


class SocketClient(Client):
    """A client over one TCP connection."""

    def converse(
        self, name: str, size: int, chunks: Iterator[bytes | memoryview]
    ) -> tuple[int, ReadInto]:
        """See :class:`Client`."""
        if self._connection is None:
            self._connection = connect(self.address, self.seconds, self.fingerprint)
            # Nagle's algorithm would hold back small messages, such as a request's header.
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connection.sendall(self.token.encode())
        self._connection.sendall(self.forms[name].letter + LENGTH.pack(size))
        for chunk in chunks:
            self._connection.sendall(chunk)
        readinto: ReadInto = self._connection.recv_into
        if read_exactly(readinto, 1) != ACCEPTED:
            raise ConnectionError(f"{_REFUSED} `{name}`")
        return LENGTH.unpack(read_exactly(readinto, LENGTH.size))[0], readinto


class _HttpConnection(http.client.HTTPConnection):
    """Connects as every client of the run does; http.client's own reconnect would not encrypt."""

    def __init__(self, client: Client) -> None:
        super().__init__(*client.address)
        self._client = client

    @override
    def connect(self) -> None:
        client = self._client
        self.sock = connect(client.address, client.seconds, client.fingerprint)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05


class ServedParameters:
    """See :class:`pipelines.training.asynchronous.Parameters`."""

    def __init__(self, client: Client, task: WorkerTask) -> None:
        self._client = client
        self._rank = task.rank

    def pull(self) -> tuple[Weights, int]:
        """Return the current weights, and the number of their updates."""
        header, weights = self._client.ask("parameters", Request())
        assert weights is not None, "the server has them from the start"
        return weights, header.updates

    def push(self, step: int, gradients: Weights, learning_rate: float) -> int:
        """Request an update; return the number of updates so far, this one included."""
        request = Request(step=step, rank=self._rank, amount=learning_rate)
        return self._client.ask("update", request, gradients)[0].updates

    def progress(self) -> Progress:
        """Return the progress of the run."""
        header, _ = self._client.ask("progress", Request())
        return Progress(applied=header.updates, saved=header.saved)

    def state(self) -> tuple[Weights, Weights]:
        """Return the weights, and the optimiser's arrays as in a checkpoint."""
        _, state = self._client.ask("state", Request())
        assert state is not None, "the server has it from the start"
        weights = {
            name.removeprefix("weights/"): value
            for name, value in state.items()
            if name.startswith("weights/")
        }
        moments = {name: value for name, value in state.items() if not name.startswith("weights/")}
        return weights, moments

    def mark_saved(self, step: int) -> None:
        """Let the other workers go on from a step with a saved state."""
        self._client.ask("saved", Request(step=step))


class ServedRounds:
    """See :class:`pipelines.training.asynchronous.Rounds`."""

    def __init__(self, client: Client, task: WorkerTask) -> None:
        self._client = client
        self._rank = task.rank
        training = task.run.config.training
        # The slowest worker may take stall_seconds for each step of the round.
        self._seconds = training.stall_seconds * training.round_steps

    def pull(self, step: int) -> Weights:
        """Return the state before the first step of a round.

        Raises:
            TimeoutError: Not all workers have added to it within the time of a round.
        """
        deadline, pause = time.monotonic() + self._seconds, _FIRST_PAUSE
        while True:
            _, state = self._client.ask("parameters", Request(step=step, rank=self._rank))
            if state is not None:
                return state
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the round before step {step} did not end within {self._seconds} s"
                    " (training.stall_seconds for each of training.round_steps)"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def push(self, step: int, deltas: Weights, granules: int) -> None:
        """Add this worker's difference up to a step (before minus after), weighted by granules."""
        request = Request(step=step, rank=self._rank, amount=float(granules))
        self._client.ask("update", request, deltas)


def rows_of(server: int, servers: int) -> Rows:
    """Return a server's rows of an array; servers differ by at most one row."""

    def rows(count: int) -> slice:
        return slice(count * server // servers, count * (server + 1) // servers)

    return rows


def shard(arrays: Mapping[str, np.ndarray], server: int, servers: int) -> Weights:
    """Return a server's rows, as views; leave out arrays without any.

    Arrays need at least one axis.
    """
    rows = rows_of(server, servers)
    parts = {name: array[rows(len(array))] for name, array in arrays.items()}
    return {name: part for name, part in parts.items() if len(part)}


def shard_shapes(shapes: Shapes, server: int, servers: int) -> Shapes:
    """Return the shapes of :func:`shard` for arrays of these shapes."""
    rows = rows_of(server, servers)
    parts = {
        name: (rows(count).stop - rows(count).start, *width)
        for name, (count, *width) in shapes.items()
    }
    return {name: shape for name, shape in parts.items() if shape[0]}


def join(shards: Sequence[Mapping[str, np.ndarray]]) -> Weights:
    """Return whole arrays from the shards of all servers: the inverse of :func:`shard`."""
    if len(shards) == 1:
        return dict(shards[0])
    # The last server's part is the largest, so it has rows of every array.
    return {
        name: np.concatenate([part[name] for part in shards if name in part]) for name in shards[-1]
    }


class ShardedParameters:
    """Parameters on several servers; see :class:`pipelines.training.asynchronous.Parameters`.

    Requests go to all servers at once. Each server counts its own updates, so a gradient is as old
    as its oldest rows.
    """

    def __init__(self, parts: Sequence[ServedParameters]) -> None:
        self._parts = parts
        self._threads = ThreadPoolExecutor(len(parts), "parameter-server")
        self._pulled = [0] * len(parts)

    def pull(self) -> tuple[Weights, int]:
        """Return the current weights, and the least number of updates of their rows."""
        responses = list(self._threads.map(ServedParameters.pull, self._parts))
        self._pulled = [updates for _, updates in responses]
        return join([weights for weights, _ in responses]), min(self._pulled)

    def push(self, step: int, gradients: Weights, learning_rate: float) -> int:
        """Request an update; return the updates of the oldest rows, this one included."""

        def push(server: int) -> int:
            part = shard(gradients, server, len(self._parts))
            return self._parts[server].push(step, part, learning_rate)

        pushed = self._threads.map(push, range(len(self._parts)))
        between = max(after - before for after, before in zip(pushed, self._pulled, strict=True))
        return min(self._pulled) + between

    def progress(self) -> Progress:
        """Return the common progress of all servers."""
        known = list(self._threads.map(ServedParameters.progress, self._parts))
        return Progress(
            applied=min(part.applied for part in known), saved=min(part.saved for part in known)
        )

    def state(self) -> tuple[Weights, Weights]:
        """Return the weights, and the optimiser's arrays as in a checkpoint."""
        states = list(self._threads.map(ServedParameters.state, self._parts))
        return join([weights for weights, _ in states]), join([moments for _, moments in states])

    def mark_saved(self, step: int) -> None:
        """Let the other workers go on from a step with a saved state."""
        # `list` waits for all servers and raises their errors.
        list(self._threads.map(lambda part: part.mark_saved(step), self._parts))
