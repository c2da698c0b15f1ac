"""How the nodes of a run find one another: the library's registration, for this run alone.

The library's server listens at every address of the driver, is unauthenticated, unpickles whatever
is sent, and tells where the nodes are and with what key their queues are reached. Here a connection
begins with the token of the run, and messages are Python literals. Where the cluster encrypts, a
node registers the fingerprint of a certificate of its own, which the others know it by.
"""

from __future__ import annotations

import ast
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pipelines.quiet import quiet_import
from pipelines.training.control.authenticated_server import TOKEN_BYTES, SocketTokenServer
from pipelines.training.control.encryption import Identity, connect, make_identity
from pipelines.training.parameter_server.messages import ReadInto, read_exactly

# The library imports TensorFlow, which greets on standard error, and pkg_resources, which warns.
with quiet_import():
    from tensorflowonspark import TFManager, reservation

CONNECT_SECONDS = 20.0
MAX_MESSAGE_BYTES = 1 << 24
_LENGTH = struct.Struct("!I")


_library_server = reservation.Server
_library_manager = TFManager.start
_patching = threading.Lock()


@dataclass(frozen=True)
class NodePlace:
    """Where a node of the run is.

    Attributes:
        address: Host and port. The host is not the library's, which is that of the route to the
            public internet.
        fingerprint: Of its certificate; none where connections are not encrypted.
    """

    address: tuple[str, int]
    fingerprint: str | None


# Of a node: every node of the run, once all have registered.
_places: dict[int, NodePlace] = {}
_own_identity: Identity | None = None


@contextmanager
def registering_at(server: RegistrationServer, seconds: float) -> Iterator[None]:
    """Has the cluster that the library starts register at a server. Runs on the driver.

    Args:
        server: Where they register.
        seconds: The longest that another run may take to start its cluster.

    Raises:
        TimeoutError: It has taken longer.
    """
    if not _patching.acquire(timeout=seconds):
        raise TimeoutError(f"another run has been starting its nodes for {seconds:.0f} s")
    reservation.Server = lambda count: server
    try:
        yield
    finally:
        reservation.Server = _library_server
        _patching.release()


class RegistrationServer(reservation.Server):  # type: ignore[misc] # the library has no types
    """Takes the nodes' registrations; a context manager. Runs on the driver.

    Nodes ask it until all have registered, so it lives as long as the run.

    Args:
        count: How many nodes there will be.
        host: Address by which the executors reach the driver.
        bind: Address to listen at.
        token: Of the run.
        identity: With which connections are encrypted, if they are.
    """

    def __init__(
        self, count: int, host: str, bind: str, token: str, identity: Identity | None = None
    ) -> None:
        super().__init__(count)
        self._host = host
        self._server = SocketTokenServer((bind, 0), self._attend, token=token, identity=identity)
        self._answers: dict[str, Callable[[Any], Any]] = {
            "REG": self.reservations.add,
            "QUERY": lambda _: self.reservations.done(),
            "QINFO": lambda _: self.reservations.get(),
        }

    def __enter__(self) -> RegistrationServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> tuple[str, int]:
        """Begins to listen; returns where nodes find it."""
        self._server.open()
        return self._host, self._server.server_address[1]

    def stop(self) -> None:
        """Ends all connections; nothing listens when it returns."""
        self._server.close()

    def _attend(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            if not self._server.authenticate(connection, lines.read(TOKEN_BYTES)):
                return
            while True:
                kind, data = _receive(lines.readinto)
                _send(connection, self._answers[kind](data))


class RegistrationClient(reservation.Client):  # type: ignore[misc] # the library has no types
    """A node's connection to the registration. Runs on an executor.

    Args:
        server_addr: Host and port of the server.
        token: Of the run.
        fingerprint: Of the server's certificate; none where connections are not encrypted.
    """

    def __init__(
        self, server_addr: tuple[str, int], token: str, fingerprint: str | None = None
    ) -> None:
        self.server_addr = server_addr
        self._encrypts = fingerprint is not None
        self.sock = connect(server_addr, CONNECT_SECONDS, fingerprint)
        self.sock.sendall(token.encode())

    def register(self, reservation: dict[str, Any]) -> Any:
        """Registers a node, with the address by which it has reached the driver."""
        global _own_identity  # noqa: PLW0603 - the library hands nothing from here to the node
        _own_identity = make_identity() if self._encrypts else None
        known = {
            "address": self.sock.getsockname()[0],
            "fingerprint": _own_identity and _own_identity.fingerprint,
        }
        return super().register(reservation | known)

    def get_reservations(self) -> list[dict[str, Any]]:
        """The nodes that have registered."""
        nodes: list[dict[str, Any]] = super().get_reservations()
        for one in nodes:
            address = (one["address"], one["port"])
            _places[one["executor_id"]] = NodePlace(address, one["fingerprint"])
        return nodes

    def _request(self, msg_type: str, msg_data: Any = None) -> Any:
        _send(self.sock, (msg_type, msg_data))
        return _receive(self.sock.recv_into)


def join_run(token: str, fingerprint: str | None = None) -> None:
    """Has the library of this process register with a run. Runs on an executor.

    Args:
        token: Of the run.
        fingerprint: Of the driver's certificate; none where connections are not encrypted.
    """
    reservation.Client = lambda address: RegistrationClient(address, token, fingerprint)
    TFManager.start = _start_local_manager


def node_place(number: int) -> NodePlace:
    """Where a node is, for the others. Runs on an executor, when all have registered."""
    return _places[number]


def own_identity() -> Identity | None:
    """What this node's server encrypts with, if it does. Runs on an executor.

    It was made when the node registered, in this process or in one that this one was forked from.
    """
    return _own_identity


def _start_local_manager(authkey: bytes, queues: list[str], mode: str = "local") -> Any:
    """Starts a node's manager for this host alone.

    The library lets those of parameter servers listen at every address, so that the driver can
    end them; here the nodes end them.
    """
    return _library_manager(authkey, queues)


def _send(connection: socket.socket, message: Any) -> None:
    """Sends plain values: numbers, strings, bytes, and tuples, lists and dicts of them."""
    data = repr(message).encode()
    connection.sendall(_LENGTH.pack(len(data)) + data)


def _receive(readinto: ReadInto) -> Any:
    """The values of the next message.

    Raises:
        ConnectionError: There is none.
        ValueError: It is too long, or none of :func:`_send`.
    """
    (size,) = _LENGTH.unpack(read_exactly(readinto, _LENGTH.size))
    if size > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {size} bytes")
    return ast.literal_eval(read_exactly(readinto, size).decode())
