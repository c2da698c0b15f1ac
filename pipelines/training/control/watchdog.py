"""Ends a worker after a long silence of its driver, in any state of the worker.

A thread of the worker cannot always do that: native code may hold Python's lock. So the worker
starts this file as a script in a separate process, without any package, in 10 MB. It reads nothing
from the connection: the kernel knows the time of the last data. Runs on an executor, beside a
worker.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress

LOOK_SECONDS = 1.0
_ESTABLISHED = 1
_STATE_BYTE, _LAST_DATA = 0, 52
"""Offsets of `tcpi_state` and `tcpi_last_data_recv` (milliseconds) in Linux's `struct tcp_info`."""
_INFO_BYTES = 104
_END_SECONDS = 5.0


class Watchdog:
    """The watching process of this one; ends with it.

    It kills this process after `seconds` of silence.
    """

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        arguments = (connection.fileno(), os.getpid(), seconds)
        self._process = subprocess.Popen(
            # Isolated, and without packages, so that it starts at once in any environment.
            [sys.executable, "-I", "-S", __file__, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(connection.fileno(),),
            # Signals to all processes of a terminal are the worker's to handle.
            start_new_session=True,
        )

    def close(self) -> None:
        """End the process, since it would hold the connection open."""
        self._process.kill()
        # The process is doomed, and a slow system must not hide the worker's own error.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)


def unheard_seconds(connection: socket.socket) -> float:
    """Return the seconds of silence on a connection, from the kernel; infinite once it ended."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if info[_STATE_BYTE] != _ESTABLISHED:
        return float("inf")
    (milliseconds,) = struct.unpack_from("=I", info, _LAST_DATA)
    return float(milliseconds) / 1000


def watch(connection: socket.socket, worker: int, seconds: float) -> None:
    """Kill a worker after `seconds` of its driver's silence; return when it is gone.

    `worker` is the parent process. An ended connection counts as silent from the first look at its
    end. A suspension of this host does not count.
    """
    silent, looked, poll = 0.0, time.monotonic(), select.poll()
    # Missing in some builds of Python and before Linux 5.3: the end then shows a second later.
    with suppress(OSError, AttributeError):
        poll.register(os.pidfd_open(worker), select.POLLIN)
    while not poll.poll(1000 * LOOK_SECONDS) and os.getppid() == worker:
        # A longer pause between two looks means that this host was suspended.
        awake, looked = min(time.monotonic() - looked, 2 * LOOK_SECONDS), time.monotonic()
        silent = min(unheard_seconds(connection), silent + awake)
        if silent > seconds:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
            return


def main() -> None:
    """Run :func:`watch` with the arguments of the process."""
    number, worker, seconds = sys.argv[1:]
    with socket.socket(fileno=int(number)) as connection:
        watch(connection, int(worker), float(seconds))


if __name__ == "__main__":
    main()
