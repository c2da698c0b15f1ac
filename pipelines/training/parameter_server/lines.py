"""A worker's line to a parameter server. Runs on an executor."""

from __future__ import annotations

import http.client
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.encoder.weights import Weights
from pipelines.training.parameter_server.wire import (
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


class Line(ABC):
    """One connection, made with the first request; can be pickled before it.

    Args:
        address: Host and port of the server.
        token: Of the run.
        forms: The requests that the server knows.
        seconds: The longest that a request may wait for the server.
    """

    def __init__(
        self, address: tuple[str, int], token: str, forms: Mapping[str, Form], seconds: float
    ) -> None:
        self.address = address
        self.token = token
        self.forms = forms
        self.seconds = seconds
        self._connection: Any = None

    def ask(
        self, name: str, asked: Asked, arrays: Weights | None = None
    ) -> tuple[Answered, Weights | None]:
        """Sends a request and waits for its answer.

        Args:
            name: Of the request.
            asked: Its numbers.
            arrays: Its arrays, if it has any.

        Returns:
            The numbers of the answer, and its arrays if it has any.

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


class HttpLine(Line):
    """Over HTTP, on a connection that is kept."""

    def converse(
        self, name: str, size: int, chunks: Iterator[bytes | memoryview]
    ) -> tuple[int, ReadInto]:
        """See :class:`Line`."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection(*self.address, timeout=self.seconds)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Length": str(size)}
        self._connection.request("POST", f"/{name}", chunks, headers)
        response = self._connection.getresponse()
        if response.status != 200 or response.length is None:
            raise ConnectionError(f"the parameter server refused `{name}` ({response.status})")
        return response.length, response.readinto


class SocketLine(Line):
    """Over one TCP connection."""

    def converse(
        self, name: str, size: int, chunks: Iterator[bytes | memoryview]
    ) -> tuple[int, ReadInto]:
        """See :class:`Line`."""
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
