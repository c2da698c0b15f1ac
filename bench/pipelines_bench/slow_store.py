"""A store that is as far away as another data centre: S3's reads of a folder of this machine.

It waits before it answers, and the link to it carries no more than it is told: by the kernel
(``tc tbf``), in a network namespace, where this user may make one; elsewhere the server sends its
answers one after the other at that rate.
"""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

BUCKET = "bench"
_BURST = "256kb"
_START_SECONDS = 30.0


@contextmanager
def slow_store(folder: Path, seconds: float, megabytes: float) -> Iterator[tuple[str, bool]]:
    """Serves a folder as the bucket ``BUCKET``.

    Args:
        folder: What is in the bucket.
        seconds: From a request to its answer.
        megabytes: A second, of 10^6 bytes.

    Yields:
        The address of the server, and whether it is in a namespace.

    Raises:
        RuntimeError: The server does not start.
    """
    with ExitStack() as stack:
        inside: Sequence[str] = ()
        host, pace = "127.0.0.1", megabytes
        if _can_make_namespaces():
            (inside, host), pace = stack.enter_context(_namespace(megabytes)), 0.0
        command = [*inside, sys.executable, "-m", "pipelines_bench.slow_store"]
        arguments = [str(folder), host, str(seconds), str(pace)]
        server = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            if not port:
                raise RuntimeError(f"the server has ended with code {server.wait(_START_SECONDS)}")
            yield f"http://{host}:{port}", bool(inside)
        finally:
            server.kill()
            server.wait()


def _can_make_namespaces() -> bool:
    try:
        probe = subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True)
        return probe.returncode == 0 and not any(
            subprocess.run(command, check=False, capture_output=True).returncode
            for command in (["ip", "netns", "list"], ["tc", "-V"])
        )
    except OSError:
        return False


@contextmanager
def _namespace(megabytes: float) -> Iterator[tuple[Sequence[str], str]]:
    """A namespace at the end of a link.

    Yields:
        The command that runs others in it, and its address.
    """
    process = os.getpid()
    name, link = f"slow-{process}", (f"slow-a{process}", f"slow-b{process}")
    # Networks of four addresses, of those that are for measurements (RFC 2544).
    network = ipaddress.ip_network("198.18.0.0/15").network_address + process % 2**15 * 4
    here, there = str(network + 1), str(network + 2)
    inside = ("ip", "netns", "exec", name)
    shaped = ["tbf", "rate", f"{megabytes * 8:.0f}mbit", "burst", _BURST, "latency", "50ms"]
    try:
        for command in (
            ["ip", "netns", "add", name],
            ["ip", "link", "add", link[0], "type", "veth", "peer", "name", link[1], "netns", name],
            ["ip", "addr", "add", f"{here}/30", "dev", link[0]],
            ["ip", "link", "set", link[0], "up"],
            [*inside, "ip", "addr", "add", f"{there}/30", "dev", link[1]],
            [*inside, "ip", "link", "set", link[1], "up"],
            [*inside, "tc", "qdisc", "add", "dev", link[1], "root", *shaped],
        ):
            subprocess.run(command, check=True, capture_output=True)
        yield inside, there
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


class _Reads(BaseHTTPRequestHandler):
    """HEAD, and GET of a range or of a whole file, as S3 has them."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    folder: Path
    seconds: float
    pace: float
    sending = threading.Lock()

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def _answer(self, *, with_content: bool) -> None:
        time.sleep(self.seconds)
        name = unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").strip("/")
        path = self.folder / name
        if not name or not path.is_file():
            self._end_headers(200 if not name else 404, 0)
            return
        size = path.stat().st_size
        wanted = self.headers.get("Range", f"bytes=0-{size - 1}").removeprefix("bytes=")
        first, _, last = wanted.partition("-")
        start, stop = int(first), min(int(last or size - 1), size - 1) + 1
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("Last-Modified", "Mon, 05 Jan 2026 10:00:00 GMT")
        self._end_headers(None, stop - start)
        if with_content:
            self._send(path, start, stop)

    def _end_headers(self, code: int | None, length: int) -> None:
        if code is not None:
            self.send_response(code)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.flush()

    def _send(self, path: Path, start: int, stop: int) -> None:
        if self.pace:
            # One after the other, as on a link that is full.
            with self.sending:
                time.sleep((stop - start) / (self.pace * 1e6))
        with path.open("rb") as file:
            while start < stop:
                start += os.sendfile(self.connection.fileno(), file.fileno(), start, stop - start)

    def log_message(self, *_arguments: object) -> None:
        """Says nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    """Serves until it is killed; the arguments are those of :func:`slow_store`, and the address."""
    folder, host, seconds, pace = sys.argv[1:]
    given = {"folder": Path(folder), "seconds": float(seconds), "pace": float(pace)}
    with _Server((host, 0), type("Reads", (_Reads,), given)) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
