"""The worker's connection to the driver.

A worker holds one TCP connection to the driver's monitor for life, and sends JSON lines over it:
heartbeats, the steps since the last message, its end. When a process dies, the system closes its
connection, and the other side knows at once.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from types import FrameType
from typing import Any

from pipelines.files.stores import first_line
from pipelines.runs.run import WorkerTask
from pipelines.runs.step_metrics import StepRecord
from pipelines.spark.errors import complete_line
from pipelines.training.control.authenticated_server import (
    UNHEARD_SECONDS,
    connect,
    detect_cut_connection,
)
from pipelines.training.control.watchdog import LOOK_SECONDS, Watchdog

_TYPES = {"MemoryError", "OutOfMemoryError", "ResourceExhaustedError"}
"""The types of Python, PyTorch and TensorFlow; by name, to avoid an import of the frameworks."""
_WORDS = re.compile(
    r"out of memory|allocate memory|bad_alloc|ALLOC_FAILED"
    # From oneDNN, the library behind PyTorch's and TensorFlow's matrix products on a CPU.
    r"|could not create a primitive",
    re.IGNORECASE,
)
_REMEDY = (
    "Set training.tokens_per_forward or training.activation_checkpointing, lower lanes.granule"
    " or tokens.max_length, or give executors more memory"
)


def memory_failure(error: BaseException) -> str | None:
    """Return an out-of-memory error with its remedy, in one line; None for other errors.

    The frameworks share no type for it: PyTorch raises a plain `RuntimeError` on a CPU.
    """
    is_known = type(error).__name__ in _TYPES
    if not is_known and not (isinstance(error, RuntimeError) and _WORDS.search(str(error))):
        return None
    message = first_line(error) or type(error).__name__
    return f"there is no memory left ({message}). {_REMEDY}."


HEARTBEAT_SECONDS = 2.0
# Records of fast steps travel together.
RECORDS_SECONDS = 0.1
CONNECT_SECONDS = 20.0
LEAVE_SECONDS = 600.0
KILL_SECONDS = 5.0
"""The watchdog kills a worker this long after its own deadline."""
ABORTED = 70
PRESENT = b"here"
"""The driver's heartbeat during a run."""
SAVE = b"save"
"""The driver's request for a checkpoint before the loss of a machine."""
LONGEST_MESSAGE = 64
"""In bytes; the driver's messages are words."""


