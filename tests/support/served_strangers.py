"""Servers of a run, and peers without its token that send them odd things; for fuzz tests."""

from __future__ import annotations

import socket
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from mutations import damaged, fuzzed
from unauthenticated import answer

from pipelines.training.control.authenticated_server import MAX_UNAUTHENTICATED, TOKEN_BYTES

TOKEN = "7" * TOKEN_BYTES
OTHER = b"8" * TOKEN_BYTES
HELLO_SECONDS = 0.3
"""What the servers of :func:`ends_waiting` have for their deadline."""
PATIENCE_SECONDS = 10.0
LITTLE_BYTES = 1 << 20
ANNOUNCED = (b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\x00" * 3 + b"\xff" * 5, b"g" + b"\xff" * 8)


@dataclass(frozen=True)
class Served:
    """A server of a run.

    Attributes:
        address: Where it listens.
        token: Of the run.
        talk: All that a worker sends, its token included.
        check: Fails unless a worker is served as ever; is called once.
    """

    address: tuple[str, int]
    token: bytes
    talk: bytes
    check: Callable[[], None]


def learns_nothing(served: Served) -> None:
    """Fails if anything comes back for a conversation that is damaged and has another token."""
    strange = damaged(served.talk.replace(served.token, OTHER)) | st.binary(max_size=300)

    @fuzzed
    @given(strange.filter(lambda message: served.token not in message))
    def visit(message: bytes) -> None:
        assert answer(served.address, message) == b""

    visit()


def allocates_little(served: Served) -> None:
    """Fails if lengths that a stranger announces, or much that it sends, are given memory."""
    much = OTHER + b"\xff" * (4 * LITTLE_BYTES)
    for message in (*(OTHER + length for length in ANNOUNCED), *ANNOUNCED, much):
        tracemalloc.start()
        try:
            assert answer(served.address, message) == b""
            assert tracemalloc.get_traced_memory()[1] < LITTLE_BYTES
        finally:
            tracemalloc.stop()


def ends_waiting(served: Served) -> None:
    """Fails unless who is silent, and who sends a byte now and then, are closed in time."""
    for piece in (b"", b"8"):
        with socket.create_connection(served.address, PATIENCE_SECONDS) as connection:
            connection.settimeout(HELLO_SECONDS / 5)
            began = time.monotonic()
            while is_open(connection, piece):
                assert time.monotonic() - began < PATIENCE_SECONDS


def is_open(connection: socket.socket, piece: bytes) -> bool:
    """Sends something; whether the other end has not hung up."""
    try:
        connection.sendall(piece)
        assert connection.recv(1) == b""
    except TimeoutError:
        return True
    except ConnectionError:
        pass
    return False


@contextmanager
def crowd(served: Served) -> Iterator[None]:
    """While more silent strangers are there than may be."""
    with ExitStack() as open_now:
        for _ in range(MAX_UNAUTHENTICATED + 10):
            with suppress(ConnectionError):
                open_now.enter_context(socket.create_connection(served.address, PATIENCE_SECONDS))
        yield
