"""Servers on this machine that Airflow talks to in the tests, as to a chat and to Databricks."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from typing import Any
from urllib.parse import parse_qs, urlparse


@contextmanager
def serving(
    handler: type[BaseHTTPRequestHandler], tls: SSLContext | None = None, **shared: Any
) -> Iterator[dict[str, Any]]:
    """A server whose requests share attributes; gives its place, as connections have it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), shared)) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield {
                "host": "127.0.0.1",
                "port": server.server_port,
                "schema": "https" if tls else "http",
            }
        finally:
            server.shutdown()


class Chat(BaseHTTPRequestHandler):
    """Takes `{"text": line}`."""

    lines: list[str]

    def do_POST(self) -> None:
        self.lines.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments: Any) -> None:
        """Says nothing."""


class Workspace(BaseHTTPRequestHandler):
    """Databricks' Jobs API 2.2, as far as one-time runs need it.

    It keeps what it is sent, runs nothing, and ends each run as it is told to. A run still goes on
    while its operator asks for its job, its page and its state.
    """

    submitted: list[dict[str, Any]]
    errors: dict[str, list[str]]
    ended: dict[int, str | None]
    asked: Counter[int]
    finish: Callable[[dict[str, Any]], object]

    def do_POST(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/api/2.2/jobs/runs/submit", self.path
        self.submitted.append(content)
        errors = self.errors.get(content["run_name"])
        self.ended[len(self.submitted)] = errors.pop(0) if errors else None
        self.finish(content)
        self._answer({"run_id": len(self.submitted)})

    def do_GET(self) -> None:
        address = urlparse(self.path)
        run_id = int(parse_qs(address.query).get("run_id", ["0"])[0]) or self._content_run_id()
        error = self.ended[run_id]
        self.asked[run_id] += 1
        if self.asked[run_id] <= 3:
            state = {"life_cycle_state": "RUNNING", "state_message": "In run"}
            self._answer(self._run(run_id, state))
            return
        state = {
            "life_cycle_state": "TERMINATED",
            "result_state": "FAILED" if error else "SUCCESS",
            "state_message": "Workload failed" if error else "",
        }
        if address.path.endswith("/runs/get-output"):
            self._answer({"error": error, "metadata": {"state": state}})
        else:
            task = {"task_key": "job", "run_id": run_id, "attempt_number": 0, "state": state}
            self._answer(self._run(run_id, state) | {"tasks": [task]})

    def _run(self, run_id: int, state: dict[str, str]) -> dict[str, Any]:
        return {"run_id": run_id, "job_id": 1, "state": state, "run_page_url": "http://page"}

    def _content_run_id(self) -> int:
        length = int(self.headers.get("Content-Length") or 0)
        return int(json.loads(self.rfile.read(length))["run_id"])

    def _answer(self, value: dict[str, Any]) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_arguments: Any) -> None:
        """Says nothing."""
