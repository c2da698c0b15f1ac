"""What the driver's monitor knows of a worker, and what a worker's messages change of it."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class MonitoredWorker:
    """What the monitor knows of a worker.

    Attributes:
        rank: Its number.
        host: Where it is.
        lane: The first lane that it reads.
        connection: The connection to it.
        last_message: When it last sent anything.
        last_progress: When it last finished a step, or waited for others.
        step: The last step that it finished.
        behind: Seconds that it was ready later than the first.
        ready: Whether it could begin.
        done: Whether it has finished its part.
        failure: The error that it has reported.
        lost: Whether the failure is that a process is gone, its own or another worker's.
        broken: How the connection to it broke, if it did.
        closed: Whether the connection has ended.
        leaving: When its process was told to end, if it was.
    """

    rank: int
    host: str
    lane: int
    connection: socket.socket
    last_message: float
    last_progress: float
    step: int = -1
    behind: float = 0.0
    ready: bool = False
    done: bool = False
    failure: str | None = None
    lost: bool = False
    broken: str | None = None
    closed: bool = False
    leaving: float | None = None


@dataclass
class SharedState:
    """State that the reading threads write and the waiting thread reads, under its condition."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    workers: dict[int, MonitoredWorker] = field(default_factory=dict)
    broken: Exception | None = None
    saved: float = 0.0


def has_unread(connection: socket.socket) -> bool:
    """Whether something has arrived that is not read yet: its sender is not silent."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def is_lost(worker: MonitoredWorker) -> bool:
    """Whether a worker has failed, or is gone before it was done."""
    return worker.failure is not None or (worker.closed and not worker.done)


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
    worker.failure = f"{message['cause']}\n{message['traceback']}".rstrip("\n")
    worker.lost = message["lost"]


HANDLERS: dict[str, Callable[[MonitoredWorker, dict[str, Any]], None]] = {
    "ready": _on_ready,
    "steps": _on_steps,
    "done": _on_done,
    "leaving": _on_leaving,
    "saved": _on_saved,
    "failed": _on_failed,
}
"""By the kind of the message."""
