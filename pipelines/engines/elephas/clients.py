"""Elephas's clients of a parameter server, with one connection per worker. Run on an executor."""

from __future__ import annotations

import http.client
import socket
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from pipelines.quiet import quiet_import

# The library imports TensorFlow, which greets on standard error.
with quiet_import():
    from elephas.parameter.client import BaseParameterClient, HttpClient, SocketClient

from pipelines.encoder.weights import Weights
from pipelines.engines.elephas.wire import (
    ACCEPTED,
    ANSWERED,
    ASKED,
    LENGTH,
    Answered,
    Asked,
    Form,
    ReadInto,
    read_exactly,
)


class GranuleClient(BaseParameterClient):  # type: ignore[misc] # the library has no types
    """What both clients share; mixed into those of Elephas.

    It is pickled on the driver, and connects with its first request.
    """

    address: tuple[str, int]
    token: str
    forms: dict[str, Form]
    seconds: float

    def __init__(self, port: int) -> None:
        # Not the library's, which looks up a name of this host that need not be known.
        self.address = ("", port)
        self._connection: Any = None

    def reach(
        self, address: tuple[str, int], token: str, forms: dict[str, Form], seconds: float
    ) -> None:
        """Takes what the library's constructor does not know.

        Args:
            address: Host and port of the server.
            token: Of the run.
            forms: The requests that the server knows.
            seconds: The longest that a request may wait for the server.
        """
        self.address = address
        self.token = token
        self.forms = forms
        self.seconds = seconds

    def get_parameters(self, asked: Asked) -> tuple[Answered, Weights | None]:
        """The parameters, or None where they are not there yet."""
        return self.ask("parameters", asked)

    def update_parameters(self, delta: Weights, asked: Asked) -> Answered:
        """Has the parameters updated; returns when they have been."""
        return self.ask("update", asked, delta)[0]

    def ask(
        self, name: str, asked: Asked, arrays: Weights | None = None
    ) -> tuple[Answered, Weights | None]:
        """Sends a request and waits for its answer.

        Raises:
            OSError: The server cannot be reached, or the connection ended.
            ValueError: The answer has another form.
        """
        form = self.forms[name]
        size, readinto = self.converse(name, form.size, self._chunks(form, asked, arrays))
        numbers = Answered(*ANSWERED.unpack(read_exactly(readinto, ANSWERED.size)))
        if size == ANSWERED.size:
            return numbers, None
        if size != ANSWERED.size + form.brings.size:
            raise ValueError(f"the parameter server sent {size} bytes for `{name}`")
        brought = form.brings.new()
        form.brings.read(readinto, brought)
        return numbers, brought

    @abstractmethod
    def converse(
        self, name: str, size: int, chunks: Iterator[bytes | memoryview]
    ) -> tuple[int, ReadInto]:
        """Sends the bytes of a request; gives the size of the answer and the way to read it."""

    def _chunks(
        self, form: Form, asked: Asked, arrays: Weights | None
    ) -> Iterator[bytes | memoryview]:
        yield ASKED.pack(*asked)
        yield from form.sends.chunks(arrays or {})


class GranuleHttpClient(GranuleClient, HttpClient):  # type: ignore[misc] # the library has no types
    """Over HTTP, on a connection that is kept."""

    def converse(
        self, name: str, size: int, chunks: Iterator[bytes | memoryview]
    ) -> tuple[int, ReadInto]:
        """See :class:`GranuleClient`."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection(*self.address, timeout=self.seconds)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Length": str(size)}
        self._connection.request("POST", f"/{name}", chunks, headers)
        response = self._connection.getresponse()
        if response.status != 200 or response.length is None:
            raise ConnectionError(f"the parameter server refused `{name}` ({response.status})")
        return response.length, response.readinto


class GranuleSocketClient(GranuleClient, SocketClient):  # type: ignore[misc] # the library has no types
    """Over one TCP connection."""

    def converse(
        self, name: str, size: int, chunks: Iterator[bytes | memoryview]
    ) -> tuple[int, ReadInto]:
        """See :class:`GranuleClient`."""
        if self._connection is None:
            self._connection = socket.create_connection(self.address, timeout=self.seconds)
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connection.sendall(self.token.encode())
        self._connection.sendall(self.forms[name].letter + LENGTH.pack(size))
        for chunk in chunks:
            self._connection.sendall(chunk)
        readinto: ReadInto = self._connection.recv_into
        if read_exactly(readinto, 1) != ACCEPTED:
            raise ConnectionError(f"the parameter server refused `{name}`")
        return LENGTH.unpack(read_exactly(readinto, LENGTH.size))[0], readinto
