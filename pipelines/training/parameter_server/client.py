"""A worker's connection to a parameter server. Runs on an executor."""

from __future__ import annotations

import errno
import http.client
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from typing_extensions import override

from pipelines.models.weights import Weights
from pipelines.training.control.encryption import connect
from pipelines.training.parameter_server.messages import (
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
    """Whether an error of a client says that the server is gone, or the network to it."""
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return True
    return isinstance(error, ConnectionError | TimeoutError) and _REFUSED not in str(error)


class Client(ABC):
    """One connection, made with the first request; can be pickled before it.

    Args:
        address: Host and port of the server.
        token: Of the run.
        forms: The requests that the server knows.
        seconds: The longest that a request may wait for the server.
        fingerprint: Of the server's certificate; none where connections are not encrypted.
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
        """Sends a request and waits for its response.

        Args:
            name: Of the request.
            request: Its header.
            arrays: Its arrays, if it has any.

        Returns:
            The header of the response, and its arrays if it has any.

        Raises:
            OSError: The server cannot be reached, or the connection ended.
            PipelineError: Another process is where the server should be.
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
        """Sends the bytes of a request; returns the size of the response and how to read it."""

    def _chunks(
        self, form: Form, request: Request, arrays: Weights | None
    ) -> Iterator[bytes | memoryview]:
        yield REQUEST.pack(*request)
        yield from form.sends.chunks(arrays or {})


class HttpClient(Client):
    """Over HTTP, on a connection that is kept."""

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
    """Over one TCP connection."""

    def converse(
        self, name: str, size: int, chunks: Iterator[bytes | memoryview]
    ) -> tuple[int, ReadInto]:
        """See :class:`Client`."""
        if self._connection is None:
            self._connection = connect(self.address, self.seconds, self.fingerprint)
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
    """Connects as every client of the run does, again too: http.client would not encrypt then."""

    def __init__(self, client: Client) -> None:
        super().__init__(*client.address)
        self._client = client

    @override
    def connect(self) -> None:
        client = self._client
        self.sock = connect(client.address, client.seconds, client.fingerprint)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