class Reporter:
    """Reports to the monitor; a context manager. Runs on an executor.

    Leaving the context waits until the driver lets the worker leave. When the driver aborts the
    run, or is gone, this process ends at once, since Python cannot interrupt the wait of a
    collective operation for a dead peer. It also ends after ``UNHEARD_SECONDS`` without a heartbeat
    of the driver, so it holds no GPU for a hanging or cut-off driver. A watchdog does the same if
    native code keeps Python's threads from running.

    SIGTERM does not end it: it informs the driver. The driver asks the workers for a checkpoint and
    then aborts the run.

    Attributes:
        save_asked: Set when the driver asks for a checkpoint; cleared when one is written.

    Raises:
        OSError: The driver cannot be reached.
        PipelineError: Another process is in the driver's place.
    """

    def __init__(self, task: WorkerTask) -> None:
        self._task = task
        self._socket = connect(task.monitor, CONNECT_SECONDS, task.fingerprint)
        self._socket.settimeout(None)
        detect_cut_connection(self._socket)
        self._sending = threading.Lock()
        self._recording = threading.Lock()
        self._leave = threading.Event()
        self._closed = threading.Event()
        self._records: list[dict[str, Any]] = []
        self._sent = 0.0
        self._is_waiting = False
        self._is_terminated = False
        self._handler: Any = None
        self._watchdog: Watchdog | None = None
        self.save_asked = threading.Event()

    def __enter__(self) -> Reporter:
        # Python allows signal handlers in the main thread only.
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, self._on_sigterm)
        self._send(
            "hello",
            token=self._task.token,
            rank=self._task.rank,
            host=socket.gethostname(),
            lane=self._task.first_lane,
        )
        self._watchdog = Watchdog(self._socket, UNHEARD_SECONDS + KILL_SECONDS)
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        threading.Thread(target=self._listen, name="monitor-listener", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.wait(LEAVE_SECONDS)
        self._closed.set()
        if self._watchdog is not None:
            self._watchdog.close()
        self._socket.close()
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)

    def failed(self, error: BaseException, *, peer_lost: bool = False) -> None:
        """Report the final error of this worker.

        With `peer_lost` it is the loss of another worker, or of the connection to it.
        """
        summary = "".join(traceback.format_exception_only(error)).strip()
        trace = "".join(traceback.format_exception(error))
        if (line := memory_failure(error) or complete_line(error)) is not None:
            summary, trace = line, ""
        self.send_records()
        self._send("failed", cause=summary, traceback=trace, lost=peer_lost)

    def ready(self) -> None:
        """Report readiness for the first step."""
        self._send("ready")

    def step_done(self, record: StepRecord) -> None:
        """Report the worker's part of a step."""
        with self._recording:
            self._records.append(asdict(record))
        if time.monotonic() - self._sent > RECORDS_SECONDS:
            self.send_records()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Suspend the deadline of a step while the worker waits for others."""
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False

    def saved(self, step: int) -> None:
        """Report a saved state before a step."""
        self._send("saved", step=step)

    def done(self) -> None:
        """Report the end of the worker's share."""
        self.send_records()
        self._send("done")

    def serve(self) -> None:
        """Wait, without a deadline, until the driver lets the worker leave."""
        self._leave.wait()

    def send_records(self) -> None:
        """Send the driver all steps not sent yet."""
        # Held during the sending, so that no later message of another thread overtakes the records.
        with self._recording:
            records, self._records = self._records, []
            self._sent = time.monotonic()
            self._send("steps", records=records, waiting=self._is_waiting)

    def _send(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind} | fields).encode() + b"\n"
        with self._sending:
            self._socket.sendall(line)

    def _beat(self) -> None:
        has_announced = False
        while not self._closed.wait(HEARTBEAT_SECONDS):
            try:
                if self._is_terminated and not has_announced:
                    self._send("leaving")
                    has_announced = True
                # Also without records: the message is the heartbeat.
                self.send_records()
            except OSError:
                return  # The listener sees the same, and acts on it.

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        # Nothing else here: the main thread may hold any lock at this moment.
        self._is_terminated = True

    def _listen(self) -> None:
        """Wait for the driver's last message, as long as its heartbeats arrive."""
        try:
            message = self._last_message()
        except OSError:
            message = b""
        if message == b"leave":
            self._leave.set()
        elif not self._closed.is_set():
            if not message:
                # Not by `logging`: a thread in an endless wait may hold its locks.
                farewell = f"rank {self._task.rank} ends, because the driver is gone or silent\n"
                with suppress(OSError):
                    os.write(2, farewell.encode())
            os._exit(ABORTED)

    def _last_message(self) -> bytes:
        """Return the driver's last message; empty if it is gone, or was silent for too long."""
        poll, received, silent = select.poll(), b"", 0.0
        poll.register(self._socket, select.POLLIN)
        while silent < UNHEARD_SECONDS:
            try:
                data = self._socket.recv(4096, socket.MSG_DONTWAIT)
            except BlockingIOError:
                # Only after an empty `recv`: TLS may hold decrypted data unknown to the system.
                began = time.monotonic()
                poll.poll(1000 * LOOK_SECONDS)
                # Bounded, since the whole host may have been suspended.
                silent += min(time.monotonic() - began, 2 * LOOK_SECONDS)
                continue
            silent = 0.0
            if not data:
                break
            *messages, received = (received + data).split(b"\n")
            for message in messages:
                if message == SAVE:
                    self.save_asked.set()
                elif message != PRESENT:
                    return message
            if len(received) > LONGEST_MESSAGE:
                break  # This is not the driver.
        return b""


def report_lost(task: WorkerTask, cause: str) -> None:
    """Report the reason for a missing worker to the monitor. Runs on an executor, beside it.

    The monitor accepts one connection for a rank, so a connected worker takes precedence over this
    report. `cause` is one line.

    Raises:
        OSError: The driver cannot be reached; the run is over.
        PipelineError: Another process is in the driver's place.
    """
    hello = {"kind": "hello", "token": task.token, "rank": task.rank}
    hello |= {"host": socket.gethostname(), "lane": task.first_lane}
    died = {"kind": "died", "cause": cause}
    with connect(task.monitor, CONNECT_SECONDS, task.fingerprint) as connection:
        connection.sendall(b"".join(json.dumps(line).encode() + b"\n" for line in (hello, died)))
        connection.shutdown(socket.SHUT_WR)
