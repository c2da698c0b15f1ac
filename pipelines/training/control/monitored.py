"""What the driver's monitor knows of a worker, and what a worker's messages change of it."""

from __future__ import annotations

import math
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, get_type_hints

from pipelines.runs.step_metrics import StepRecord

_KINDS = {
    # JSON has one kind of number: a float may arrive without its point.
    name: kind | int if isinstance(0.0, kind) else kind
    for name, kind in get_type_hints(StepRecord).items()
}
_MOST = 2**31


@dataclass
class MonitoredWorker:
    """What the monitor knows of a worker.

    Attributes:
        rank: Its number.
        host: Where it is.
        lane: The first lane that it reads.
        connection: The connection to it.
        address: Of its other end, if it was there to be asked.
        last_message: When it last sent anything.
        last_progress: When it last finished a step, or waited for others.
        step: The last step that it finished.
        behind: Seconds that it was ready later than the first.
        ready: Whether it could begin.
        done: Whether it has finished its part.
        failure: The error that it has reported, or another process beside it.
        peer_lost: Whether the failure may be that another worker is gone.
        died: Whether it was reported that its own process is gone.
        broken: How the connection to it broke, if it did.
        closed: Whether the connection has ended.
        ended: When it failed, or its connection ended.
        leaving: When its process was told to end, if it was.
    """

    rank: int
    host: str
    lane: int
    connection: socket.socket
    address: str | None
    last_message: float
    last_progress: float
    step: int = -1
    behind: float = 0.0
    ready: bool = False
    done: bool = False
    failure: str | None = None
    peer_lost: bool = False
    died: bool = False
    broken: str | None = None
    closed: bool = False
    ended: float = math.inf
    leaving: float | None = None

    @property
    def is_gone(self) -> bool:
        """Whether its process, or the connection to it, is gone and it could not tell why."""
        return self.died or (self.closed and not self.done and self.failure is None)


@dataclass
class SharedState:
    """State that the reading threads write and the waiting thread reads, under its condition."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    workers: dict[int, MonitoredWorker] = field(default_factory=dict)
    broken: Exception | None = None
    saved: float = 0.0


def peer_address(connection: socket.socket) -> str | None:
    """The address of the other end of a connection; none if the connection has ended."""
    try:
        return str(connection.getpeername()[0])
    except OSError:
        return None


def has_unread(connection: socket.socket) -> bool:
    """Whether something has arrived that is not read yet: its sender is not silent."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def is_lost(worker: MonitoredWorker) -> bool:
    """Whether a worker has failed, or is gone before it was done."""
    return worker.failure is not None or (worker.closed and not worker.done)


def read_record(record: dict[str, Any], worker: MonitoredWorker) -> StepRecord:
    """The record of a step that a worker has sent, on the clock of the first worker.

    Raises:
        TypeError: It has other fields, or values of other types.
        ValueError: A number is not one that a step can have.
    """
    made = StepRecord(**record)
    for name, kind in _KINDS.items():
        value = getattr(made, name)
        if not isinstance(value, kind):
            raise TypeError(f"{name} of a step is {value!r}")
        if isinstance(value, int) and abs(value) >= _MOST:
            raise ValueError(f"{name} of a step is {value}")
    # A worker counts from its own beginning, the metrics from the first worker's.
    return replace(made, seconds=made.seconds + worker.behind, rank=worker.rank)


def _on_ready(worker: MonitoredWorker, _: dict[str, Any]) -> None:
    worker.ready = True
    worker.last_progress = worker.last_message


def _on_steps(worker: MonitoredWorker, message: dict[str, Any]) -> None:
    if message["records"]:
        worker.step = message["records"][-1]["step"]
    if message["records"] or message["waiting"]:
        worker.last_progress = worker.last_message


def _on_done(worker: MonitoredWorker, _: dict[str, Any]) -> None:
    worker.done = True


def _on_leaving(worker: MonitoredWorker, _: dict[str, Any]) -> None:
    worker.leaving = worker.last_message


def _on_saved(worker: MonitoredWorker, _: dict[str, Any]) -> None:
    worker.last_progress = worker.last_message


def _on_failed(worker: MonitoredWorker, message: dict[str, Any]) -> None:
    worker.peer_lost, worker.ended = message["lost"], worker.last_message
    # Where another worker is gone, the trace is that of an innocent one.
    trace = "" if worker.peer_lost else message["traceback"]
    worker.failure = f"{message['cause']}\n{trace}".rstrip("\n")


def _on_died(worker: MonitoredWorker, message: dict[str, Any]) -> None:
    worker.failure, worker.died, worker.ended = message["cause"], True, worker.last_message


HANDLERS: dict[str, Callable[[MonitoredWorker, dict[str, Any]], None]] = {
    "ready": _on_ready,
    "steps": _on_steps,
    "done": _on_done,
    "leaving": _on_leaving,
    "saved": _on_saved,
    "failed": _on_failed,
    "died": _on_died,
}
"""By the kind of the message."""
