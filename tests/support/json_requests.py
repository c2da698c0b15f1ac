"""Servers of tests that answer each request with JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any


class JsonRequests(BaseHTTPRequestHandler):
    """Reads the body of a request, and writes the answer of :meth:`answer`."""

    more_headers: Mapping[str, str] = {}

    def answer(self, content: str) -> tuple[int, Any]:
        """The status and the body for a request of `command`, `path` and `headers`."""
        raise NotImplementedError

    def _respond(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        status, answer = self.answer(content)
        body = b"" if self.command == "HEAD" else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in self.more_headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = _respond  # noqa: N815

    def log_message(self, *_arguments: Any) -> None:
        """Says nothing."""
