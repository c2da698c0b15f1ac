"""Children for tests that kill them by the dozen: none of them imports anything."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

SECONDS = 300


@contextmanager
def forks() -> Iterator[Callable[..., int]]:
    """Gives a function that does something in a child, and returns the child's exit code.

    One process imports what the children need, and has no threads that a fork would lose.
    """
    context = multiprocessing.get_context("spawn")
    orders, other_end = context.Pipe()
    server = context.Process(target=_serve, args=(other_end,), daemon=True)
    server.start()

    def exit_code(what: Callable[..., object], *args: object) -> int:
        orders.send((what, args))
        assert orders.poll(SECONDS), f"nothing has come of {what} {args} in {SECONDS} s"
        code: int = orders.recv()
        return code

    try:
        yield exit_code
    finally:
        # With a child that hangs, for which the process would wait.
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.kill()
        server.join(SECONDS)


def _serve(orders: Connection) -> None:
    os.setsid()
    while True:
        what, args = orders.recv()
        child = os.fork()
        if not child:
            what(*args)
            os._exit(0)
        orders.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
