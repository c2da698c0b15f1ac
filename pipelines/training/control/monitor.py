"""The driver's side of a run: the state of each worker, and the deadlines of a run.

Every wait of a run is here, and has a deadline. A run ends with the error of the lost worker, not
of a reporting peer. When a process dies or a host is cut off, the collective operations of the
others break, mostly before the driver knows why: a cut-off host closes no connection, it only falls
silent. So a worker's report of a lost peer ends the run, but the driver first waits to learn the
silent worker.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, get_type_hints

from pipelines.errors import EngineError, WorkerLostError
from pipelines.runs.run import TrainingOutcome
from pipelines.runs.step_metrics import StepMetrics, StepRecord
from pipelines.settings.training import Placement
from pipelines.training.control.authenticated_server import TOKEN_BYTES, Identity, SocketTokenServer
from pipelines.training.control.reporter import HEARTBEAT_SECONDS, PRESENT, SAVE

_KINDS = {
    # JSON has one kind of number: a float may arrive without its point.
    name: kind | int if isinstance(0.0, kind) else kind
    for name, kind in get_type_hints(StepRecord).items()
}
_MOST = 2**31


@dataclass
class MonitoredWorker:
    """The monitor's knowledge of a worker.

    Attributes:
        lane: Its first lane.
        last_progress: When it last finished a step, or waited for others.
        step: The last finished step.
        behind: Seconds from the first worker's readiness to its own.
        failure: The error in its report, or in one by a process beside it.
        peer_lost: Whether the failure may be the loss of another worker.
        died: Whether its process is gone, by a report.
        broken: How its connection broke.
        ended: When it failed, or its connection ended.
        leaving: When its process received SIGTERM.
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
        """Whether its process or connection is gone, and it could not report why."""
        return self.died or (self.closed and not self.done and self.failure is None)


@dataclass
class SharedState:
    """State from the reading threads for the waiting thread, under its condition."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    workers: dict[int, MonitoredWorker] = field(default_factory=dict)
    broken: Exception | None = None
    saved: float = 0.0


def peer_address(connection: socket.socket) -> str | None:
    """Return the address of a connection's other end; None if the connection has ended."""
    try:
        return str(connection.getpeername()[0])
    except OSError:
        return None


def has_unread(connection: socket.socket) -> bool:
    """Return whether unread data has arrived: its sender is not silent."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def is_lost(worker: MonitoredWorker) -> bool:
    """Return whether a worker has failed, or is gone before its end."""
    return worker.failure is not None or (worker.closed and not worker.done)


def read_record(record: dict[str, Any], worker: MonitoredWorker) -> StepRecord:
    """Return a worker's record of a step, on the clock of the first worker.

    Raises:
        TypeError: It has other fields, or values of other types.
        ValueError: A number is impossible for a step.
    """
    made = StepRecord(**record)
    for name, kind in _KINDS.items():
        value = getattr(made, name)
        if not isinstance(value, kind):
            raise TypeError(f"{name} of a step is {value!r}")
        if isinstance(value, int) and abs(value) >= _MOST:
            raise ValueError(f"{name} of a step is {value}")
    # A worker counts from its own start, the metrics from the first worker's.
    return replace(made, seconds=made.seconds + worker.behind, rank=worker.rank)


def note_message(worker: MonitoredWorker, message: dict[str, Any]) -> None:
    """Update the state of a worker by its message.

    Raises:
        KeyError: The message has another form.
    """
    match message["kind"]:
        case "ready":
            worker.ready, worker.last_progress = True, worker.last_message
        case "steps":
            if message["records"]:
                worker.step = message["records"][-1]["step"]
            if message["records"] or message["waiting"]:
                worker.last_progress = worker.last_message
        case "saved":
            worker.last_progress = worker.last_message
        case "done":
            worker.done = True
        case "leaving":
            worker.leaving = worker.last_message
        case "failed":
            worker.peer_lost, worker.ended = message["lost"], worker.last_message
            # After the loss of another worker this trace would mislead: its own code is sound.
            trace = "" if worker.peer_lost else message["traceback"]
            worker.failure = f"{message['cause']}\n{trace}".rstrip("\n")
        case "died":
            worker.failure, worker.died, worker.ended = message["cause"], True, worker.last_message
        case unknown:
            raise KeyError(unknown)


GRACE_SECONDS = 2.0
"""A peer's death breaks the collective operations of the others within moments."""
QUIET_SECONDS = 10.0
"""Five heartbeats. If another worker has lost its connection to a worker, the latter counts as gone
after this silence."""


