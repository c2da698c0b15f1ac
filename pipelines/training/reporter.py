"""The worker's end of the line to the driver.

A worker holds one TCP connection to the driver's monitor for as long as it lives, and sends
JSON lines over it: that it is there, what it has done since it last spoke, how it ended. The
connection itself is the life line: when a process dies, the system closes it, and the other
side knows at once.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from pipelines.training.ledger import StepRecord
from pipelines.training.run import WorkerTask

HEARTBEAT_SECONDS = 2.0
# Records of fast steps travel together.
RECORDS_SECONDS = 0.1
CONNECT_SECONDS = 20.0
LEAVE_SECONDS = 600.0
ABORTED = 70


class Reporter:
    """Reports to the monitor; a context manager. Runs on an executor.

    Leaving the context waits for the driver's word to leave. When the driver calls the run off,
    or is gone, this process ends at once, whatever its threads wait for: a collective operation
    that waits for a dead peer cannot be interrupted from Python.

    Args:
        task: The worker's task.

    Raises:
        OSError: The driver cannot be reached.
    """

    def __init__(self, task: WorkerTask) -> None:
        self._task = task
        self._socket = socket.create_connection(task.monitor, timeout=CONNECT_SECONDS)
        self._socket.settimeout(None)
        self._sending = threading.Lock()
        self._recording = threading.Lock()
        self._leave = threading.Event()
        self._closed = threading.Event()
        self._records: list[dict[str, Any]] = []
        self._sent = 0.0
        self._is_waiting = False

    def __enter__(self) -> Reporter:
        self._send(
            "hello",
            token=self._task.token,
            rank=self._task.rank,
            host=socket.gethostname(),
            lane=self._task.first_lane,
        )
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        threading.Thread(target=self._listen, name="monitor-listener", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.wait(LEAVE_SECONDS)
        self._closed.set()
        self._socket.close()

    def failed(self, error: BaseException, *, peer_lost: bool = False) -> None:
        """The worker cannot go on.

        Args:
            error: Why.
            peer_lost: Whether that is another worker's end, or the end of the line to it.
        """
        summary = "".join(traceback.format_exception_only(error)).strip()
        trace = "".join(traceback.format_exception(error))
        self.send_records()
        self._send("failed", cause=summary, traceback=trace, lost=peer_lost)

    def ready(self) -> None:
        """The worker could begin with its first step."""
        self._send("ready")

    def step_done(self, record: StepRecord) -> None:
        """The worker has finished its part of a step."""
        with self._recording:
            self._records.append(asdict(record))
        if time.monotonic() - self._sent > RECORDS_SECONDS:
            self.send_records()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While the worker waits for others it is not held to the deadline of a step."""
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False

    def done(self) -> None:
        """The worker has finished all that it had to do."""
        self.send_records()
        self._send("done")

    def serve(self) -> None:
        """Waits, without end, for the driver's word to leave: its silence ends the process."""
        self._leave.wait()

    def send_records(self) -> None:
        """Tells the driver of all steps that it has not heard of yet."""
        # Held while they are sent, so that no later word of another thread arrives before them.
        with self._recording:
            records, self._records = self._records, []
            self._sent = time.monotonic()
            self._send("steps", records=records, waiting=self._is_waiting)

    def _send(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind} | fields).encode() + b"\n"
        with self._sending:
            self._socket.sendall(line)

    def _beat(self) -> None:
        while not self._closed.wait(HEARTBEAT_SECONDS):
            try:
                self.send_records()
            except OSError:
                return  # The listener sees the same, and acts on it.

    def _listen(self) -> None:
        """Waits for the driver's word; its silence for ever means that it is gone."""
        try:
            with self._socket.makefile("rb") as lines:
                word = lines.readline().strip()
        except OSError:
            word = b""
        if word == b"leave":
            self._leave.set()
        elif not self._closed.is_set():
            os._exit(ABORTED)


def report_lost(task: WorkerTask, cause: str) -> None:
    """Tells the monitor why a worker is not there. Runs on an executor, beside the worker.

    The monitor hears whoever speaks first for a rank, so what the worker itself has said, and
    its death, count for more.

    Args:
        task: The worker's task.
        cause: What went wrong, in one line.

    Raises:
        OSError: The driver cannot be reached; the run is over.
    """
    hello = {"kind": "hello", "token": task.token, "rank": task.rank}
    hello |= {"host": socket.gethostname(), "lane": task.first_lane}
    failed = {"kind": "failed", "cause": cause, "traceback": "", "lost": True}
    with socket.create_connection(task.monitor, timeout=CONNECT_SECONDS) as connection:
        connection.sendall(b"".join(json.dumps(line).encode() + b"\n" for line in (hello, failed)))
        connection.shutdown(socket.SHUT_WR)
