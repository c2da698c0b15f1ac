"""How the nodes of a run find one another: the library's registration, for this run alone.

The library's server listens at every address of the driver, is unauthenticated, unpickles whatever
is sent, and tells where the nodes are and with what key their queues are reached. Here a connection
begins with the token of the run, and messages are Python literals.
"""

from __future__ import annotations

import ast
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pipelines.quiet import quiet_import
from pipelines.training.control.authenticated_server import TOKEN_BYTES, SocketTokenServer
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
# Of a node: host and port of every node, once all have registered.
_addresses: dict[int, tuple[str, int]] = {}


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
    """

    def __init__(self, count: int, host: str, bind: str, token: str) -> None:
        super().__init__(count)
        self._host = host
        self._server = SocketTokenServer((bind, 0), self._attend, token=token)
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
    """

    def __init__(self, server_addr: tuple[str, int], token: str) -> None:
        self.server_addr = server_addr
        self.sock = socket.create_connection(server_addr, CONNECT_SECONDS)
        self.sock.sendall(token.encode())

    def register(self, reservation: dict[str, Any]) -> Any:
        """Registers a node, with the address by which it has reached the driver."""
        return super().register(reservation | {"address": self.sock.getsockname()[0]})

    def get_reservations(self) -> list[dict[str, Any]]:
        """The nodes that have registered."""
        nodes: list[dict[str, Any]] = super().get_reservations()
        _addresses.update({one["executor_id"]: (one["address"], one["port"]) for one in nodes})
        return nodes

    def _request(self, msg_type: str, msg_data: Any = None) -> Any:
        _send(self.sock, (msg_type, msg_data))
        return _receive(self.sock.recv_into)


def join_run(token: str) -> None:
    """Has the library of this process register with a run. Runs on an executor."""
    reservation.Client = lambda address: RegistrationClient(address, token)
    TFManager.start = _start_local_manager


def node_address(number: int) -> tuple[str, int]:
    """Host and port of a node, for the others. Runs on an executor, when all have registered.

    The host is not the library's, which is that of the route to the public internet.
    """
    return _addresses[number]


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
