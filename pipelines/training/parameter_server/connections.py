"""Reads requests and answers them, over any transport."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator, Mapping

from pipelines.models.weights import Weights
from pipelines.training.control.authenticated_server import (
    TOKEN_BYTES,
    Identity,
    SocketTokenServer,
    TokenServer,
)
from pipelines.training.parameter_server.updates import (
    ACCEPTED,
    LENGTH,
    REFUSED,
    REQUEST,
    RESPONSE,
    Form,
    Handler,
    ParameterStore,
    ReadInto,
    Request,
    Response,
    read_exactly,
)

logger = logging.getLogger(__name__)


class RequestHandler:
    """Reads requests of known forms and has them answered.

    Args:
        forms: The requests that are known, by name.
        handlers: What is done at each, by the same names; called from many threads.
    """

    def __init__(self, forms: Mapping[str, Form], handlers: Mapping[str, Handler]) -> None:
        self.forms = forms
        self._handlers = handlers
        self._received = threading.local()

    def handle(self, name: str, readinto: ReadInto) -> Response:
        """Reads a request of the size that is due, and does what it asks for.

        Raises:
            ValueError: It has another form, or is not due; nothing has changed.
            ConnectionError: It ends too early; nothing has changed.
        """
        request = Request(*REQUEST.unpack(read_exactly(readinto, REQUEST.size)))
        sends = self.forms[name].sends
        # A connection has a thread of its own, so these are the connection's arrays.
        arrays: Weights | None = getattr(self._received, name, None)
        if arrays is None:
            arrays = sends.new()
            setattr(self._received, name, arrays)
        sends.read(readinto, arrays)
        return self._handlers[name](request, arrays)

    def size(self, name: str, response: Response) -> int:
        """Bytes of a response."""
        brings = self.forms[name].brings
        return RESPONSE.size + (brings.size if response.arrays is not None else 0)

    def chunks(self, name: str, response: Response) -> Iterator[bytes | memoryview]:
        """The bytes of a response."""
        yield RESPONSE.pack(*response.header)
        if response.arrays is not None:
            yield from self.forms[name].brings.chunks(response.arrays)


def answer_connection(
    connection: socket.socket, server: TokenServer, handler: RequestHandler
) -> None:
    """Answers the requests of one connection until it ends.

    Each is a letter, a length of eight bytes and a body, once the token has been sent.
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
                response = handler.handle(name, lines.readinto)
            except ValueError as error:
                logger.warning("refused %s: %s", name, error)
                connection.sendall(REFUSED)
                return
            connection.sendall(ACCEPTED + LENGTH.pack(handler.size(name, response)))
            for chunk in handler.chunks(name, response):
                connection.sendall(chunk)


class ParameterServer:
    """Serves parameters over sockets, one request at a time; a context manager.

    Attributes:
        address: Where it listens.

    Args:
        store: The parameters.
        address: Address and port to listen at.
        token: Of the run, of ``TOKEN_BYTES`` characters.
        identity: With which connections are encrypted, if they are.

    Raises:
        OSError: It cannot listen there.
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
        def locked(request: Request, arrays: Weights) -> Response:
            with self._lock:
                return handler(request, arrays)

        return locked
