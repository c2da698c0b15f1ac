"""The connection between driver and workers: authentication, and what ends a run."""

import contextlib
import multiprocessing
import os
import signal
import socket
import struct
import threading
import time

import pytest
from monitor_peer import Peer, end, end_later
from planned_runs import make_run

from pipelines.errors import EngineError, WorkerLostError
from pipelines.runs.run import WorkerTask
from pipelines.runs.step_metrics import StepMetrics
from pipelines.settings.training import Placement
from pipelines.training.control.monitor import Monitor
from pipelines.training.control.reporter import ABORTED, Reporter

pytestmark = pytest.mark.slow

RECORD = {"step": 0, "epoch": 0, "loss": 1.0, "learning_rate": 0.1, "granules": 1}
RECORD |= {"tokens": 3, "padded_tokens": 4, "data_seconds": 0.0, "seconds": 1.0}


@pytest.fixture
def make_monitor():
    def make(
        workers: int = 2,
        start_seconds: float = 20,
        stall_seconds: float = 20,
        servers: int = 0,
        placement: Placement | None = None,
    ) -> Monitor:
        return Monitor(
            "test",
            workers,
            StepMetrics(make_run(3, log_every=1), workers, lines.append),
            start_seconds=start_seconds,
            stall_seconds=stall_seconds,
            servers=servers,
            placement=placement,
        )

    lines: list[dict] = []
    make.lines = lines
    return make


def test_two_workers_finish_and_are_told_to_leave(make_monitor):
    with make_monitor() as monitor:
        peers = [Peer(monitor, rank) for rank in (0, 1)]
        for peer in peers:
            peer.send("ready")
            peer.send("steps", records=[RECORD], waiting=False)
            peer.send("done")
        assert monitor.wait().losses == (1.0,)
        heard = []
        readers = [threading.Thread(target=lambda p=p: heard.append(end(p))) for p in peers]
        for reader in readers:
            reader.start()
    for reader in readers:
        reader.join(120)
    assert heard == [b"leave\n"] * 2
    assert [line["step"] for line in make_monitor.lines] == [1]
    with pytest.raises(OSError):
        socket.create_connection(monitor.address, timeout=2)


@pytest.mark.parametrize("ready", [1, 2])
def test_a_death_is_blamed_before_the_failures_that_it_causes(make_monitor, ready):
    died = r"rank 1, host host-1, lane 10: .*process died"
    with pytest.raises(WorkerLostError, match=died) as caught, make_monitor() as monitor:
        peers = [Peer(monitor, rank) for rank in (0, 1)]
        for peer in peers[-ready:]:
            peer.send("ready")
        peers[0].send("failed", cause="UnavailableError: peer is gone", traceback="...", lost=False)
        peers[1].socket.close()
        threading.Thread(target=end, args=(peers[0],), daemon=True).start()
        monitor.wait()
    assert caught.value.began == (ready == 2)


def test_a_death_among_those_that_hold_the_encoder_together_names_its_place(make_monitor):
    stages = Placement(replicas=1, stages=2, members=1)
    died = r"rank 1, replica 0, stage 1, tensor rank 0, host host-1, lane 10: .*process died"
    with (
        pytest.raises(WorkerLostError, match=died),
        make_monitor(placement=stages) as monitor,
    ):
        peers = [Peer(monitor, rank) for rank in (0, 1)]
        for peer in peers:
            peer.send("ready")
        peers[1].socket.close()
        end_later(peers[0])
        monitor.wait()


def test_a_process_that_dies_with_heartbeats_unread_has_died(make_monitor):
    """Its connection is reset then, not closed."""
    died = r"rank 0, host host-0, lane 0: the worker's process died"
    with pytest.raises(WorkerLostError, match=died), make_monitor(1) as monitor:
        peer = Peer(monitor, 0)
        peer.send("ready")
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.socket.close()
        monitor.wait()


def test_the_end_of_a_peer_is_no_fault_of_the_one_that_tells(make_monitor):
    with (
        pytest.raises(WorkerLostError, match=r"rank 0, .*HorovodInternalError: closed") as caught,
        make_monitor() as monitor,
    ):
        peers = [Peer(monitor, rank) for rank in (0, 1)]
        for peer in peers:
            peer.send("ready")
            peer.send("failed", cause="HorovodInternalError: closed", traceback="", lost=True)
            end_later(peer)
        monitor.wait()
    assert caught.value.began


def test_a_failure_carries_its_cause_and_the_rest_is_called_off(make_monitor):
    heard = []
    with pytest.raises(EngineError, match="ValueError: no") as caught, make_monitor() as monitor:
        peers = [Peer(monitor, rank) for rank in (0, 1)]
        peers[1].send("failed", cause="ValueError: no", traceback="Traceback ...", lost=False)
        reader = threading.Thread(target=lambda: heard.append(end(peers[0])))
        reader.start()
        threading.Thread(target=end, args=(peers[1],), daemon=True).start()
        monitor.wait()
    reader.join(120)
    assert (caught.value.rank, caught.value.host, caught.value.lane) == (1, "host-1", 10)
    assert type(caught.value) is EngineError
    assert heard == [b"abort\n"]


