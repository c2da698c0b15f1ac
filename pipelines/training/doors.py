"""Connections of a server of the run: who is let in, for how long, and how all of them end.

The server listens at an address that others may reach. A connection that has not shown the
token of the run is a stranger's: it may wait for a moment, among few.
"""

from __future__ import annotations

import hmac
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

logger = logging.getLogger(__name__)

TOKEN_BYTES = 64
HELLO_SECONDS = 10.0
STOP_SECONDS = 10.0
MOST_STRANGERS = 64


class Door(socketserver.TCPServer):
    """Serves each connection on a thread of its own; to be mixed into a server.

    When there are too many strangers the one that has waited longest has to go, and not the one
    that has just come: a worker shows its token at once.

    Args:
        arguments: Of the server.
        token: Of the run.
        settings: Of the server, by name.
    """

    daemon_threads = True

    def __init__(self, *arguments: Any, token: bytes, **settings: Any) -> None:
        self._token = token
        self._guard = threading.Lock()
        self._strangers: dict[socket.socket, float] = {}
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._ending = False
        super().__init__(*arguments, **settings)
        self._loop = threading.Thread(target=self._serve, name="door", daemon=True)

    def open(self) -> None:
        """Begins to serve."""
        self._loop.start()

    def close(self) -> None:
        """Ends every connection and every thread; nothing listens when it returns."""
        self._ending = True
        if self._loop.is_alive():
            self.shutdown()
        self.server_close()
        deadline = time.monotonic() + STOP_SECONDS
        with self._guard:
            open_now = dict(self._connections)
        for connection in open_now:
            _hang_up(connection)
        threads = [self._loop, *open_now.values()] if self._loop.ident else []
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        if any(thread.is_alive() for thread in threads):
            # Its connection is closed, and the error that ended the run is worth more.
            logger.warning("a thread of a server goes on after %s s", STOP_SECONDS)

    def belongs(self, connection: socket.socket, token: bytes) -> bool:
        """Whether a connection may stay: it has shown the token of the run."""
        if not hmac.compare_digest(token, self._token):
            return False
        with self._guard:
            self._strangers.pop(connection, None)
        return True

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serves a new connection on a thread."""
        thread = threading.Thread(
            target=self._attend, args=(request, client_address), name="door-connection", daemon=True
        )
        with self._guard:
            if len(self._strangers) >= MOST_STRANGERS:
                self._send_away(next(iter(self._strangers)))
            self._strangers[request] = time.monotonic()
            self._connections[request] = thread
            # Under the guard, so that nobody waits for a thread that could not be started.
            try:
                thread.start()
            except RuntimeError:
                del self._strangers[request], self._connections[request]
                raise

    def service_actions(self) -> None:
        """Sends strangers away that have waited too long; called by the loop now and then."""
        oldest = time.monotonic() - HELLO_SECONDS
        with self._guard:
            for connection, came in list(self._strangers.items()):
                if came < oldest:
                    self._send_away(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Takes the error of a connection, which ends with it."""
        logger.debug("a connection from %s broke", client_address, exc_info=True)

    def _serve(self) -> None:
        self.serve_forever(poll_interval=0.1)

    def _attend(self, request: socket.socket, client_address: Any) -> None:
        try:
            if not self._ending:
                self.finish_request(request, client_address)
        except Exception:  # noqa: BLE001 - as socketserver does: it ends this connection alone
            self.handle_error(request, client_address)
        finally:
            with self._guard:
                self._strangers.pop(request, None)
                self._connections.pop(request, None)
            self.shutdown_request(request)

    def _send_away(self, connection: socket.socket) -> None:
        del self._strangers[connection]
        _hang_up(connection)


class SocketDoor(Door):
    """Lets connections in that speak for themselves.

    Args:
        address: Address and port to listen at; port 0 is the system's choice.
        attend: Serves a connection until it ends.
        token: Of the run.
    """

    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        attend: Callable[[socket.socket], None],
        *,
        token: str,
    ) -> None:
        self.attend = attend
        super().__init__(address, _Connection, token=token.encode())


class _Connection(socketserver.BaseRequestHandler):
    server: SocketDoor

    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server.attend(self.request)


def _hang_up(connection: socket.socket) -> None:
    """Wakes the thread that reads from a connection: it reads the end."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
