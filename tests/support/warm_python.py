"""Workers of engine ``local`` that are forked from a Python which has imported PyTorch.

The engine starts a Python for each training, which imports libraries for much longer than the few
steps of a test take. Tests that are not about the start of that process have it forked.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

ENGINE = "pipelines.engines.local"
_DIED = -signal.SIGKILL
_ORDER_BYTES = 2**20
START_SECONDS = 120.0
"""For the import of PyTorch, beside other work."""
END_SECONDS = 60.0
# What libraries read when they are imported must not depend on the first test that wants a worker.
ENVIRONMENT = dict(os.environ)


class Forked:
    """A process, as far as the engine asks of one what `subprocess.Popen` gives.

    Attributes:
        stdin: The writing end of its standard input.
        returncode: Its exit code; None while it runs.
    """

    def __init__(self, stdin: int, status: int) -> None:
        self.stdin = os.fdopen(stdin, "wb")
        self.returncode: int | None = None
        # Its id comes first, and its exit code at its end.
        self._status = os.fdopen(status, "rb", 0)
        line = b""
        if select.select([self._status], [], [], START_SECONDS)[0]:
            line = self._status.readline()
        assert line, "the warm Python has forked nothing"
        self.pid = int(line)

    def poll(self) -> int | None:
        """The exit code, if the process has ended."""
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once the process has ended."""
        code = self._ended_within(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired([], timeout)
        return code

    def kill(self) -> None:
        """Kills the process, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _ended_within(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            self.returncode = int(self._status.readline() or _DIED)
            self._status.close()
        return self.returncode


class WarmPython:
    """The Python that is forked; it starts with the first process that is asked for."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None

    def popen(self, command: Sequence[str], *, stdin: int, start_new_session: bool) -> Forked:
        """A process of ``python -c``, with a pipe to it, in a session of its own."""
        python, option, code = command
        assert (python, option, stdin, start_new_session) == (
            *(sys.executable, "-c", subprocess.PIPE),
            True,
        )
        if self._server is None or self._server.poll() is not None:
            self._start()
        (read, write), (status, told) = os.pipe(), os.pipe()
        order = {"code": code, "folder": str(Path.cwd()), "environment": dict(os.environ)}
        socket.send_fds(self._orders, [json.dumps(order).encode()], [read, 1, 2, told])
        for given in (read, told):
            os.close(given)
        return Forked(write, status)

    def close(self) -> None:
        """Ends it; processes that it has forked stay."""
        if self._server is not None:
            self._orders.close()
            try:
                self._server.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._server.kill()

    def _start(self) -> None:
        self._orders, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other_end:
            self._server = subprocess.Popen(
                [sys.executable, __file__, str(other_end.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[other_end.fileno()],
                env=ENVIRONMENT,
                start_new_session=True,
            )


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """One for all tests of a tester."""
    python = WarmPython()
    yield python
    python.close()


@pytest.fixture(scope="module")
def warm_workers(warm_python: WarmPython) -> Iterator[None]:
    """Has engine ``local`` take its workers from there, for the tests of a file."""
    taken = {"PIPE": subprocess.PIPE, "TimeoutExpired": subprocess.TimeoutExpired}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(f"{ENGINE}.subprocess", SimpleNamespace(Popen=warm_python.popen, **taken))
        yield


def main() -> None:
    """Imports what workers need, and forks one for each order."""
    from pipelines.catalog import STEPPERS
    from pipelines.training import loop  # noqa: F401 - workers have it then

    STEPPERS.load("torch")
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        # Nobody waits for the parents of workers.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            data, given, _, _ = socket.recv_fds(orders, _ORDER_BYTES, 4)
            if not data:
                return
            if not os.fork():
                orders.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _attend(json.loads(data), *given)
                return
            for one in given:
                os.close(one)


def _attend(order: dict, stdin: int, stdout: int, stderr: int, status: int) -> None:
    """Forks a worker, and tells its id and its exit code; runs it in the child."""
    if not (worker := os.fork()):
        os.close(status)
        os.setsid()
        for given, own in zip((stdin, stdout, stderr), range(3), strict=True):
            os.dup2(given, own)
            os.close(given)
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        exec(order["code"], {"__name__": "__main__"})
        return
    for given in (stdin, stdout, stderr):
        os.close(given)
    with os.fdopen(status, "wb", 0) as told:
        told.write(b"%d\n" % worker)
        told.write(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
    os._exit(0)


if __name__ == "__main__":
    main()
