"""The driver's side of a run: the state of each worker, and the deadlines that end a run.

Every wait of a run is here, and every wait has a deadline.
"""

from __future__ import annotations

import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pipelines.errors import EngineError, WorkerLostError
from pipelines.runs.run import TrainingOutcome
from pipelines.runs.step_metrics import StepMetrics
from pipelines.settings.training import Placement
from pipelines.training.control.authenticated_server import TOKEN_BYTES, SocketTokenServer
from pipelines.training.control.blame import find_verdict
from pipelines.training.control.encryption import Identity
from pipelines.training.control.monitored import (
    HANDLERS,
    MonitoredWorker,
    SharedState,
    has_unread,
    is_lost,
    peer_address,
    read_record,
)
from pipelines.training.control.reporter import HEARTBEAT_SECONDS, PRESENT, SAVE

logger = logging.getLogger(__name__)

SILENCE_SECONDS = 30.0
LEAVE_SECONDS = 15.0
ABORT_SECONDS = 5.0
FAREWELL_SECONDS = 20.0
"""How long a run waits for a checkpoint when a worker is told to end: clusters kill after 30 s."""
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
"""What a message of another form leads to, wherever it is looked at first."""


class Monitor:
    """Watches the workers of one run; a context manager.

    Leaving it normally lets the workers end; leaving it with an exception aborts them.

    Args:
        engine: Name of the engine, for errors.
        workers: How many workers to expect, of ranks 0 and up.
        step_metrics: Gets the workers' records, on a thread of the monitor.
        host: Address by which the executors reach the driver.
        bind: Address to listen at, if that is another one.
        start_seconds: Deadline for all of them to be ready.
        stall_seconds: Deadline for a step.
        servers: How many further processes to expect, of the ranks after the workers': the run
            needs them until its end, but does not wait for them to be done.
        saves_when_asked: Whether the workers write a checkpoint when they are asked to.
        identity: With which the connections are encrypted, if they are.
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
        """Waits until all workers are done.

        Args:
            should_stop: Called every second; an error ends the run.

        Returns:
            What the workers' steps add up to.

        Raises:
            WorkerLostError: A worker died, fell silent, or did not start in time.
            EngineError: A worker failed, or did not move in time.
            Exception: What the step metrics' listener raised, for instance on a full disk.
        """
        began = checked = time.monotonic()
        shared = self._shared
        with shared.changed:
            while True:
                now = time.monotonic()
                if now - checked > 2 * CHECK_SECONDS:
                    # This process was suspended, and read no messages meanwhile.
                    began = min(began + now - checked, now)
                    self._extend_deadlines(now - checked)
                checked = now
                if shared.broken is not None:
                    raise shared.broken
                if self._raise_failure():
                    # Bounded; what follows would name another cause.
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
        """The address from which a worker has connected, if one is known."""
        worker = self._shared.workers.get(rank)
        return None if worker is None else worker.address

    def ask_for_checkpoint(self, reason: str) -> None:
        """Asks the workers for a checkpoint as soon as they can write one.

        Args:
            reason: For the log.
        """
        if not self._saves_when_asked:
            logger.warning("%s", reason)
            return
        logger.warning("%s: a checkpoint is written", reason)
        self._tell_workers(SAVE)

    def _extend_deadlines(self, seconds: float) -> None:
        """Extends the deadlines of all workers, for seconds in which this process was suspended."""
        now = time.monotonic()
        if self._all_ready is not None:
            self._all_ready = min(self._all_ready + seconds, now)
        for worker in self._shared.workers.values():
            # No deadline counts from the future: a worker may have sent something since.
            worker.last_message = min(worker.last_message + seconds, now)
            worker.last_progress = min(worker.last_progress + seconds, now)
            if worker.ended < now:
                worker.ended = min(worker.ended + seconds, now)

    def _raise_failure(self) -> bool:
        """Raises the error of the worker that is the cause of a failure, once it is known.

        Returns:
            Whether a worker has failed, or is gone, and the cause is not known yet.
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
            # Those that are there may be waiting for the others.
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
                    f"no step was finished within training.stall_seconds"
                    f" ({self._stall_seconds:.0f} s) after step {worker.step}",
                )

    def _check_leaving(self) -> None:
        """Ends the wait once the state is safe of a run one of whose processes is to end."""
        told = [one for one in self._shared.workers.values() if one.leaving and not one.done]
        if not told:
            return
        first = min(told, key=lambda worker: (worker.leaving, worker.rank))
        assert first.leaving is not None
        is_late = time.monotonic() - first.leaving > FAREWELL_SECONDS
        if is_late or not self._saves_when_asked or self._shared.saved > first.leaving:
            raise self._lost(first, "its process was told to end (SIGTERM)")

    def _error(self, worker: MonitoredWorker, cause: str) -> EngineError:
        return EngineError(self._engine, self._named(worker, cause), **self._place(worker))

    def _lost(self, worker: MonitoredWorker, cause: str) -> WorkerLostError:
        workers = self._shared.workers.values()
        began = len(workers) == self._expected and all(one.ready or one.done for one in workers)
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
        """Where a worker stands among those that hold the encoder together, if they do."""
        if self._placement is None or not self._placement.is_divided or rank >= self._workers:
            return None
        return str(self._placement.place(rank))

    def _serve_worker(self, connection: socket.socket) -> None:
        """Reads one worker's lines until the connection ends."""
        worker: MonitoredWorker | None = None
        try:
            with connection.makefile("rb") as lines:
                worker = self._authenticate(connection, lines.readline(4096))
                if worker is None:
                    return
                while (line := lines.readline(MAX_LINE_BYTES)).endswith(b"\n"):
                    self._handle_message(worker, json.loads(line))
        except ConnectionResetError:
            # The system resets the connection of a process that died before it had read all that
            # was sent to it, and closes it otherwise: both times the process is gone.
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
        """Admits each worker of this run once; other connections are closed without a response."""
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
        if message["kind"] == "steps":
            self._add_records(worker, message["records"])
        if message["kind"] == "saved":
            with self._telling_listener():
                self._step_metrics.checkpoint_saved()
        with self._shared.changed:
            worker.last_message = time.monotonic()
            if message["kind"] == "ready" and worker.rank < self._workers:
                worker.behind = worker.last_message - self._step_metrics.begin(worker.last_message)
            HANDLERS[message["kind"]](worker, message)
            if message["kind"] == "saved":
                self._shared.saved = worker.last_message
            self._shared.changed.notify_all()
        if message["kind"] == "leaving":
            self.ask_for_checkpoint(
                f"rank {worker.rank} on host {worker.host} was told to end (SIGTERM)"
            )

    @contextmanager
    def _telling_listener(self) -> Iterator[None]:
        """While the step metrics are told something; their listener may be slow or fail."""
        try:
            with self._adding:
                yield
        except Exception as error:  # noqa: BLE001 - raised again by the waiting thread
            self._shared.broken = error

    def _add_records(self, worker: MonitoredWorker, records: list[dict[str, Any]]) -> None:
        # Before the metrics are told: one of another form is the worker's fault, not theirs.
        made = [read_record(record, worker) for record in records]
        with self._telling_listener():
            for record in made:
                if self._closing:
                    return  # Other workers may be making this step again.
                self._step_metrics.add(record)

    def _send_heartbeats(self) -> None:
        """Sends the workers a heartbeat every few seconds, until the run ends."""
        while not self._ended.wait(HEARTBEAT_SECONDS):
            self._tell_workers(PRESENT)

    def _tell_workers(self, message: bytes) -> None:
        # Without the lock of the state, which others hold while they ask Spark, as long as it takes
        # to answer: workers end that hear nothing.
        for worker in tuple(self._shared.workers.values()):
            # The waiting thread handles workers that do not read or are gone.
            with suppress(OSError):
                worker.connection.send(message + b"\n", socket.MSG_DONTWAIT)

    def _end_workers(self, message: bytes, seconds: float) -> None:
        """Sends the last message and waits until every connection is closed."""
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
