"""Elephas's parameter servers, made safe: threads of the driver, for one run.

Elephas forks its HTTP server off the driver, listens at a known port of a public address, and lets
anybody read and write. Here the system chooses the port. A request must show the token of the run
before more of it is read, and its data must have the expected form. Nothing is forked: a fork of a
driver with threads of Py4J and TensorFlow may hang.
"""

from __future__ import annotations

import logging
import socket
from abc import abstractmethod
from collections.abc import Callable
from functools import partial, wraps
from http.client import LineTooLong
from io import BufferedIOBase
from typing import Any

from typing_extensions import override

from pipelines.models.weights import Weights
from pipelines.quiet import quiet_import
from pipelines.training.control.authenticated_server import Identity, SocketTokenServer, TokenServer
from pipelines.training.parameter_server.client import Client
from pipelines.training.parameter_server.server import (
    Answer,
    Handler,
    ParameterStore,
    Request,
    RequestHandler,
    ResponseHeader,
    answer_connection,
)

# The library imports TensorFlow, which greets on standard error.
with quiet_import():
    from elephas.parameter.client import BaseParameterClient


class GranuleClient(BaseParameterClient):  # type: ignore[misc] # the library has no types
    """A worker's access to the server, pickled on the driver with its connection."""

    connection: Client

    def __init__(self, client_class: type[Client]) -> None:
        self.client_class = client_class

    # These two replace the library's methods, which unpickle all received data.
    def get_parameters(self, request: Request) -> tuple[ResponseHeader, Weights | None]:
        """Return the parameters, or None before there are any."""
        return self.connection.ask("parameters", request)

    def update_parameters(self, delta: Weights, request: Request) -> ResponseHeader:
        """Send an update of the parameters; return after its application."""
        return self.connection.ask("update", request, delta)[0]


# The library imports TensorFlow, which greets on standard error.
with quiet_import():
    from elephas.enums.modes import Mode
    from elephas.parameter.server import BaseParameterServer
    from flask import Flask, Response, request
    from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler


logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 16 * 1024
"""Of a request: first line and headers; a worker's has a few hundred bytes."""


class GranuleServer(BaseParameterServer):  # type: ignore[misc] # the library has no types
    """The common part of the servers of both transports. Runs on the driver."""

    handler: RequestHandler
    token: str
    identity: Identity | None
    server: TokenServer | None = None

    def listen(
        self, store: ParameterStore, bind: str, token: str, identity: Identity | None = None
    ) -> None:
        """Take a port, and the missing arguments of the library's constructor.

        Every request must show the token, of ``TOKEN_BYTES`` characters. The identity encrypts the
        connections.

        Raises:
            OSError: `bind` is no address of this machine.
        """
        self.token = token
        self.identity = identity
        # The library's copy of the weights, which nothing reads.
        self.master_network = None
        reading, writing = store.reading.items(), store.writing.items()
        handlers: dict[str, Handler] = {
            **{name: self.make_read_threadsafe_if_necessary(read) for name, read in reading},
            **{name: self.make_write_threadsafe_if_necessary(write) for name, write in writing},
        }
        self.handler = RequestHandler(store.forms, handlers)
        self.server = self.make_server(bind)
        self.port = self.server.server_address[1]

    @abstractmethod
    def make_server(self, bind: str) -> TokenServer:
        """Return the server for the transport's connections."""

    def make_threadsafe_if_necessary(
        self, func: Handler, lock_aquire_callable: Callable[[], None]
    ) -> Handler:
        """Apply Elephas's locking, but release the lock after an error too."""
        if self.mode != Mode.ASYNCHRONOUS:
            return func

        @wraps(func)
        def locked(request: Request, arrays: Weights) -> Answer:
            lock_aquire_callable()
            try:
                return func(request, arrays)
            finally:
                self.lock.release()

        return locked

    def start(self) -> None:
        """Begin to serve."""
        assert self.server is not None, "listen() comes first"
        self.server.open()

    def stop(self) -> None:
        """End all connections and threads; may be called again, and without a start."""
        server, self.server = self.server, None
        if server is not None:
            server.close()


