"""The line between driver and workers: who is let in, and what ends a run."""

import contextlib
import json
import socket
import threading
import time

import pytest
from planned_runs import make_run

from pipelines.errors import EngineError, WorkerLostError
from pipelines.training.ledger import Ledger
from pipelines.training.monitor import Monitor

RECORD = {
    "step": 0,
    "epoch": 0,
    "loss": 1.0,
    "learning_rate": 0.1,
    "granules": 1,
    "tokens": 3,
    "slots": 4,
    "waited": 0.0,
    "seconds": 1.0,
}


class Peer:
    """A worker by hand."""

    def __init__(self, monitor: Monitor, rank: int, token: str | None = None) -> None:
        self.socket = socket.create_connection(monitor.address, timeout=10)
        token = monitor.token if token is None else token
        self.send("hello", token=token, rank=rank, host=f"host-{rank}", lane=10 * rank)

    def send(self, kind: str, **fields) -> None:
        self.socket.sendall(json.dumps({"kind": kind} | fields).encode() + b"\n")

    def hears(self) -> bytes:
        return self.socket.recv(100)


@pytest.fixture
def make_monitor():
    def make(
        workers: int = 2, start_seconds: float = 20, stall_seconds: float = 20, servers: int = 0
    ) -> Monitor:
        return Monitor(
            "test",
            workers,
            Ledger(make_run(3, log_every=1), workers, lines.append),
            start_seconds=start_seconds,
            stall_seconds=stall_seconds,
            servers=servers,
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
        reader.join(10)
    assert heard == [b"leave\n"] * 2
    assert [line["step"] for line in make_monitor.lines] == [1]
    with pytest.raises(OSError):
        socket.create_connection(monitor.address, timeout=2)


def end(peer: Peer) -> bytes:
    word = peer.hears()
    peer.socket.close()
    return word


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


def test_the_end_of_a_peer_is_no_fault_of_the_one_that_tells(make_monitor):
    with (
        pytest.raises(WorkerLostError, match=r"rank 0, .*HorovodInternalError: closed") as caught,
        make_monitor() as monitor,
    ):
        peers = [Peer(monitor, rank) for rank in (0, 1)]
        for peer in peers:
            peer.send("ready")
            peer.send("failed", cause="HorovodInternalError: closed", traceback="", lost=True)
            threading.Thread(target=end, args=(peer,), daemon=True).start()
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
    reader.join(10)
    assert (caught.value.rank, caught.value.host, caught.value.lane) == (1, "host-1", 10)
    assert type(caught.value) is EngineError
    assert heard == [b"abort\n"]


@pytest.mark.parametrize("step_is_made", [False, True])
def test_no_wait_is_without_a_deadline(make_monitor, step_is_made):
    match = "no step was finished" if step_is_made else r"ranks \[1\] were not ready"
    with pytest.raises(EngineError, match=match), make_monitor(2, 1, 1) as monitor:
        first = Peer(monitor, 0)
        first.send("ready")
        if step_is_made:
            second = Peer(monitor, 1)
            second.send("ready")
            threading.Thread(target=end, args=(second,), daemon=True).start()
        threading.Thread(target=end, args=(first,), daemon=True).start()
        monitor.wait()


def test_a_worker_that_waits_for_others_is_not_given_up(make_monitor):
    with make_monitor(2, 20, 2) as monitor:
        peers = [Peer(monitor, rank) for rank in (0, 1)]
        for peer in peers:
            peer.send("ready")

        def work():
            for step in range(3):
                time.sleep(1)
                peers[0].send("steps", records=[], waiting=True)
                peers[1].send(
                    "steps", records=[RECORD | {"step": step, "granules": 2}], waiting=False
                )
            for peer in peers:
                peer.send("done")

        threading.Thread(target=work, daemon=True).start()
        assert monitor.wait().steps == 3
        for peer in peers:
            threading.Thread(target=end, args=(peer,), daemon=True).start()


def test_seconds_are_those_since_the_first_worker_was_ready(make_monitor):
    with make_monitor(2, servers=1) as monitor:
        *peers, server = [Peer(monitor, rank) for rank in (0, 1, 2)]
        # A server that is ready long before is no worker, and starts no clock.
        server.send("ready")
        time.sleep(2)
        for peer in peers:
            peer.send("ready")
            time.sleep(0.5)
        for peer in peers:
            peer.send("steps", records=[RECORD], waiting=False)
            peer.send("done")
        assert 1.4 < monitor.wait().seconds < 3
        for peer in (*peers, server):
            threading.Thread(target=end, args=(peer,), daemon=True).start()


def test_silence_is_given_up(make_monitor, monkeypatch):
    monkeypatch.setattr("pipelines.training.monitor.SILENCE_SECONDS", 0.5)
    with pytest.raises(WorkerLostError, match="nothing was heard"), make_monitor(1) as monitor:
        peer = Peer(monitor, 0)
        threading.Thread(target=end, args=(peer,), daemon=True).start()
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
def test_a_stranger_learns_and_changes_nothing(make_monitor, line):
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


def test_a_rank_is_taken_once(make_monitor):
    with make_monitor(1) as monitor:
        first = Peer(monitor, 0)
        first.send("ready")
        time.sleep(0.2)
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
        for peer in (worker, server):
            threading.Thread(target=end, args=(peer,), daemon=True).start()


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
        threading.Thread(target=end, args=(worker,), daemon=True).start()
        monitor.wait()


def test_what_the_listener_raises_reaches_the_caller(make_monitor):
    class Full(list):
        def append(self, line):
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"), make_monitor(1) as monitor:
        monitor._ledger._on_line = Full().append
        peer = Peer(monitor, 0)
        peer.send("steps", records=[RECORD | {"granules": 2}], waiting=False)
        threading.Thread(target=end, args=(peer,), daemon=True).start()
        monitor.wait()
