"""Connections of a server of the run: authentication, its limits, and the end of them all.

The server listens at an address that others may reach. A connection that has not sent the token
of the run is unauthenticated: of these there may be few, for a few seconds each. Where the cluster
encrypts, a connection shakes hands by TLS first, in the same seconds and on its own thread.
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

from pipelines.training.control.encryption import Identity
from pipelines.training.control.tls_socket import TlsSocket

logger = logging.getLogger(__name__)

TOKEN_BYTES = 64
HELLO_SECONDS = 10.0
STOP_SECONDS = 10.0
MAX_UNAUTHENTICATED = 64
UNHEARD_SECONDS = 30
"""How long one end of a connection may be cut off, or suspended, before the other closes it."""

_PROBES = 4


class TokenServer(socketserver.TCPServer):
    """Serves each connection on a thread of its own; to be mixed into a server.

    When there are too many unauthenticated connections the oldest is closed, and not the newest: a
    worker sends its token at once.

    Args:
        arguments: Of the server.
        token: Of the run.
        identity: With which connections are encrypted, if they are.
        settings: Of the server, by name.
    """

    daemon_threads = True

    def __init__(
        self, *arguments: Any, token: bytes, identity: Identity | None = None, **settings: Any
    ) -> None:
        self._token = token
        self._identity = identity
        self._guard = threading.Lock()
        self._unauthenticated: dict[socket.socket, float] = {}
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._ending = False
        super().__init__(*arguments, **settings)
        self._loop = threading.Thread(target=self._serve, name="token-server", daemon=True)

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
            _shut_down(connection)
        threads = [self._loop, *open_now.values()] if self._loop.ident else []
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        if any(thread.is_alive() for thread in threads):
            # Its connection is closed, and an error here would hide the one that ended the run.
            logger.warning("a thread of a server goes on after %s s", STOP_SECONDS)

    def authenticate(self, connection: socket.socket, token: bytes) -> bool:
        """Whether the token is that of the run; if not, the caller closes the connection."""
        if not hmac.compare_digest(token, self._token):
            return False
        with self._guard:
            self._unauthenticated.pop(connection, None)
        return True

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accepts a connection; nothing is read from it yet, and nothing sent."""
        request, address = super().get_request()
        return request if self._identity is None else self._identity.guard(request), address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serves a new connection on a thread."""
        thread = threading.Thread(
            target=self._attend,
            args=(request, client_address),
            name="connection",
            daemon=True,
        )
        with self._guard:
            if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
                self._close_unauthenticated(next(iter(self._unauthenticated)))
            self._unauthenticated[request] = time.monotonic()
            self._connections[request] = thread
            # Under the guard, so that `close` waits for no thread that could not be started.
            try:
                thread.start()
            except RuntimeError:
                del self._unauthenticated[request], self._connections[request]
                raise

    def service_actions(self) -> None:
        """Closes connections that are unauthenticated for too long; called by the server's loop."""
        oldest = time.monotonic() - HELLO_SECONDS
        with self._guard:
            for connection, came in list(self._unauthenticated.items()):
                if came < oldest:
                    self._close_unauthenticated(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs the error of a connection, which ends with it."""
        logger.debug("a connection from %s broke", client_address, exc_info=True)

    def _serve(self) -> None:
        self.serve_forever(poll_interval=0.1)

    def _attend(self, request: socket.socket, client_address: Any) -> None:
        try:
            if not self._ending:
                if isinstance(request, TlsSocket):
                    # The server's loop ends the wait for it with that for the token.
                    request.shake_hands()
                self.finish_request(request, client_address)
        except Exception:  # noqa: BLE001 - as socketserver does: it ends this connection alone
            self.handle_error(request, client_address)
        finally:
            with self._guard:
                self._unauthenticated.pop(request, None)
                self._connections.pop(request, None)
            self.shutdown_request(request)

    def _close_unauthenticated(self, connection: socket.socket) -> None:
        del self._unauthenticated[connection]
        _shut_down(connection)


class SocketTokenServer(TokenServer):
    """Serves connections whose handler authenticates them.

    Args:
        address: Address and port to listen at; port 0 is the system's choice.
        attend: Serves a connection until it ends.
        token: Of the run.
        identity: With which connections are encrypted, if they are.
    """

    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        attend: Callable[[socket.socket], None],
        *,
        token: str,
        identity: Identity | None = None,
    ) -> None:
        self.attend = attend
        super().__init__(address, _Connection, token=token.encode(), identity=identity)


class _Connection(socketserver.BaseRequestHandler):
    server: SocketTokenServer

    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        detect_cut_connection(self.request)
        self.server.attend(self.request)


def detect_cut_connection(connection: socket.socket) -> None:
    """Has the system end a connection whose other end is cut off, whether anything is sent or not.

    By default it probes after two hours for the first time, and repeats what is not acknowledged
    for a quarter of an hour.
    """
    pause = UNHEARD_SECONDS // (_PROBES + 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, pause),
        (socket.TCP_KEEPINTVL, pause),
        (socket.TCP_KEEPCNT, _PROBES),
        (socket.TCP_USER_TIMEOUT, 1000 * UNHEARD_SECONDS),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _shut_down(connection: socket.socket) -> None:
    """Wakes the thread that reads from a connection: it reads the end."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