@dataclass(frozen=True)
class Verdict:
    """The cause of a run's end, and the worker at fault.

    `is_gone` means that a process or the network is gone, and nothing in the run went wrong.
    """

    worker: MonitoredWorker
    cause: str
    is_gone: bool


def find_verdict(workers: Collection[MonitoredWorker], now: float) -> Verdict | None:
    """Return the cause of the first failure, or None until the driver knows it.

    One of the connected `workers` must have failed or be gone. The wait goes on for at most
    ``GRACE_SECONDS + QUIET_SECONDS``.
    """
    ended = [worker for worker in workers if is_lost(worker)]
    since = min(worker.ended for worker in ended)
    if now - since < GRACE_SECONDS:
        return None
    # A dead process explains the errors that others could still report.
    first = min(ended, key=lambda worker: (not worker.is_gone, worker.peer_lost, worker.rank))
    if first.is_gone:
        return Verdict(first, first.failure or first.broken or "the worker's process died", True)
    assert first.failure is not None, "it is not gone, so it has failed"
    if not first.peer_lost:
        return Verdict(first, first.failure, False)
    return _silent_peer(workers, first, since, now)


def _silent_peer(
    workers: Collection[MonitoredWorker], first: MonitoredWorker, since: float, now: float
) -> Verdict | None:
    """Return the worker whose silence explains the broken connections to it.

    `first` reports a lost peer; `since` is the time of that report.
    """
    running = [worker for worker in workers if not (is_lost(worker) or worker.done)]
    if now - since < GRACE_SECONDS + QUIET_SECONDS and any(
        has_unread(worker.connection) for worker in running
    ):
        # The unread data may be another worker's own error, a better cause than the network.
        return None
    unheard = [
        worker
        for worker in running
        if worker.last_message < since + GRACE_SECONDS and not has_unread(worker.connection)
    ]
    if not unheard:
        # All workers are there, so the network between them broke.
        return Verdict(first, first.failure or "", True)
    peer = min(unheard, key=lambda worker: worker.last_message)
    quiet = now - peer.last_message
    if quiet < QUIET_SECONDS:
        return None
    return Verdict(peer, f"nothing was heard of it for {quiet:.0f} s", True)


logger = logging.getLogger(__name__)

SILENCE_SECONDS = 30.0
LEAVE_SECONDS = 15.0
ABORT_SECONDS = 5.0
FAREWELL_SECONDS = 20.0
"""The wait for a checkpoint after a worker's SIGTERM: clusters kill after 30 s."""
CHECK_SECONDS = 1.0
MAX_LINE_BYTES = 64 * 2**20
_NOT_UNDERSTOOD = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    OverflowError,
)
"""Errors of the first code to read a message of another form."""


