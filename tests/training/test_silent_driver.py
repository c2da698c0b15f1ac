"""A driver that is not heard any more: its workers end, whatever they do, and none too soon."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from monitor_peer import Peer, end_later
from planned_runs import make_run
from relays import SilentRelay

from pipelines.runs.run import WorkerTask
from pipelines.runs.step_metrics import StepMetrics
from pipelines.training.control.authenticated_server import Identity, make_identity
from pipelines.training.control.monitor import Monitor
from pipelines.training.control.reporter import ABORTED, LONGEST_MESSAGE, Reporter
from pipelines.training.control.watchdog import unheard_seconds

pytestmark = pytest.mark.slow

UNHEARD, KILL = 10.0, 3.0
PAUSE = 0.02
"""So that work which is done for half a minute leaves other tests most of the processor."""
REPORTER = "pipelines.training.control.reporter"


@pytest.fixture
def short_deadlines(monkeypatch):
    """So long that a machine which is busy for several seconds keeps to them."""
    monkeypatch.setattr(f"{REPORTER}.UNHEARD_SECONDS", UNHEARD)
    monkeypatch.setattr(f"{REPORTER}.KILL_SECONDS", KILL)
    monkeypatch.setattr("pipelines.training.control.monitor.HEARTBEAT_SECONDS", 0.2)
    # It is not the driver that ends them.
    monkeypatch.setattr("pipelines.training.control.monitor.SILENCE_SECONDS", 600.0)


def make_monitor(workers: int, identity: Identity | None = None) -> Monitor:
    metrics = StepMetrics(make_run(3), workers, lambda line: None)
    return Monitor("test", workers, metrics, start_seconds=60, stall_seconds=60, identity=identity)


def run_native_code(_: Reporter, folder: Path) -> None:
    """With Python's lock held, so that none of Python's threads runs."""
    ctypes.PyDLL(None).sleep(600)


def wait_for_a_peer(reporter: Reporter, folder: Path) -> None:
    reporter.ready()
    ours, _theirs = socket.socketpair()
    ours.recv(1)


def compute(reporter: Reporter, folder: Path) -> None:
    reporter.ready()
    while True:
        sum(range(100_000))
        time.sleep(PAUSE)


def write_a_checkpoint(reporter: Reporter, folder: Path) -> None:
    reporter.ready()
    while True:
        with (folder / f"{os.getpid()}").open("wb") as file:
            file.write(bytes(1 << 20))
            os.fsync(file.fileno())
        time.sleep(PAUSE)


def be_stopped(_: Reporter, folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def be_done(reporter: Reporter, folder: Path) -> None:
    reporter.ready()
    reporter.done()


def start(reporter: Reporter, folder: Path) -> None:
    """Not ready yet."""
    time.sleep(600)


DOINGS = {
    run_native_code: -signal.SIGKILL,
    be_stopped: -signal.SIGKILL,
    wait_for_a_peer: ABORTED,
    compute: ABORTED,
    write_a_checkpoint: ABORTED,
    be_done: ABORTED,
    start: ABORTED,
}


# How the connection is made has no influence on what a worker does meanwhile.
ENCRYPTED = {doing: DOINGS[doing] for doing in (run_native_code, wait_for_a_peer)}


def work(task: WorkerTask, doing, folder: Path) -> None:
    with Reporter(task) as reporter:
        doing(reporter, folder)


@pytest.mark.parametrize(
    ("make", "doings"),
    [
        pytest.param(lambda: None, DOINGS, id="plain"),
        pytest.param(make_identity, ENCRYPTED, id="encrypted"),
    ],
)
def test_workers_end_that_hear_nothing_whatever_they_do(short_deadlines, tmp_path, make, doings):
    context = multiprocessing.get_context("fork")
    with make_monitor(len(doings), make()) as monitor, SilentRelay(monitor.address) as relay:
        processes = []
        for rank, doing in enumerate(doings):
            task = WorkerTask(
                run=make_run(3),
                rank=rank,
                workers=len(doings),
                monitor=relay.address,
                token=monitor.token,
                fingerprint=monitor.fingerprint,
            )
            processes.append(context.Process(target=work, args=(task, doing, tmp_path)))
        try:
            for process in processes:
                process.start()
            deadline = time.monotonic() + 120
            while len(monitor._shared.workers) < len(processes):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(UNHEARD + KILL + 1)
            assert [process.exitcode for process in processes] == [None] * len(processes)
            relay.fall_silent()
            for process, code in zip(processes, doings.values(), strict=True):
                process.join(120)
                # On a busy machine the watchdog may be first with all of them.
                assert process.exitcode in (code, -signal.SIGKILL)
        finally:
            for process in processes:
                process.kill()
                process.join(120)


def test_a_worker_ends_whose_driver_speaks_without_an_end():
    with socket.create_server(("127.0.0.1", 0)) as server:
        task = WorkerTask(
            run=make_run(3), rank=0, workers=1, monitor=server.getsockname(), token="a"
        )
        worker = multiprocessing.get_context("fork").Process(
            target=work, args=(task, wait_for_a_peer, Path())
        )
        worker.start()
        try:
            connection, _ = server.accept()
            with connection:
                connection.sendall(2 * LONGEST_MESSAGE * b"a")
                worker.join(120)
                assert worker.exitcode == ABORTED
        finally:
            worker.kill()
            worker.join(120)


def test_a_driver_that_waits_for_spark_is_heard(short_deadlines):
    """Whatever the thread of the run does, and whatever it has locked."""
    with make_monitor(1) as monitor:
        peer = Peer(monitor, 0)
        peer.send("ready")
        # The wait locks what a worker is admitted to.
        deadline = time.monotonic() + 120
        while not monitor._shared.workers:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        heard = []

        def ask_spark() -> None:
            peer.socket.settimeout(2)
            heard.append(peer.socket.recv(1000))  # What was sent before.
            for _ in range(5):
                heard.append(peer.socket.recv(5))
            peer.send("done")

        def once() -> None:
            if not heard:
                thread = threading.Thread(target=ask_spark)
                thread.start()
                thread.join()

        monitor.wait(once)
        end_later(peer)
    assert heard[1:] == [b"here\n"] * 5


def test_the_kernel_knows_when_something_came_last():
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours:
        theirs.sendall(b"here\n")
        time.sleep(0.5)
        # Nobody has read it.
        unheard = unheard_seconds(ours)
        assert 0.3 < unheard < 30
        theirs.sendall(b"here\n")
        assert unheard_seconds(ours) < unheard
        theirs.close()
        deadline = time.monotonic() + 120
        while unheard_seconds(ours) != float("inf"):
            assert time.monotonic() < deadline
