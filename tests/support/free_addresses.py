"""Addresses for servers of tests that must be told where to listen."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def free_addresses(count: int) -> Iterator[list[tuple[str, int]]]:
    """Ports on loopback at which rings may listen, and nobody else meanwhile."""
    with ExitStack() as held:
        found = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            # Bound and not listening, it keeps the system from giving the port to another.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", 0))
        yield [one.getsockname() for one in found]
