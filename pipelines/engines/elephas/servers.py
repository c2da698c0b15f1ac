"""Elephas's parameter servers, made safe: threads of the driver, that serve this run alone.

Elephas forks its HTTP server off the driver, listens at a known port of a public address, and
lets anybody read and write. Here the port is the system's choice, every request must show the
token of the run before anything of it is read, and what is sent must have the form that is
due. The library's process is not used: a fork of a driver that has threads of Py4J and
TensorFlow may hang.
"""

from __future__ import annotations

import logging
import socket
from abc import abstractmethod
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from pipelines.quiet import quiet_import

# The library imports TensorFlow, which greets on standard error.
with quiet_import():
    from elephas.enums.modes import Mode
    from elephas.parameter.server import BaseParameterServer, HttpServer, SocketServer
    from flask import Flask, Response, request
    from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler

from pipelines.encoder.weights import Weights
from pipelines.training.doors import Door, SocketDoor
from pipelines.training.parameter_server.desk import Desk, answer_connection
from pipelines.training.parameter_server.keepers import Answer, Handler, Keeper
from pipelines.training.parameter_server.wire import Asked

logger = logging.getLogger(__name__)


class GranuleServer(BaseParameterServer):  # type: ignore[misc] # the library has no types
    """What both servers share; mixed into those of Elephas. Runs on the driver."""

    desk: Desk
    token: str
    door: Door | None = None

    def hold(self, keeper: Keeper, bind: str, token: str) -> None:
        """Takes what the library's constructor does not know, and takes a port.

        Args:
            keeper: The parameters.
            bind: Address to listen at.
            token: What every request must show, of ``TOKEN_BYTES`` characters.

        Raises:
            OSError: There is no such address here.
        """
        self.token = token
        # The library's copies of the weights are of no use any more.
        self.master_network = None
        self.weights = None
        handlers: dict[str, Handler] = {}
        for name, handler in keeper.reading.items():
            handlers[name] = self.make_read_threadsafe_if_necessary(handler)
        for name, handler in keeper.writing.items():
            handlers[name] = self.make_write_threadsafe_if_necessary(handler)
        self.desk = Desk(keeper.forms, handlers)
        self.door = self.make_door(bind)
        self.port = self.door.server_address[1]

    @abstractmethod
    def make_door(self, bind: str) -> Door:
        """The transport's way to take connections."""

    def make_threadsafe_if_necessary(
        self, func: Handler, lock_aquire_callable: Callable[[], None]
    ) -> Handler:
        """Elephas's locking, that lets go of the lock after an error too."""
        if self.mode != Mode.ASYNCHRONOUS:
            return func

        @wraps(func)
        def locked(asked: Asked, arrays: Weights) -> Answer:
            lock_aquire_callable()
            try:
                return func(asked, arrays)
            finally:
                self.lock.release()

        return locked

    def start(self) -> None:
        """Begins to serve."""
        assert self.door is not None, "hold() comes first"
        self.door.open()

    def stop(self) -> None:
        """Ends all connections and threads; may be called again, and without a start."""
        door, self.door = self.door, None
        if door is not None:
            door.close()


class GranuleHttpServer(GranuleServer, HttpServer):  # type: ignore[misc] # the library has no types
    """Requests are POSTed to their names, with the token of the run as a bearer's."""

    def make_door(self, bind: str) -> Door:
        """See :class:`GranuleServer`."""
        # Bound here, since the library would end the process if it could not bind.
        with socket.create_server((bind, 0)) as listening:
            return _HttpDoor(
                bind,
                0,
                self.start_flask_service(),
                _HttpConnection,
                passthrough_errors=True,
                fd=listening.fileno(),
                token=f"Bearer {self.token}".encode(),
            )

    def start_flask_service(self) -> Flask:
        """The application, with a route for every request."""
        app = Flask("elephas", static_folder=None)
        app.config["PROPAGATE_EXCEPTIONS"] = True
        for name in self.desk.forms:
            app.add_url_rule(f"/{name}", name, partial(self._respond, name), methods=["POST"])
        return app

    def _respond(self, name: str) -> Response:
        environ = request.environ
        if (
            request.content_length != self.desk.forms[name].size
            or "HTTP_TRANSFER_ENCODING" in environ
        ):
            return Response(status=400)
        try:
            answer = self.desk.take(name, environ["wsgi.input"].readinto)
        except ValueError as error:
            logger.warning("refused %s: %s", name, error)
            return Response(status=400)
        # Werkzeug would rather have bytes, and passes on what it gets.
        response = Response(self.desk.chunks(name, answer))  # type: ignore[arg-type]
        response.content_length = self.desk.size(name, answer)
        return response


class _HttpDoor(Door, BaseWSGIServer):
    multithread = True


class _HttpConnection(WSGIRequestHandler):
    """Shows nothing to strangers, and keeps the connections of workers open.

    Werkzeug's own way of dispatching closes every connection, and reads whatever is sent.
    """

    server: _HttpDoor
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def run_wsgi(self) -> None:
        """Answers one request."""
        token = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if not self.server.belongs(self.connection, token):
            self._refuse(403)
            return
        response = Response.from_app(self.server.app, self.make_environ())
        if response.status_code != 200:
            # The body may not have been read, so the connection cannot go on.
            self._refuse(response.status_code)
            return
        self.send_response_only(response.status_code)
        self.send_header("Content-Length", str(response.content_length))
        self.end_headers()
        for chunk in response.iter_encoded():
            self.wfile.write(chunk)

    def send_error(self, code: int, *_: Any) -> None:
        """Refuses what is no HTTP."""
        self._refuse(code)

    def handle_expect_100(self) -> bool:
        """Refuses a client that wants to be asked for its body: the workers' do not."""
        self._refuse(417)
        return False

    def log(self, type: str, message: str, *args: Any) -> None:
        """Logs nothing: a line per request would drown the rest."""

    def _refuse(self, code: int) -> None:
        self.close_connection = True
        self.wfile.write(b"HTTP/1.1 %d \r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % code)


class GranuleSocketServer(GranuleServer, SocketServer):  # type: ignore[misc] # the library has no types
    """Requests come one after the other on a connection, once the token has been sent."""

    def make_door(self, bind: str) -> Door:
        """See :class:`GranuleServer`."""
        return SocketDoor((bind, 0), self.action_listener, token=self.token)

    def action_listener(self, conn: socket.socket) -> None:
        """Answers the requests of one connection until it ends."""
        door = self.door
        if door is not None:
            answer_connection(conn, door, self.desk)
