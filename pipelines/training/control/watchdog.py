"""Ends a worker whose driver is silent, whatever the worker does at that moment.

A thread of the worker cannot always do that: native code that holds Python's lock stops it. So the
worker starts this file as a script in a separate process, without any package, in 10 MB. It reads
nothing from the connection: the kernel knows when data last came over it. Runs on an executor,
beside a worker.
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
    """The process that watches this one; ends with it.

    It kills this process after `seconds` of silence.
    """

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        arguments = (connection.fileno(), os.getpid(), seconds)
        self._process = subprocess.Popen(
            # Isolated, and without packages: whatever the environment, it starts at once.
            [sys.executable, "-I", "-S", __file__, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(connection.fileno(),),
            # What is sent to all processes of a terminal is for the worker to act on.
            start_new_session=True,
        )

    def close(self) -> None:
        """End the process, which otherwise holds the connection open."""
        self._process.kill()
        # It was killed: that the system is slow to end it must not hide what the worker ended with.
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
    """Kill a worker once its driver has been silent for `seconds`; return when it is gone.

    `worker` is the process that started this one. A connection that ended counts as silent since
    that was found; time in which this host was suspended does not count.
    """
    silent, looked, poll = 0.0, time.monotonic(), select.poll()
    # Some builds of Python have none, nor Linux before 5.3: the end is seen a second later then.
    with suppress(OSError, AttributeError):
        poll.register(os.pidfd_open(worker), select.POLLIN)
    while not poll.poll(1000 * LOOK_SECONDS) and os.getppid() == worker:
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
