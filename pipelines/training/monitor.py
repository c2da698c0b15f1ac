"""The driver's end: who works, how far, and when to give up.

Every wait of a run is here, and every wait has a deadline.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from pipelines.errors import EngineError, WorkerLostError
from pipelines.training.doors import TOKEN_BYTES, SocketDoor
from pipelines.training.ledger import Ledger, StepRecord
from pipelines.training.run import TrainingOutcome

SILENCE_SECONDS = 30.0
GRACE_SECONDS = 2.0
LEAVE_SECONDS = 15.0
ABORT_SECONDS = 5.0
MAX_LINE_BYTES = 64 * 2**20


@dataclass
class _Worker:
    """What the monitor knows of a worker.

    Attributes:
        rank: Its number.
        host: Where it is.
        lane: The first lane that it reads.
        connection: The line to it.
        heard: When it last said anything.
        moved: When it last finished a step, or waited for others.
        step: The last step that it finished.
        behind: Seconds that it was ready later than the first.
        ready: Whether it could begin.
        done: Whether it has finished its part.
        failure: What went wrong, in its words.
        lost: Whether the failure is that a process is gone, its own or another worker's.
        broken: How the line to it broke, if it did.
        gone: Whether the line has ended.
    """

    rank: int
    host: str
    lane: int
    connection: socket.socket
    heard: float
    moved: float
    step: int = -1
    behind: float = 0.0
    ready: bool = False
    done: bool = False
    failure: str | None = None
    lost: bool = False
    broken: str | None = None
    gone: bool = False


@dataclass
class _Shared:
    """State that the reading threads write and the waiting thread reads, under its condition."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    workers: dict[int, _Worker] = field(default_factory=dict)
    broken: Exception | None = None


