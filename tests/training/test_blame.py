"""Who a run ends with: the worker that is gone, and not the one that tells of it."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
from monitor_peer import Peer, end_later
from planned_runs import make_run

from pipelines.errors import EngineError, WorkerLostError
from pipelines.runs.step_metrics import StepMetrics
from pipelines.training.control import monitor as blame
from pipelines.training.control import reporter
from pipelines.training.control.monitor import Monitor

pytestmark = pytest.mark.slow
TOLD = {"cause": "ConnectionError: the ring to worker 1 broke", "lost": True}
TRACE = "Traceback (most recent call last): of an innocent worker"


@pytest.fixture
def short_waits(monkeypatch):
    """So long that a machine which is busy for a moment keeps to them."""
    monkeypatch.setattr(blame, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(blame, "QUIET_SECONDS", 2.0)


@pytest.fixture
def peers(short_waits):
    """A monitor of two workers and a server, and these: all are ready."""
    monitor = Monitor(
        "test",
        2,
        StepMetrics(make_run(3, log_every=1), 2, lambda line: None),
        start_seconds=20,
        stall_seconds=20,
        servers=1,
    )
    with monitor:
        made = [Peer(monitor, rank) for rank in (0, 1, 2)]
        for peer in made:
            peer.send("ready")
        made[0].monitor = monitor
        yield made
        end_later(*(peer for peer in made if peer.socket.fileno() >= 0))


def beat(peer: Peer, seconds: float) -> None:
    """Sends what a worker sends that waits in a collective operation."""
    until = time.monotonic() + seconds

    def send():
        with contextlib.suppress(OSError):  # The run is over.
            while time.monotonic() < until:
                peer.send("steps", records=[], waiting=False)
                time.sleep(0.1)

    threading.Thread(target=send, daemon=True).start()


def ended(peers, kind=WorkerLostError) -> EngineError:
    """The error that ends the run."""
    with pytest.raises(kind) as caught:
        peers[0].monitor.wait()
    assert "Traceback" not in str(caught.value) or kind is EngineError
    return caught.value


def test_a_silent_worker_is_named_and_not_the_one_that_lost_it(peers):
    beat(peers[0], 10)
    beat(peers[2], 10)
    peers[0].send("failed", traceback=TRACE, **TOLD)
    error = ended(peers)
    assert (error.rank, error.host, error.lane) == (1, "host-1", 10)
    assert error.cause.startswith("nothing was heard of it for ")
    assert error.began


def test_a_silent_server_is_named(peers):
    for worker in peers[:2]:
        beat(worker, 10)
        worker.send("failed", traceback=TRACE, **TOLD)
    error = ended(peers)
    assert (error.rank, error.host) == (2, "host-2")
    assert error.cause.startswith("parameter server 0: nothing was heard of it for ")


def test_a_worker_that_dies_while_the_cause_is_looked_for_is_named(peers):
    beat(peers[0], 10)
    beat(peers[2], 10)
    peers[0].send("failed", traceback=TRACE, **TOLD)
    threading.Timer(1.2, peers[1].socket.close).start()
    error = ended(peers)
    assert (error.rank, error.cause) == (1, "the worker's process died")


def test_a_worker_that_tells_its_own_error_later_is_named_with_its_trace(peers):
    beat(peers[0], 10)
    beat(peers[2], 10)
    peers[0].send("failed", traceback=TRACE, **TOLD)
    own = {"cause": "ValueError: no", "traceback": "Traceback of it", "lost": False}
    threading.Timer(1.2, peers[1].send, ("failed",), own).start()
    error = ended(peers, EngineError)
    assert type(error) is EngineError
    assert (error.rank, error.cause) == (1, "ValueError: no\nTraceback of it")


def test_where_all_are_there_it_was_the_network(peers):
    for peer in peers:
        beat(peer, 10)
    peers[0].send("failed", traceback=TRACE, **TOLD)
    error = ended(peers)
    assert (error.rank, error.cause) == (0, TOLD["cause"])


def test_a_failed_spark_job_is_no_verdict_while_a_cause_is_looked_for(peers):
    beat(peers[0], 10)
    beat(peers[2], 10)
    peers[0].send("failed", traceback=TRACE, **TOLD)
    failed = EngineError("test", "the Spark job failed")
    told = threading.Event()
    threading.Timer(1.0, told.set).start()
    with pytest.raises(WorkerLostError, match=r"rank 1, host host-1.*nothing was heard"):
        peers[0].monitor.wait(lambda: failed if told.is_set() else None)


def test_what_is_told_beside_a_dead_worker_is_certain(short_waits):
    monitor = Monitor(
        "test",
        2,
        StepMetrics(make_run(3, log_every=1), 2, lambda line: None),
        start_seconds=20,
        stall_seconds=20,
    )
    with (
        pytest.raises(WorkerLostError, match=r"rank 1, .*process died \(exit code -9\)"),
        monitor,
    ):
        first, beside = Peer(monitor, 0), Peer(monitor, 1)
        first.send("failed", traceback="", **TOLD)
        beside.send("died", cause="the worker's process died (exit code -9)")
        end_later(first, beside)
        monitor.wait()


def test_a_living_worker_is_heard_before_it_counts_as_silent():
    longest = reporter.HEARTBEAT_SECONDS + reporter.CONNECT_SECONDS / 4
    assert longest < blame.QUIET_SECONDS
    assert blame.GRACE_SECONDS + blame.QUIET_SECONDS < 30