class Monitor:
    """Watches the workers of one run; a context manager.

    Leaving it normally lets the workers end; leaving it with an exception aborts them.

    Args:
        workers: The number of workers, of ranks 0 and up.
        step_metrics: Gets the workers' records, on a thread of the monitor.
        host: The driver's address for the executors.
        bind: Address to listen at, if different.
        start_seconds: Deadline for the readiness of all.
        servers: The number of further processes, of the ranks after the workers': the run needs
            them until its end, but does not wait for them to be done.
        saves_when_asked: Whether the workers write a checkpoint on request.
        identity: Encrypts the connections, if given.
        placement: Of the workers, if several hold the encoder together; for errors.
    """

    def __init__(
        self,
        engine: str,
        workers: int,
        step_metrics: StepMetrics,
        *,
        host: str = "127.0.0.1",
        bind: str | None = None,
        start_seconds: float,
        stall_seconds: float,
        servers: int = 0,
        saves_when_asked: bool = False,
        identity: Identity | None = None,
        placement: Placement | None = None,
    ) -> None:
        self.token = secrets.token_hex(TOKEN_BYTES // 2)
        self.fingerprint = None if identity is None else identity.fingerprint
        self._engine = engine
        self._workers = workers
        self._placement = placement
        self._expected = workers + servers
        self._step_metrics = step_metrics
        self._adding = threading.Lock()
        self._start_seconds = start_seconds
        self._stall_seconds = stall_seconds
        self._saves_when_asked = saves_when_asked
        self._shared = SharedState()
        self._closing = False
        self._ended = threading.Event()
        self._heartbeats = threading.Thread(
            target=self._send_heartbeats, name="heartbeat", daemon=True
        )
        self._all_ready: float | None = None
        self._server = SocketTokenServer(
            (bind or host, 0), self._serve_worker, token=self.token, identity=identity
        )
        self.address: tuple[str, int] = (host, self._server.server_address[1])

    def __enter__(self) -> Monitor:
        self._server.open()
        self._heartbeats.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._closing = True
        self._ended.set()
        self._heartbeats.join()
        if kind is None:
            self._end_workers(b"leave\n", LEAVE_SECONDS)
        else:
            self._end_workers(b"abort\n", ABORT_SECONDS)
        self._server.close()

    def wait(self, should_stop: Callable[[], EngineError | None] = lambda: None) -> TrainingOutcome:
        """Wait until all workers are done; return the sums of their steps.

        Args:
            should_stop: Called every second; an error ends the run.

        Raises:
            WorkerLostError: A worker died, fell silent, or did not start in time.
            EngineError: A worker failed, or made no progress in time.
            Exception: The step metrics' listener raised it, for instance on a full disk.
        """
        began = checked = time.monotonic()
        shared = self._shared
        with shared.changed:
            while True:
                now = time.monotonic()
                if now - checked > 2 * CHECK_SECONDS:
                    # After a suspension of this process: it has read no messages meanwhile.
                    began = min(began + now - checked, now)
                    self._extend_deadlines(now - checked)
                checked = now
                if shared.broken is not None:
                    raise shared.broken
                if self._raise_failure():
                    # The wait for a verdict is bounded; the checks below would name another cause.
                    shared.changed.wait(CHECK_SECONDS)
                    continue
                if (stop := should_stop()) is not None:
                    raise stop
                if sum(worker.done for worker in shared.workers.values()) == self._workers:
                    return self._step_metrics.outcome()
                self._check_deadlines(began)
                self._check_leaving()
                shared.changed.wait(CHECK_SECONDS)

    def address_of(self, rank: int) -> str | None:
        """Return the remote address of a worker's connection, if known."""
        worker = self._shared.workers.get(rank)
        return None if worker is None else worker.address

    def ask_for_checkpoint(self, reason: str) -> None:
        """Ask the workers for a checkpoint as soon as they can write one."""
        if not self._saves_when_asked:
            logger.warning("%s", reason)
            return
        logger.warning("%s; the workers write a checkpoint", reason)
        self._tell_workers(SAVE)

    def _extend_deadlines(self, seconds: float) -> None:
        """Extend all workers' deadlines by the seconds of this process's suspension."""
        now = time.monotonic()
        if self._all_ready is not None:
            self._all_ready = min(self._all_ready + seconds, now)
        for worker in self._shared.workers.values():
            # No deadline counts from the future: a worker's newer message may have arrived.
            worker.last_message = min(worker.last_message + seconds, now)
            worker.last_progress = min(worker.last_progress + seconds, now)
            if worker.ended < now:
                worker.ended = min(worker.ended + seconds, now)

    def _raise_failure(self) -> bool:
        """Raise the error of the worker at fault, if known.

        Return whether a worker has failed or is gone, without a known cause yet.
        """
        workers = self._shared.workers.values()
        if not any(is_lost(worker) for worker in workers):
            return False
        verdict = find_verdict(workers, time.monotonic())
        if verdict is None:
            return True
        raise (self._lost if verdict.is_gone else self._error)(verdict.worker, verdict.cause)

    def _check_deadlines(self, began: float) -> None:
        now, workers = time.monotonic(), self._shared.workers
        missing = sorted(
            rank
            for rank in range(self._expected)
            if rank not in workers or not (workers[rank].ready or workers[rank].done)
        )
        if missing and now - began > self._start_seconds:
            # Connected workers may only wait for the absent ones.
            late = [rank for rank in missing if rank not in workers] or missing
            raise WorkerLostError(
                self._engine,
                f"ranks {late} were not ready within training.start_seconds"
                f" ({self._start_seconds:.0f} s)",
                began=False,
                rank=late[0],
                place=self._standing(late[0]),
            )
        if not missing and self._all_ready is None:
            self._all_ready = now
        for worker in workers.values():
            if worker.done:
                continue
            if now - worker.last_message > SILENCE_SECONDS and not has_unread(worker.connection):
                raise self._lost(worker, f"nothing was heard of it for {SILENCE_SECONDS:.0f} s")
            since = max(worker.last_progress, self._all_ready or now)
            if worker.rank < self._workers and now - since > self._stall_seconds:
                raise self._error(
                    worker,
                    f"it finished no step within training.stall_seconds"
                    f" ({self._stall_seconds:.0f} s) after step {worker.step}",
                )

    def _check_leaving(self) -> None:
        """End a run after SIGTERM to one of its processes, once the state is saved."""
        workers = self._shared.workers.values()
        leaving = [worker for worker in workers if worker.leaving and not worker.done]
        if not leaving:
            return
        first = min(leaving, key=lambda worker: (worker.leaving, worker.rank))
        assert first.leaving is not None
        is_late = time.monotonic() - first.leaving > FAREWELL_SECONDS
        if is_late or not self._saves_when_asked or self._shared.saved > first.leaving:
            raise self._lost(first, "its process received SIGTERM")

    def _error(self, worker: MonitoredWorker, cause: str) -> EngineError:
        return EngineError(self._engine, self._named(worker, cause), **self._place(worker))

    def _lost(self, worker: MonitoredWorker, cause: str) -> WorkerLostError:
        known = self._shared.workers.values()
        began = len(known) == self._expected and all(each.ready or each.done for each in known)
        cause = self._named(worker, cause)
        return WorkerLostError(self._engine, cause, began=began, **self._place(worker))

    def _named(self, worker: MonitoredWorker, cause: str) -> str:
        server = worker.rank - self._workers
        return cause if server < 0 else f"parameter server {server}: {cause}"

    def _place(self, worker: MonitoredWorker) -> dict[str, Any]:
        lane = worker.lane if worker.rank < self._workers else None
        place = self._standing(worker.rank)
        return {"rank": worker.rank, "place": place, "host": worker.host, "lane": lane}

    def _standing(self, rank: int) -> str | None:
        """Return a worker's place among those that hold the encoder together, if they do."""
        if self._placement is None or not self._placement.is_divided or rank >= self._workers:
            return None
        return str(self._placement.place(rank))

    def _serve_worker(self, connection: socket.socket) -> None:
        """Read one worker's lines until the connection ends."""
        worker: MonitoredWorker | None = None
        try:
            with connection.makefile("rb") as lines:
                worker = self._authenticate(connection, lines.readline(4096))
                if worker is None:
                    return
                while (line := lines.readline(MAX_LINE_BYTES)).endswith(b"\n"):
                    self._handle_message(worker, json.loads(line))
        except ConnectionResetError:
            # The system resets the connection of a dead process with unread data, and closes it
            # otherwise: both times the process is gone.
            pass
        except OSError as error:
            if worker is not None:
                worker.broken = f"its connection to the driver broke ({error})"
        except _NOT_UNDERSTOOD as error:
            if worker is not None:
                worker.failure = f"the driver cannot understand it ({error!r})"
        finally:
            if worker is not None:
                with self._shared.changed:
                    worker.closed, worker.ended = True, min(worker.ended, time.monotonic())
                    self._shared.changed.notify_all()

    def _authenticate(self, connection: socket.socket, line: bytes) -> MonitoredWorker | None:
        """Admit each worker of this run once; close other connections without a response."""
        try:
            introduction = json.loads(line)
            token, rank = str(introduction["token"]), int(introduction["rank"])
            host, lane = str(introduction["host"]), int(introduction["lane"])
        except _NOT_UNDERSTOOD:
            return None
        if not self._server.authenticate(connection, token.encode("utf-8", "replace")):
            return None
        with self._shared.changed:
            known = self._shared.workers
            if self._closing or rank in known or not 0 <= rank < self._expected:
                return None
            now = time.monotonic()
            address = peer_address(connection)
            worker = MonitoredWorker(
                rank, host, lane, connection, address, last_message=now, last_progress=now
            )
            known[rank] = worker
        return worker

    def _handle_message(self, worker: MonitoredWorker, message: dict[str, Any]) -> None:
        worker.last_message = time.monotonic()
        kind = message["kind"]
        if kind == "steps":
            self._add_records(worker, message["records"])
        if kind == "saved":
            with self._telling_listener():
                self._step_metrics.checkpoint_saved()
        with self._shared.changed:
            worker.last_message = time.monotonic()
            if kind == "ready" and worker.rank < self._workers:
                worker.behind = worker.last_message - self._step_metrics.begin(worker.last_message)
            note_message(worker, message)
            if kind == "saved":
                self._shared.saved = worker.last_message
            self._shared.changed.notify_all()
        if kind == "leaving":
            self.ask_for_checkpoint(f"rank {worker.rank} on host {worker.host} received SIGTERM")

    @contextmanager
    def _telling_listener(self) -> Iterator[None]:
        """Guard calls of the step metrics' listener, which may be slow or fail; keep its error."""
        try:
            with self._adding:
                yield
        except Exception as error:  # noqa: BLE001 - raised again by the waiting thread
            self._shared.broken = error

    def _add_records(self, worker: MonitoredWorker, records: list[dict[str, Any]]) -> None:
        # Outside the guard: a record of another form is the worker's fault, not the listener's.
        made = [read_record(record, worker) for record in records]
        with self._telling_listener():
            for record in made:
                if self._closing:
                    return  # Other workers may be making this step again.
                self._step_metrics.add(record)

    def _send_heartbeats(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            self._tell_workers(PRESENT)

    def _tell_workers(self, message: bytes) -> None:
        # Without the lock of the state: others hold it during slow questions to Spark, and workers
        # end without heartbeats.
        for worker in tuple(self._shared.workers.values()):
            # The waiting thread handles workers that do not read or are gone.
            with suppress(OSError):
                worker.connection.send(message + b"\n", socket.MSG_DONTWAIT)

    def _end_workers(self, message: bytes, seconds: float) -> None:
        """Send the last message and wait until every connection is closed."""
        deadline = time.monotonic() + seconds
        with self._shared.changed:
            for worker in self._shared.workers.values():
                if worker.closed:
                    continue
                try:
                    worker.connection.sendall(message)
                except OSError:
                    worker.closed = True
            while not all(worker.closed for worker in self._shared.workers.values()):
                left = deadline - time.monotonic()
                if left <= 0 or not self._shared.changed.wait(left):
                    return
