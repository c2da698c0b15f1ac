"""A way to stand between a server and its clients."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@contextmanager
def relay(target: str, port: int) -> Iterator[None]:
    """A port that leads to a server until the block ends, as if the server died then."""
    host, _, target_port = target.removeprefix("http://").partition(":")

    open_ones: list[socket.socket] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((host, int(target_port))) as other:
                open_ones.extend((self.request, other))
                back = threading.Thread(target=_copy, args=(other, self.request), daemon=True)
                back.start()
                _copy(self.request, other)
                back.join(5)

    socketserver.ThreadingTCPServer.allow_reuse_address = True
    socketserver.ThreadingTCPServer.daemon_threads = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", port), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
            for connection in open_ones:
                connection.close()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # One of the two has hung up.


class SilentRelay:
    """Stands between workers and their driver; a context manager.

    Once told to, it passes nothing on in either direction, and closes nothing: as a network does
    from which the driver's host was cut off.

    Args:
        target: Host and port of the driver.

    Attributes:
        passed: All bytes that have passed, in both directions.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._silent = threading.Event()
        self.passed = bytearray()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.address: tuple[str, int] = self._listening.getsockname()

    def __enter__(self) -> SilentRelay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for connection in (self._listening, *self._open):
            # Threads wait in it.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def fall_silent(self) -> None:
        """Passes nothing on any more."""
        self._silent.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(self._target)
                self._open += (near, far)
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while (data := source.recv(65536)) and not self._silent.is_set():
                self.passed += data
                sink.sendall(data)
            if not self._silent.is_set():
                sink.shutdown(socket.SHUT_WR)
