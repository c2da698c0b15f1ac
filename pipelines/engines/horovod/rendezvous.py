"""The store for the meeting of Horovod's ranks. Runs on the driver.

Horovod's own server listens at every address, is unauthenticated, and stays until the driver exits.
Its ranks speak HTTP to any given server address, and the address can contain a token: a request is
for ``/TOKEN:0/SCOPE/KEY``.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple, TypeVar

from pipelines.errors import PipelineError
from pipelines.runs.run import WorkerTask
from pipelines.training.control.authenticated_server import HELLO_SECONDS, TOKEN_BYTES, TokenServer

REQUEST_SECONDS = 20.0
REQUEST_ATTEMPTS = 3
RETRY_SECONDS = 0.3


class Place(NamedTuple):
    """A rank's host, and its executor's GPUs in the form of ``CUDA_VISIBLE_DEVICES``."""

    host: str
    devices: str


class RendezvousClient:
    """A rank's access to the driver's store; a connection for each request.

    After a request, `own_address` is this host's address on the network of the store.
    """

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self._host, self._port = address
        self._token = token
        self.own_address = ""

    def put(self, key: str, value: str) -> None:
        """Set a key."""
        self._request("PUT", key, value)

    def get_all(self, scope: str) -> dict[str, str]:
        """Return the values of all keys in a scope; a scope ends in a slash."""
        values: dict[str, str] = json.loads(self._request("GET", scope))
        return values

    def environment(self) -> dict[str, str]:
        """Return Horovod's variables for the address of the store.

        The library appends ``:PORT/`` to the address for a path, so the token becomes a part of the
        path.
        """
        return {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": f"{self._host}:{self._port}/{self._token}",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": "0",
        }

    def _request(self, method: str, key: str, body: str | None = None) -> str:
        """Send a request, and repeat it for a busy driver, like Horovod."""
        for _ in range(REQUEST_ATTEMPTS - 1):
            with suppress(OSError, HTTPException):
                return self._request_once(method, key, body)
            time.sleep(RETRY_SECONDS)
        return self._request_once(method, key, body)

    def _request_once(self, method: str, key: str, body: str | None) -> str:
        connection = HTTPConnection(self._host, self._port, timeout=REQUEST_SECONDS)
        try:
            connection.connect()
            self.own_address = connection.sock.getsockname()[0]
            connection.request(method, f"/{self._token}:0/{key}", body)
            return connection.getresponse().read().decode()
        finally:
            connection.close()


Where = TypeVar("Where", bound=tuple[Any, ...])
"""A named tuple of JSON values."""


def meet(client: RendezvousClient, task: WorkerTask, place: Where, seconds: float) -> list[Where]:
    """Store this rank's place, and wait for those of all ranks; return them by rank.

    Raises:
        PipelineError: Some ranks are missing.
    """
    deadline = time.monotonic() + seconds
    keys = [f"places/{rank}" for rank in range(task.workers)]
    client.put(keys[task.rank], json.dumps(place))
    while len(stored := client.get_all("places/")) < task.workers:
        if time.monotonic() > deadline:
            late = [rank for rank, key in enumerate(keys) if key not in stored]
            raise PipelineError(f"ranks {late} did not arrive within {seconds:.0f} s")
        time.sleep(RETRY_SECONDS)
    return [type(place)(*json.loads(stored[key])) for key in keys]


MAX_VALUE_BYTES = 2**20
"""A rank stores its addresses: a few hundred bytes for each of the others."""


class Rendezvous(TokenServer):
    """The key-value store for one start of the ranks; a context manager.

    Its token is not the run's, since the library logs addresses with errors on the executors. The
    executors reach the driver by `host`.

    Raises:
        OSError: `bind` is no address of this machine.
    """

    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, host: str, bind: str) -> None:
        self.token = secrets.token_hex(TOKEN_BYTES // 2)
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()
        super().__init__((bind, 0), _Request, token=self.token.encode())
        self.address: tuple[str, int] = (host, self.server_address[1])
        self.client = RendezvousClient(self.address, self.token)

    def __enter__(self) -> Rendezvous:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Request(BaseHTTPRequestHandler):
    """One request per connection; unauthenticated ones get no answer."""

    server: Rendezvous
    raw_requestline: bytes
    timeout = HELLO_SECONDS

    def parse_request(self) -> bool:
        """Read the header of a request; only its first line if it is unauthenticated."""
        _, _, target = self.raw_requestline.partition(b" /")
        token, _, _ = target.partition(b":")
        return self.server.authenticate(self.request, token) and super().parse_request()

    def do_GET(self) -> None:
        """Return a key's value, or 404 while it has none; for a scope all values as JSON."""
        if self.path.endswith("/"):
            return self._reply(HTTPStatus.OK, self._values_of(self.path))
        with self.server.lock:
            value = self.server.values.get(self.path)
        if value is None:
            return self._reply(HTTPStatus.NOT_FOUND)
        return self._reply(HTTPStatus.OK, value)

    def do_PUT(self) -> None:
        size = int(self.headers.get("Content-Length", "-1"))
        if not 0 <= size <= MAX_VALUE_BYTES:
            return self._reply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        value = self.rfile.read(size)
        if len(value) < size:
            return None  # Its sender is gone; half a value would mislead the others.
        with self.server.lock:
            self.server.values[self.path] = value
        return self._reply(HTTPStatus.OK)

    def do_DELETE(self) -> None:
        with self.server.lock:
            self.server.values.pop(self.path, None)
        self._reply(HTTPStatus.OK)

    def send_error(self, *_: Any) -> None:
        """Send nothing: the library's answer would reveal what serves here."""

    def log_message(self, *_: Any) -> None:
        """Write nothing to the driver's screen."""

    def _values_of(self, scope: str) -> bytes:
        """Return keys and values of a scope, the keys without the token."""
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