class GranuleHttpServer(GranuleServer):
    """The server over HTTP: requests are POSTed to their names, with the token as a bearer's."""

    @override
    def make_server(self, bind: str) -> TokenServer:
        # Bound here, since Werkzeug ends the process on a failed bind.
        with socket.create_server((bind, 0)) as listening:
            return _HttpTokenServer(
                bind,
                0,
                self.start_flask_service(),
                _HttpConnection,
                passthrough_errors=True,
                fd=listening.fileno(),
                token=f"Bearer {self.token}".encode(),
                identity=self.identity,
            )

    def start_flask_service(self) -> Flask:
        """Return the application, with a route for every request."""
        app = Flask("elephas", static_folder=None)
        app.config["PROPAGATE_EXCEPTIONS"] = True
        for name in self.handler.forms:
            app.add_url_rule(f"/{name}", name, partial(self._respond, name), methods=["POST"])
        return app

    def _respond(self, name: str) -> Response:
        environ = request.environ
        if (
            request.content_length != self.handler.forms[name].size
            or "HTTP_TRANSFER_ENCODING" in environ
        ):
            return Response(status=400)
        try:
            length, chunks = self.handler.answer(name, environ["wsgi.input"].readinto)
        except ValueError as error:
            logger.warning("refused %s: %s", name, error)
            return Response(status=400)
        # Werkzeug's types accept only bytes; it passes on any buffer.
        response = Response(chunks)  # type: ignore[arg-type]
        response.content_length = length
        return response


class _HttpTokenServer(TokenServer, BaseWSGIServer):
    multithread = True


class _Head:
    """The lines of a head, up to `left` bytes; the library would read 6 MiB."""

    def __init__(self, stream: BufferedIOBase, left: int) -> None:
        self._stream, self._left = stream, left

    def readline(self, limit: int) -> bytes:
        """Return a line for :mod:`http.client`; LineTooLong makes it refuse the request."""
        line = self._stream.readline(max(min(limit, self._left + 1), 0))
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("head")
        return line


class _HttpConnection(WSGIRequestHandler):
    """A connection for authenticated requests only, which stays open for workers.

    Werkzeug's own dispatching closes every connection, and reads any amount of data.
    """

    server: _HttpTokenServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def parse_request(self) -> bool:
        """Read the head of a request, of bounded size: it comes before the token."""
        body = self.rfile
        self.rfile = _Head(body, MAX_HEAD_BYTES - len(self.raw_requestline))  # type: ignore[assignment] # no more is read
        try:
            return super().parse_request()
        finally:
            self.rfile = body

    def run_wsgi(self) -> None:
        token = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if not self.server.authenticate(self.connection, token):
            self._refuse(403)
            return
        response = Response.from_app(self.server.app, self.make_environ())
        if response.status_code != 200:
            # An unread body may follow, so the connection must end.
            self._refuse(response.status_code)
            return
        self.send_response_only(response.status_code)
        self.send_header("Content-Length", str(response.content_length))
        self.end_headers()
        for chunk in response.iter_encoded():
            self.wfile.write(chunk)

    def send_error(self, code: int, *_: Any) -> None:
        """Refuse anything but HTTP."""
        self._refuse(code)

    def handle_expect_100(self) -> bool:
        """Refuse clients that ask before the body; workers do not ask."""
        self._refuse(417)
        return False

    def log(self, type: str, message: str, *args: Any) -> None:
        """Log nothing: a line per request would drown the rest."""

    def _refuse(self, code: int) -> None:
        self.close_connection = True
        self.wfile.write(b"HTTP/1.1 %d \r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % code)


class GranuleSocketServer(GranuleServer):
    """The server over sockets: after the token, requests follow one another on a connection."""

    @override
    def make_server(self, bind: str) -> TokenServer:
        return SocketTokenServer(
            (bind, 0), self.action_listener, token=self.token, identity=self.identity
        )

    def action_listener(self, conn: socket.socket) -> None:
        """Answer the requests of one connection until it ends."""
        server = self.server
        if server is not None:
            answer_connection(conn, server, self.handler)
