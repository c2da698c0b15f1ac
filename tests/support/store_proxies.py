"""A proxy before an object store that counts what is read, and fails as it is told."""

from __future__ import annotations

import http.client
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

PASS, BUSY, CUT = "pass", "busy", "cut"


@dataclass
class Traffic:
    """What went through a proxy.

    Attributes:
        endpoint: Address of the proxy.
        reads: Path and range of each GET that was answered.
        bytes_read: Of all answers to them.
        faults: What happens to the next GETs, before all others pass.
    """

    endpoint: str = ""
    reads: list[tuple[str, str]] = field(default_factory=list)
    bytes_read: int = 0
    faults: deque[str] = field(default_factory=deque)

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
        fault = self.traffic.faults.popleft() if self.traffic.faults else PASS
        if fault == BUSY:
            content = b"<Error><Code>SlowDown</Code><Message>Later.</Message></Error>"
            self._answer(503, {"Content-Type": "application/xml"}, content, len(content))
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
        status, headers, _ = self._ask("HEAD")
        self._answer(status, headers, b"", int(headers.get("Content-Length", 0)))

    def _ask(self, method: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.target, timeout=30)
        try:
            connection.request(method, self.path, headers=dict(self.headers))
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
