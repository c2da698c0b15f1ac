"""The store in which Horovod's ranks find one another. Runs on the driver.

Horovod's own server listens at every address, is unauthenticated, and stays until the driver
exits. Its ranks speak HTTP to what they are told is the server's address, so that a token can be a
part of it: a request is for ``/TOKEN:0/SCOPE/KEY``.
"""

from __future__ import annotations

import json
import secrets
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from pipelines.training.control.authenticated_server import HELLO_SECONDS, TOKEN_BYTES, TokenServer

MAX_VALUE_BYTES = 2**20
"""A rank stores its addresses: some hundred bytes for each of the others."""


class Rendezvous(TokenServer):
    """The key-value store for one start of the ranks; a context manager.

    The token is the store's own, since the library writes addresses to the executors' logs when
    something fails.

    Args:
        host: Address by which the executors reach the driver.
        bind: Address to listen at.

    Raises:
        OSError: There is no such address here.
    """

    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, host: str, bind: str) -> None:
        self.token = secrets.token_hex(TOKEN_BYTES // 2)
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()
        super().__init__((bind, 0), _Request, token=self.token.encode())
        self.address: tuple[str, int] = (host, self.server_address[1])

    def __enter__(self) -> Rendezvous:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Request(BaseHTTPRequestHandler):
    """One request per connection; unauthenticated ones are not answered."""

    server: Rendezvous
    raw_requestline: bytes
    timeout = HELLO_SECONDS

    def parse_request(self) -> bool:
        """Reads the header of a request; only its first line if it is unauthenticated."""
        _, _, target = self.raw_requestline.partition(b" /")
        token, _, _ = target.partition(b":")
        return self.server.authenticate(self.request, token) and super().parse_request()

    def do_GET(self) -> None:
        """The value of a key, or 404 as long as it has none; all values of a scope as JSON."""
        if self.path.endswith("/"):
            return self._reply(HTTPStatus.OK, self._values_of(self.path))
        with self.server.lock:
            value = self.server.values.get(self.path)
        if value is None:
            return self._reply(HTTPStatus.NOT_FOUND)
        return self._reply(HTTPStatus.OK, value)

    def do_PUT(self) -> None:
        """Sets a key."""
        size = int(self.headers.get("Content-Length", "-1"))
        if not 0 <= size <= MAX_VALUE_BYTES:
            return self._reply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        value = self.rfile.read(size)
        if len(value) < size:
            return None  # Its sender is gone.
        with self.server.lock:
            self.server.values[self.path] = value
        return self._reply(HTTPStatus.OK)

    def do_DELETE(self) -> None:
        """Removes a key."""
        with self.server.lock:
            self.server.values.pop(self.path, None)
        self._reply(HTTPStatus.OK)

    def send_error(self, *_: Any) -> None:
        """Sends nothing: the library's answer would tell what serves here."""

    def log_message(self, *_: Any) -> None:
        """Writes nothing to the driver's screen."""

    def _values_of(self, scope: str) -> bytes:
        """Keys and values of a scope, the keys without the token."""
        root = "/".join(scope.split("/")[:2]) + "/"
        with self.server.lock:
            values = {
                path.removeprefix(root): value.decode()
                for path, value in self.server.values.items()
                if path.startswith(scope)
            }
        return json.dumps(values).encode()

    def _reply(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