@pytest.mark.parametrize("step_is_made", [False, True])
def test_no_wait_is_without_a_deadline(make_monitor, step_is_made):
    match = "it finished no step" if step_is_made else r"ranks \[1\] were not ready"
    start_seconds = 20 if step_is_made else 1
    with pytest.raises(EngineError, match=match), make_monitor(2, start_seconds, 1) as monitor:
        first = Peer(monitor, 0)
        first.send("ready")
        if step_is_made:
            second = Peer(monitor, 1)
            second.send("ready")
            end_later(second)
        end_later(first)
        monitor.wait()


def test_a_worker_that_waits_for_others_is_not_given_up(make_monitor):
    with make_monitor(2, 20, stall_seconds=4) as monitor:
        peers = [Peer(monitor, rank) for rank in (0, 1)]
        for peer in peers:
            peer.send("ready")

        def work():
            for step in range(3):
                time.sleep(1.5)
                peers[0].send("steps", records=[], waiting=True)
                peers[1].send(
                    "steps", records=[RECORD | {"step": step, "granules": 2}], waiting=False
                )
            for peer in peers:
                peer.send("done")

        threading.Thread(target=work, daemon=True).start()
        assert monitor.wait().steps == 3
        end_later(*peers)


def test_seconds_are_those_since_the_first_worker_was_ready(make_monitor):
    with make_monitor(2, servers=1) as monitor:
        *peers, server = [Peer(monitor, rank) for rank in (0, 1, 2)]
        # A server that is ready long before is no worker, and starts no clock.
        server.send("ready")
        time.sleep(2)
        began = time.monotonic()
        for peer in peers:
            peer.send("ready")
            time.sleep(0.5)
        for peer in peers:
            peer.send("steps", records=[RECORD], waiting=False)
            peer.send("done")
        # What the record tells, and what the second worker was ready later.
        assert 1.4 < monitor.wait().seconds < RECORD["seconds"] + time.monotonic() - began
        end_later(*peers, server)


def test_silence_is_given_up(make_monitor, monkeypatch):
    monkeypatch.setattr("pipelines.training.control.monitor.SILENCE_SECONDS", 0.5)
    with pytest.raises(WorkerLostError, match="nothing was heard"), make_monitor(1) as monitor:
        peer = Peer(monitor, 0)
        end_later(peer)
        monitor.wait()


def test_a_cause_from_outside_ends_the_wait(make_monitor):
    with pytest.raises(EngineError, match="the feed failed"), make_monitor() as monitor:
        monitor.wait(lambda: EngineError("test", "the feed failed"))


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind": "hello", "token": "wrong", "rank": 0, "host": "h", "lane": 0}\n',
        b'{"kind": "hello", "rank": 0, "host": "h", "lane": 0}\n',
        b"GET / HTTP/1.1\r\n",
        b"[1]\n",
        b"\xff" * 5000,
    ],
)
def test_an_unauthenticated_client_learns_and_changes_nothing(make_monitor, line):
    with make_monitor(1) as monitor:
        stranger = socket.create_connection(monitor.address, timeout=10)
        stranger.sendall(line)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(100) == b""
        peer = Peer(monitor, 0)
        peer.send("steps", records=[RECORD | {"granules": 2}], waiting=False)
        peer.send("done")
        assert monitor.wait().steps == 1
        peer.socket.close()


def await_worker(monitor: Monitor, rank: int) -> None:
    """Until the monitor has heard of a worker."""
    deadline = time.monotonic() + 120
    while rank not in monitor._shared.workers:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_rank_is_taken_once(make_monitor):
    with make_monitor(1) as monitor:
        first = Peer(monitor, 0)
        first.send("ready")
        await_worker(monitor, 0)
        assert Peer(monitor, 0).hears() == b""
        first.send("done")
        assert monitor.wait().steps == 0
        first.socket.close()


def test_a_server_is_waited_for_at_the_start_alone(make_monitor):
    with make_monitor(1, servers=1) as monitor:
        worker, server = Peer(monitor, 0), Peer(monitor, 1)
        server.send("ready")
        worker.send("ready")
        worker.send("done")
        assert monitor.wait().steps == 0
        end_later(worker, server)


def test_the_death_of_a_server_ends_the_run(make_monitor):
    with (
        pytest.raises(
            EngineError, match=r"rank 1, host host-1: parameter server 0: .*process died"
        ),
        make_monitor(1, servers=1) as monitor,
    ):
        worker, server = Peer(monitor, 0), Peer(monitor, 1)
        worker.send("ready")
        server.send("ready")
        server.socket.close()
        end_later(worker)
        monitor.wait()


