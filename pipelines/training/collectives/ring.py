"""Collective operations over a ring of connections, authenticated by the run's token.

Runs on executors. Each worker sends to the next and receives from the one before. Arrays have one
part per worker, so a sum crosses every connection less than twice, for any number of workers. Each
part has one order of summation and travels on as bytes, so all workers have the same result, and
every run repeats it.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
Journal of Parallel and Distributed Computing 69 (2009).
"""

from __future__ import annotations

import math
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from pipelines.training.collectives.base import Collectives
from pipelines.training.control.authenticated_server import (
    TOKEN_BYTES,
    Identity,
    SocketTokenServer,
    connect,
)
from pipelines.training.parameter_server.server import fill, read_exactly

PAUSE_SECONDS = 0.1
BROKEN = "the ring to worker"
"""Part of every error of a broken ring; it survives when a framework wraps the error."""
# Received before the addition, and small enough for the processor's cache.
BLOCK_ELEMENTS = 1 << 18
# Workers gather arrays of similar sizes, since each has its part of the same step.
MOST_TIMES = 64
ALWAYS_BYTES = 1 << 24
_NUMBER = struct.Struct("!Q")

Array = np.ndarray[Any, np.dtype[Any]]


class Ring:
    """A worker's place in the ring; a context manager, which leaves the ring.

    It listens from the beginning, at its own address alone; :meth:`join` makes the ring.

    Args:
        addresses: Host and port of every worker, by rank; at least two.
        identity: Encrypts the connection of the worker before, if given.
        next_fingerprint: Of the next worker's certificate, if connections are encrypted.

    Raises:
        OSError: It cannot listen at its address.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        token: str,
        identity: Identity | None = None,
        next_fingerprint: str | None = None,
    ) -> None:
        self.rank = rank
        self.workers = len(addresses)
        self._addresses = addresses
        self._token = token
        self._arrived: Future[socket.socket] = Future()
        self._left = threading.Event()
        self._next_fingerprint = next_fingerprint
        self._server = SocketTokenServer(
            addresses[rank], self._attend, token=token, identity=identity
        )
        # A thread sends: if all workers first sent and then received, all would wait forever.
        self._sender = ThreadPoolExecutor(1, "ring-sender")
        self._next: socket.socket | None = None
        self._previous: socket.socket | None = None

    def __enter__(self) -> Ring:
        self._server.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._server.close()
        if self._next is not None:
            self._next.close()
        self._sender.shutdown(wait=False, cancel_futures=True)

    def join(self, start_seconds: float, wait_seconds: float) -> None:
        """Connect to the neighbours; return when all workers have connected to theirs.

        Args:
            start_seconds: Deadline for joining.
            wait_seconds: The longest wait of a later operation for a neighbour.

        Raises:
            TimeoutError: A neighbour is not there in time.
            OSError: A neighbour cannot be reached, or has left again.
            PipelineError: Another process is in the next worker's place.
        """
        deadline = time.monotonic() + start_seconds
        self._next = self._reach((self.rank + 1) % self.workers, deadline)
        self._next.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._next.sendall(self._token.encode() + _NUMBER.pack(self.rank))
        try:
            self._previous = self._arrived.result(max(deadline - time.monotonic(), 0.0))
        except TimeoutError:
            raise _late((self.rank - 1) % self.workers) from None
        # The neighbours may be connected long before the others: waits for all of them.
        self._limit_waits(max(deadline - time.monotonic(), PAUSE_SECONDS))
        try:
            self.gather(np.empty(0, np.uint8))
        except TimeoutError as error:
            raise TimeoutError("some workers did not join within training.start_seconds") from error
        self._limit_waits(wait_seconds)

    def sum(self, values: Array) -> Array:
        """Return the sum of the workers' arrays of one shape.

        Raises:
            TimeoutError: A neighbour was silent for too long.
            ConnectionError: A neighbour is gone.
        """
        # A copy in the order of C, so the flat parts are views of it.
        total = np.array(values, order="C")
        parts = np.array_split(total.reshape(-1), self.workers)
        self._reduce(parts)
        for hop in range(self.workers - 1):
            sent = self._send(parts[(self.rank - hop) % self.workers])
            self._receive(parts[(self.rank - hop - 1) % self.workers])
            sent.result()
        return total

    def reduce_scatter(self, values: Array) -> Array:
        """Return this worker's rows of the sum of the workers' arrays [workers x rows, ...].

        Raises:
            TimeoutError, ConnectionError: See :meth:`sum`.
            ValueError: The rows cannot be shared evenly.
        """
        parts = np.split(np.array(values, order="C"), self.workers)
        self._reduce([part.reshape(-1) for part in parts])
        return parts[self.rank]

    def gather(self, values: Array) -> Array:
        """Return the workers' arrays joined along the first axis, by rank; other axes are equal.

        Raises:
            TimeoutError, ConnectionError: See :meth:`sum`.
        """
        rows = np.ascontiguousarray(values)
        parts = {self.rank: rows}
        for hop in range(self.workers - 1):
            part = parts[(self.rank - hop) % self.workers]
            sent = self._send(np.frombuffer(_NUMBER.pack(len(part)), np.uint8), part)
            arrived = self._rows_like(rows)
            self._receive(arrived)
            parts[(self.rank - hop - 1) % self.workers] = arrived
            sent.result()
        return np.concatenate([parts[rank] for rank in range(self.workers)])

    def _rows_like(self, sample: Array) -> Array:
        """Return an array for the announced rows of the worker before; refuse too many."""
        announced = np.empty(_NUMBER.size, np.uint8)
        self._receive(announced)
        (rows,) = _NUMBER.unpack(announced.tobytes())
        size = rows * math.prod(sample.shape[1:]) * sample.itemsize
        # Before the allocation: the number comes from the network.
        if size > max(MOST_TIMES * sample.nbytes, ALWAYS_BYTES):
            before = (self.rank - 1) % self.workers
            raise ConnectionError(f"{BROKEN} {before} broke (it announces {size} bytes)")
        return np.empty((rows, *sample.shape[1:]), sample.dtype)

    def _reduce(self, parts: Sequence[Array]) -> None:
        """Make this worker's part the sum; leave other parts undefined.

        The sum of a part begins at the worker after its owner, and reaches the owner last.
        """
        for hop in range(1, self.workers):
            sent = self._send(parts[(self.rank - hop) % self.workers])
            sum_so_far = parts[(self.rank - hop - 1) % self.workers]
            for start in range(0, len(sum_so_far), BLOCK_ELEMENTS):
                block = sum_so_far[start : start + BLOCK_ELEMENTS]
                arrived = np.empty_like(block)
                self._receive(arrived)
                block += arrived
            sent.result()

    @property
    def _joined(self) -> socket.socket:
        if self._previous is None:
            raise ConnectionError(f"worker {self.rank} has not joined the ring")
        return self._previous

    def _send(self, *arrays: Array) -> Future[None]:
        """Send contiguous arrays to the next worker, while this one receives."""
        return self._sender.submit(self._send_now, arrays)

    def _send_now(self, arrays: Sequence[Array]) -> None:
        if self._next is None:
            raise ConnectionError(f"worker {self.rank} has not joined the ring")
        with _errors_name((self.rank + 1) % self.workers):
            for array in arrays:
                self._next.sendall(array.reshape(-1).view(np.uint8).data)

    def _receive(self, array: Array) -> None:
        joined = self._joined
        with _errors_name((self.rank - 1) % self.workers):
            fill(joined.recv_into, array.reshape(-1).view(np.uint8).data)

    def _limit_waits(self, seconds: float) -> None:
        """Limit the silence of each neighbour."""
        for neighbour in (self._next, self._previous):
            if neighbour is not None:
                neighbour.settimeout(seconds)

    def _reach(self, rank: int, deadline: float) -> socket.socket:
        while True:
            left = deadline - time.monotonic()
            try:
                # Zero would make the socket non-blocking.
                return connect(self._addresses[rank], max(left, 0.001), self._next_fingerprint)
            except ConnectionRefusedError:
                time.sleep(PAUSE_SECONDS)
            except TimeoutError:
                raise _late(rank) from None
            if time.monotonic() > deadline:
                raise _late(rank)

    def _attend(self, connection: socket.socket) -> None:
        """Keep the connection of the worker before, and close any other."""
        if not self._server.authenticate(
            connection, read_exactly(connection.recv_into, TOKEN_BYTES)
        ):
            return
        (rank,) = _NUMBER.unpack(read_exactly(connection.recv_into, _NUMBER.size))
        if rank == (self.rank - 1) % self.workers and not self._arrived.done():
            self._arrived.set_result(connection)
            # The server closes the connection when this returns.
            self._left.wait()


class RingCollectives(Collectives):
    """Collectives on numpy arrays in a joined ring; see :class:`.base.Collectives`."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self.rank, self.workers = ring.rank, ring.workers

    def all_reduce_mean(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the mean of each array over the workers."""
        return [self._ring.sum(np.asarray(tensor)) / self.workers for tensor in tensors]

    def all_gather(self, tensor: Any) -> Any:
        """Return the workers' arrays joined along the first axis, in the order of the ranks."""
        return self._ring.gather(np.asarray(tensor))

    def reduce_scatter(self, tensor: Any) -> Any:
        """See :meth:`pipelines.training.collectives.base.Collectives.reduce_scatter`."""
        return self._ring.reduce_scatter(np.asarray(tensor))


def gather_bytes(gather: Callable[[Array], Array], data: Array) -> Array:
    """Return the workers' bytes, uint8 [n] of each, by rank; any worker may have none.

    Gathers blocks, since :meth:`Ring.gather` accepts no larger array beside an empty one. All
    workers call it at once.
    """
    sizes = np.asarray(gather(np.array([len(data)], np.int64)))
    parts: list[list[Array]] = [[] for _ in sizes]
    for start in range(0, int(sizes.max()), ALWAYS_BYTES):
        block = np.asarray(gather(data[start : start + ALWAYS_BYTES]))
        ends = np.cumsum(np.clip(sizes - start, 0, ALWAYS_BYTES))
        for part, piece in zip(parts, np.split(block, ends[:-1]), strict=True):
            part.append(piece)
    return np.concatenate([data[:0], *(piece for part in parts for piece in part)])


@contextmanager
def _errors_name(rank: int) -> Iterator[None]:
    """Name the worker at the other end in the errors of a connection."""
    try:
        yield
    except OSError as error:
        kind = TimeoutError if isinstance(error, TimeoutError) else ConnectionError
        raise kind(f"{BROKEN} {rank} broke ({error})") from error


def _late(rank: int) -> TimeoutError:
    return TimeoutError(f"worker {rank} did not join within training.start_seconds")