class Monitor:
    """Watches the workers of one run; a context manager.

    Leaving it normally tells the workers to leave; leaving it with an exception calls them off.

    Args:
        engine: Name of the engine, for errors.
        workers: How many workers to expect, of ranks 0 and up.
        ledger: Takes what the workers did, on a thread of the monitor.
        host: Address by which the executors reach the driver.
        bind: Address to listen at, if that is another one.
        start_seconds: Deadline for all of them to be ready.
        stall_seconds: Deadline for a step.
        servers: How many further processes to expect, of the ranks after the workers': the run
            ends without their word, and not without them.
    """

    def __init__(
        self,
        engine: str,
        workers: int,
        ledger: Ledger,
        *,
        host: str = "127.0.0.1",
        bind: str | None = None,
        start_seconds: float,
        stall_seconds: float,
        servers: int = 0,
    ) -> None:
        self.token = secrets.token_hex(TOKEN_BYTES // 2)
        self._engine = engine
        self._workers = workers
        self._expected = workers + servers
        self._ledger = ledger
        self._entering = threading.Lock()
        self._start_seconds = start_seconds
        self._stall_seconds = stall_seconds
        self._shared = _Shared()
        self._closing = False
        self._all_ready: float | None = None
        self._door = SocketDoor((bind or host, 0), self._attend, token=self.token)
        self.address: tuple[str, int] = (host, self._door.server_address[1])

    def __enter__(self) -> Monitor:
        self._door.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing = True
        if error is None:
            self._dismiss(b"leave\n", LEAVE_SECONDS)
        else:
            self._dismiss(b"abort\n", ABORT_SECONDS)
        self._door.close()

    def wait(self, should_stop: Callable[[], EngineError | None] = lambda: None) -> TrainingOutcome:
        """Waits until all workers are done.

        Args:
            should_stop: Asked every second; an error ends the run.

        Returns:
            What the workers' steps add up to.

        Raises:
            WorkerLostError: A worker died, fell silent, or did not start in time.
            EngineError: A worker failed, or did not move in time.
            Exception: What the ledger's listener raised, for instance on a full disk.
        """
        began = time.monotonic()
        shared = self._shared
        with shared.changed:
            while True:
                if shared.broken is not None:
                    raise shared.broken
                self._raise_first_failure()
                if (stop := should_stop()) is not None:
                    raise stop
                if sum(worker.done for worker in shared.workers.values()) == self._workers:
                    return self._ledger.outcome()
                self._check_deadlines(began)
                shared.changed.wait(1.0)

    def _raise_first_failure(self) -> None:
        """Names the worker that is the cause, not one that failed because of it."""
        shared = self._shared
        if not any(_is_lost(worker) for worker in shared.workers.values()):
            return
        # A peer's death breaks the collective operations of the others within moments: wait for
        # the whole picture, then blame a dead process before one that could still speak.
        deadline = time.monotonic() + GRACE_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            shared.changed.wait(left)
        lost = sorted(
            (worker for worker in shared.workers.values() if _is_lost(worker)),
            key=lambda worker: (worker.failure is not None, worker.lost, worker.rank),
        )
        first = lost[0]
        if first.failure is not None and not first.lost:
            raise self._error(first, first.failure)
        raise self._lost(first, first.failure or first.broken or "the worker's process died")

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
            )
        if not missing and self._all_ready is None:
            self._all_ready = now
        for worker in workers.values():
            if worker.done:
                continue
            if now - worker.heard > SILENCE_SECONDS:
                raise self._lost(worker, f"nothing was heard of it for {SILENCE_SECONDS:.0f} s")
            since = max(worker.moved, self._all_ready or now)
            if worker.rank < self._workers and now - since > self._stall_seconds:
                raise self._error(
                    worker,
                    f"no step was finished within training.stall_seconds"
                    f" ({self._stall_seconds:.0f} s) after step {worker.step}",
                )

    def _error(self, worker: _Worker, cause: str) -> EngineError:
        return EngineError(self._engine, self._named(worker, cause), **self._place(worker))

    def _lost(self, worker: _Worker, cause: str) -> WorkerLostError:
        workers = self._shared.workers.values()
        began = len(workers) == self._expected and all(one.ready or one.done for one in workers)
        cause = self._named(worker, cause)
        return WorkerLostError(self._engine, cause, began=began, **self._place(worker))

    def _named(self, worker: _Worker, cause: str) -> str:
        server = worker.rank - self._workers
        return cause if server < 0 else f"parameter server {server}: {cause}"

    def _place(self, worker: _Worker) -> dict[str, Any]:
        lane = worker.lane if worker.rank < self._workers else None
        return {"rank": worker.rank, "host": worker.host, "lane": lane}

    def _attend(self, connection: socket.socket) -> None:
        """Reads one worker's lines until the connection ends."""
        worker: _Worker | None = None
        try:
            with connection.makefile("rb") as lines:
                worker = self._greet(connection, lines.readline(4096))
                if worker is None:
                    return
                while (line := lines.readline(MAX_LINE_BYTES)).endswith(b"\n"):
                    self._take(worker, json.loads(line))
        except OSError as error:
            if worker is not None:
                worker.broken = f"its line to the driver broke ({error})"
        except (ValueError, KeyError) as error:
            if worker is not None:
                worker.failure = f"the driver cannot understand it ({error!r})"
        finally:
            if worker is not None:
                with self._shared.changed:
                    worker.gone = True
                    self._shared.changed.notify_all()

    def _greet(self, connection: socket.socket, line: bytes) -> _Worker | None:
        """Admits a worker of this run, once; anybody else is turned away without a word."""
        try:
            hello = json.loads(line)
            token, rank = str(hello["token"]), int(hello["rank"])
            host, lane = str(hello["host"]), int(hello["lane"])
        except (ValueError, KeyError, TypeError):
            return None
        if not self._door.belongs(connection, token.encode("utf-8", "replace")):
            return None
        with self._shared.changed:
            known = self._shared.workers
            if self._closing or rank in known or not 0 <= rank < self._expected:
                return None
            now = time.monotonic()
            worker = _Worker(rank, host, lane, connection, heard=now, moved=now)
            known[rank] = worker
        return worker

    def _take(self, worker: _Worker, message: dict[str, Any]) -> None:
        if message["kind"] == "steps":
            self._enter(worker, message["records"])
        with self._shared.changed:
            worker.heard = time.monotonic()
            if message["kind"] == "ready" and worker.rank < self._workers:
                worker.behind = worker.heard - self._ledger.begin(worker.heard)
            _HANDLERS[message["kind"]](worker, message)
            self._shared.changed.notify_all()

    def _enter(self, worker: _Worker, records: list[dict[str, Any]]) -> None:
        """Enters records into the ledger, whose listener may be slow or fail."""
        try:
            with self._entering:
                for record in records:
                    if self._closing:
                        return  # Other workers may be making this step again.
                    # A worker counts from its own beginning, the ledger from the first worker's.
                    seconds = record["seconds"] + worker.behind
                    known = {"seconds": seconds, "rank": worker.rank}
                    self._ledger.add(StepRecord(**record | known))
        except Exception as error:  # noqa: BLE001 - raised again by the waiting thread
            self._shared.broken = error

    def _dismiss(self, word: bytes, seconds: float) -> None:
        """Sends the last word and waits until every connection is closed."""
        deadline = time.monotonic() + seconds
        with self._shared.changed:
            for worker in self._shared.workers.values():
                if worker.gone:
                    continue
                try:
                    worker.connection.sendall(word)
                except OSError:
                    worker.gone = True
            while not all(worker.gone for worker in self._shared.workers.values()):
                left = deadline - time.monotonic()
                if left <= 0 or not self._shared.changed.wait(left):
                    return


def _is_lost(worker: _Worker) -> bool:
    return worker.failure is not None or (worker.gone and not worker.done)


def _on_ready(worker: _Worker, _: dict[str, Any]) -> None:
    worker.ready = True
    worker.moved = worker.heard


def _on_steps(worker: _Worker, message: dict[str, Any]) -> None:
    if message["records"]:
        worker.step = message["records"][-1]["step"]
    if message["records"] or message["waiting"]:
        worker.moved = worker.heard


def _on_done(worker: _Worker, _: dict[str, Any]) -> None:
    worker.done = True


def _on_failed(worker: _Worker, message: dict[str, Any]) -> None:
    worker.failure = f"{message['cause']}\n{message['traceback']}"
    worker.lost = message["lost"]


_HANDLERS: dict[str, Callable[[_Worker, dict[str, Any]], None]] = {
    "ready": _on_ready,
    "steps": _on_steps,
    "done": _on_done,
    "failed": _on_failed,
}