def test_what_the_listener_raises_reaches_the_caller(make_monitor):
    class Full(list):
        def append(self, line):
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"), make_monitor(1) as monitor:
        monitor._step_metrics._on_line = Full().append
        peer = Peer(monitor, 0)
        peer.send("steps", records=[RECORD | {"granules": 2}], waiting=False)
        end_later(peer)
        monitor.wait()


def stay_in_touch(peer: Peer, seconds: float) -> None:
    """Sends what a worker sends that is in the middle of a step."""
    end_of_time = time.monotonic() + seconds
    while time.monotonic() < end_of_time:
        peer.send("steps", records=[], waiting=False)
        time.sleep(0.1)


def drive(make_monitor, told, **deadlines) -> None:
    monitor = make_monitor(1, **deadlines)
    with monitor:
        told.send((monitor.address, monitor.token))
        monitor.wait()


@contextlib.contextmanager
def driver_apart(make_monitor, **deadlines):
    """A driver in a process of its own, and the task of its worker."""
    told, tell = multiprocessing.Pipe(duplex=False)
    with child(drive, make_monitor, tell, **deadlines) as process:
        address, token = told.recv()
        task = WorkerTask(run=make_run(3), rank=0, workers=1, monitor=address, token=token)
        yield process, task


@contextlib.contextmanager
def child(work, *arguments, **named):
    """A process of its own that does some work; nothing is left of it."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=work, args=arguments, kwargs=named)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join(120)


@pytest.fixture
def short_deadlines(monkeypatch):
    """So long that a machine which is busy for a second keeps to them."""
    monkeypatch.setattr("pipelines.training.control.monitor.SILENCE_SECONDS", 3.0)
    monkeypatch.setattr("pipelines.training.control.monitor.HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr("pipelines.training.control.reporter.HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr("pipelines.training.control.reporter.UNHEARD_SECONDS", 3)


def test_a_driver_that_was_stopped_gives_no_living_worker_up(make_monitor, short_deadlines):
    with driver_apart(make_monitor, start_seconds=4, stall_seconds=4) as (driver, task):
        peer = Peer(task, 0)
        peer.send("ready")
        stay_in_touch(peer, 0.5)
        os.kill(driver.pid, signal.SIGSTOP)
        time.sleep(6)
        os.kill(driver.pid, signal.SIGCONT)
        time.sleep(0.4)  # What was sent meanwhile may take a moment more.
        stay_in_touch(peer, 0.4)
        peer.send("done")
        assert end(peer) == b"leave\n"
        driver.join(120)
        assert driver.exitcode == 0


def test_an_extended_deadline_does_not_count_from_the_future(make_monitor):
    with make_monitor(1) as monitor:
        peer = Peer(monitor, 0)
        peer.send("ready")
        await_worker(monitor, 0)
        monitor._extend_deadlines(1000.0)
        worker, now = monitor._shared.workers[0], time.monotonic()
        assert max(worker.last_message, worker.last_progress) <= now
        end_later(peer)


def test_a_worker_that_the_driver_has_no_time_to_hear_is_not_silent(make_monitor, short_deadlines):
    class Slow(list):
        def append(self, line):
            time.sleep(5)

    with make_monitor(1) as monitor:
        monitor._step_metrics._on_line = Slow().append
        peer = Peer(monitor, 0)
        peer.send("ready")
        peer.send("steps", records=[RECORD | {"granules": 2}], waiting=False)
        waiting = threading.Thread(target=stay_in_touch, args=(peer, 5.5))
        waiting.start()
        threading.Timer(5.6, peer.send, ("done",)).start()
        assert monitor.wait().steps == 1
        waiting.join()
        end_later(peer)


def serve(task: WorkerTask) -> None:
    with Reporter(task) as reporter:
        reporter.ready()
        reporter.serve()


def test_a_worker_ends_when_the_driver_is_silent_and_no_sooner(make_monitor, short_deadlines):
    with driver_apart(make_monitor) as (driver, task), child(serve, task) as worker:
        worker.join(5)
        assert worker.exitcode is None, "the driver is there"
        os.kill(driver.pid, signal.SIGSTOP)
        worker.join(120)
        assert worker.exitcode == ABORTED


def tcp_option(line: socket.socket, name: str) -> int:
    return line.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"))


def test_both_ends_of_a_line_notice_that_the_network_is_cut(make_monitor):
    with make_monitor(1) as monitor:
        task = WorkerTask(
            run=make_run(3), rank=0, workers=1, monitor=monitor.address, token=monitor.token
        )
        theirs, peer = Reporter(task)._socket, Peer(monitor, 0)
        peer.send("done")
        monitor.wait()
        for line in (theirs, monitor._shared.workers[0].connection):
            assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            options = ("KEEPIDLE", "KEEPINTVL", "KEEPCNT", "USER_TIMEOUT")
            idle, interval, count, unheard = (tcp_option(line, name) for name in options)
            assert (idle + interval * count <= 30, unheard) == (True, 30_000)
        theirs.close()
        peer.socket.close()
