"""Where requests are read and answered, whatever carries them."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator, Mapping

from pipelines.encoder.weights import Weights
from pipelines.training.doors import TOKEN_BYTES, Door, SocketDoor
from pipelines.training.parameter_server.keepers import Answer, Handler, Keeper
from pipelines.training.parameter_server.wire import (
    ACCEPTED,
    ANSWERED,
    ASKED,
    LENGTH,
    REFUSED,
    Asked,
    Form,
    ReadInto,
    read_exactly,
)

logger = logging.getLogger(__name__)


class Desk:
    """Reads requests of known forms and has them answered.

    Args:
        forms: The requests that are known, by name.
        handlers: What is done at each, by the same names; called from many threads.
    """

    def __init__(self, forms: Mapping[str, Form], handlers: Mapping[str, Handler]) -> None:
        self.forms = forms
        self._handlers = handlers
        self._received = threading.local()

    def take(self, name: str, readinto: ReadInto) -> Answer:
        """Reads a request of the size that is due, and does what it asks for.

        Raises:
            ValueError: It has another form, or is not due; nothing has changed.
            ConnectionError: It ends too early; nothing has changed.
        """
        asked = Asked(*ASKED.unpack(read_exactly(readinto, ASKED.size)))
        sends = self.forms[name].sends
        # A connection has a thread of its own, so these are the connection's arrays.
        arrays: Weights | None = getattr(self._received, name, None)
        if arrays is None:
            arrays = sends.new()
            setattr(self._received, name, arrays)
        sends.read(readinto, arrays)
        return self._handlers[name](asked, arrays)

    def size(self, name: str, answer: Answer) -> int:
        """Bytes of an answer."""
        brings = self.forms[name].brings
        return ANSWERED.size + (brings.size if answer.arrays is not None else 0)

    def chunks(self, name: str, answer: Answer) -> Iterator[bytes | memoryview]:
        """The bytes of an answer."""
        yield ANSWERED.pack(*answer.numbers)
        if answer.arrays is not None:
            yield from self.forms[name].brings.chunks(answer.arrays)


def answer_connection(connection: socket.socket, door: Door, desk: Desk) -> None:
    """Answers the requests of one connection until it ends.

    Each is a letter, a length of eight bytes and a body, once the token has been sent.
    """
    names = {form.letter: name for name, form in desk.forms.items()}
    with connection.makefile("rb") as lines:
        if not door.belongs(connection, lines.read(TOKEN_BYTES)):
            return
        while letter := lines.read(1):
            (size,) = LENGTH.unpack(read_exactly(lines.readinto, LENGTH.size))
            name = names.get(letter)
            if name is None or size != desk.forms[name].size:
                connection.sendall(REFUSED)
                return
            try:
                answer = desk.take(name, lines.readinto)
            except ValueError as error:
                logger.warning("refused %s: %s", name, error)
                connection.sendall(REFUSED)
                return
            connection.sendall(ACCEPTED + LENGTH.pack(desk.size(name, answer)))
            for chunk in desk.chunks(name, answer):
                connection.sendall(chunk)


class ParameterServer:
    """Serves parameters over sockets, to one at a time; a context manager.

    Attributes:
        address: Where it listens.

    Args:
        keeper: The parameters.
        address: Address and port to listen at.
        token: Of the run, of ``TOKEN_BYTES`` characters.

    Raises:
        OSError: It cannot listen there.
    """

    def __init__(self, keeper: Keeper, address: tuple[str, int], token: str) -> None:
        self._lock = threading.Lock()
        handlers = {
            name: self._locked(handler)
            for name, handler in {**keeper.reading, **keeper.writing}.items()
        }
        self._desk = Desk(keeper.forms, handlers)
        self._door = SocketDoor(address, self._attend, token=token)
        self.address = (address[0], self._door.server_address[1])

    def __enter__(self) -> ParameterServer:
        self._door.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._door.close()

    def _attend(self, connection: socket.socket) -> None:
        answer_connection(connection, self._door, self._desk)

    def _locked(self, handler: Handler) -> Handler:
        def locked(asked: Asked, arrays: Weights) -> Answer:
            with self._lock:
                return handler(asked, arrays)

        return locked
