"""A proxy before an object store that counts what is read, and fails as it is told."""

from __future__ import annotations

import http.client
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

PASS, BUSY, CUT, LOST, SLOW, EXPIRED = "pass", "busy", "cut", "lost", "slow", "expired"
SLOW_SECONDS = 0.05
_REFUSALS = {
    BUSY: (503, b"<Error><Code>SlowDown</Code><Message>Later.</Message></Error>"),
    EXPIRED: (
        403,
        b"<Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>",
    ),
}


@dataclass
class Traffic:
    """What went through a proxy.

    Attributes:
        endpoint: Address of the proxy.
        reads: Path and range of each GET that was answered.
        bytes_read: Of all answers to them.
        faults: What happens to the next GETs, before all others pass.
        decide: What happens to a request, by its method and its path with the query.
        struck: How many requests something has happened to by that.
    """

    endpoint: str = ""
    reads: list[tuple[str, str]] = field(default_factory=list)
    bytes_read: int = 0
    faults: deque[str] = field(default_factory=deque)
    decide: Callable[[str, str], str] = lambda _method, _path: PASS
    struck: int = 0

    def of(self, suffix: str) -> list[tuple[str, str]]:
        """The GETs of files whose names end so."""
        return [(path, range_) for path, range_ in self.reads if path.endswith(suffix)]


@contextmanager
def store_proxy(target: str) -> Iterator[Traffic]:
    """Passes requests on to a store.

    Args:
        target: Its endpoint.
    """
    traffic = Traffic()
    kind = type("Proxy", (_Proxy,), {"target": urlsplit(target).netloc, "traffic": traffic})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        server.daemon_threads = True
        traffic.endpoint = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield traffic
        finally:
            server.shutdown()


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    target: str
    traffic: Traffic

    def do_GET(self) -> None:
        fault = self.traffic.faults.popleft() if self.traffic.faults else self._fault()
        if self._refused(fault):
            return
        status, headers, content = self._ask("GET")
        if fault == CUT:
            self._answer(status, headers, content[: len(content) // 2], len(content))
            self.close_connection = True
            return
        self.traffic.reads.append((urlsplit(self.path).path, self.headers.get("Range", "")))
        self.traffic.bytes_read += len(content)
        self._answer(status, headers, content, len(content))

    def do_HEAD(self) -> None:
        if self._refused(self._fault()):
            return
        status, headers, _ = self._ask("HEAD")
        self._answer(status, headers, b"", int(headers.get("Content-Length", 0)))

    def do_PUT(self) -> None:
        fault, length = self._fault(), int(self.headers.get("Content-Length", 0))
        if fault == CUT:
            self.rfile.read(length // 2)
            self.close_connection = True
            return
        # What is left unread of a request would be taken for the next one.
        body = self.rfile.read(length)
        if not self._refused(fault):
            status, headers, content = self._ask(self.command, body)
            if fault == LOST:
                self.close_connection = True
                return
            self._answer(status, headers, content, len(content))

    def do_POST(self) -> None:
        self.do_PUT()

    def do_DELETE(self) -> None:
        self.do_PUT()

    def _fault(self) -> str:
        fault = self.traffic.decide(self.command, self.path)
        self.traffic.struck += fault != PASS
        return fault

    def _refused(self, fault: str) -> bool:
        """Answers itself what is refused; what is slow waits here."""
        if fault == SLOW:
            time.sleep(SLOW_SECONDS)
        if fault not in _REFUSALS:
            return False
        status, content = _REFUSALS[fault]
        told = b"" if self.command == "HEAD" else content
        self._answer(status, {"Content-Type": "application/xml"}, told, len(told))
        return True

    def _ask(self, method: str, body: bytes | None = None) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.target, timeout=30)
        try:
            connection.request(method, self.path, body, headers=dict(self.headers))
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], content: bytes, length: int) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_arguments: object) -> None:
        """Says nothing."""
