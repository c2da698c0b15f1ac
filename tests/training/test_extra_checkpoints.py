"""Checkpoints beside those of known steps: after some minutes, and when a machine is to go."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from monitor_peer import Peer, end_later
from planned_runs import make_run, make_task

from pipelines.errors import InputError, WorkerLostError
from pipelines.runs.run import WorkerTask
from pipelines.runs.step_metrics import StepMetrics
from pipelines.settings.load import parse
from pipelines.training.control import monitor as monitors
from pipelines.training.control.monitor import Monitor
from pipelines.training.control.reporter import Reporter
from pipelines.training.loop import ExtraCheckpoints

TOLD = r"rank 1, host .*: its process received SIGTERM"


def make_monitor(*, saves: bool, workers: int = 2) -> Monitor:
    return Monitor(
        "test",
        workers,
        StepMetrics(make_run(3, log_every=1), workers, lambda line: None),
        start_seconds=20,
        stall_seconds=20,
        saves_when_asked=saves,
    )


def test_all_are_asked_when_one_is_told_to_end_and_the_run_ends_behind_the_checkpoint():
    began = time.monotonic()
    with pytest.raises(WorkerLostError, match=TOLD) as caught, make_monitor(saves=True) as monitor:
        peers = [Peer(monitor, rank) for rank in (0, 1)]
        for peer in peers:
            peer.send("ready")
        # One of before is none of this moment.
        peers[0].send("saved", step=1)
        time.sleep(0.2)
        peers[1].send("leaving")

        def save_when_asked():
            assert [peer.hears() for peer in peers] == [b"save\n"] * 2
            peers[0].send("saved", step=2)
            end_later(*peers)

        saving = threading.Thread(target=save_when_asked)
        saving.start()
        monitor.wait()
    saving.join()
    assert caught.value.began
    assert time.monotonic() - began < monitors.FAREWELL_SECONDS


@pytest.mark.parametrize("saves", [True, False])
def test_a_checkpoint_that_does_not_come_is_not_waited_for(saves, monkeypatch):
    monkeypatch.setattr(monitors, "FAREWELL_SECONDS", 1.0 if saves else 1000.0)
    with pytest.raises(WorkerLostError, match=TOLD), make_monitor(saves=saves) as monitor:
        peers = [Peer(monitor, rank) for rank in (0, 1)]
        peers[1].send("leaving")
        for peer in peers:
            threading.Thread(target=end_when_aborted, args=(peer,), daemon=True).start()
        monitor.wait()


def end_when_aborted(peer: Peer) -> None:
    """Hangs up at the driver's last word, and writes no checkpoint."""
    with peer.socket, peer.socket.makefile("rb") as words:
        next(word for word in words if word == b"abort\n")


def save_when_asked(task: WorkerTask) -> None:
    with Reporter(task) as reporter:
        reporter.ready()
        assert reporter.save_asked.wait(120)
        reporter.saved(1)
        reporter.serve()


@pytest.mark.slow
def test_sigterm_does_not_end_a_worker_before_the_checkpoint():
    with make_monitor(saves=True, workers=1) as monitor:
        task = WorkerTask(
            run=make_run(3), rank=0, workers=1, monitor=monitor.address, token=monitor.token
        )
        # A fork of this process could collect what libraries left here whose threads it has not.
        worker = multiprocessing.get_context("spawn").Process(target=save_when_asked, args=(task,))
        worker.start()
        while not any(one.ready for one in list(monitor._shared.workers.values())):
            assert worker.is_alive()
            time.sleep(0.05)
        os.kill(worker.pid, signal.SIGTERM)
        with pytest.raises(WorkerLostError) as caught:
            monitor.wait()
        told = re.search(r"rank 0, host .* received SIGTERM", str(caught.value))
        assert told, f"{caught.value}; its exit code: {worker.exitcode}"
        assert worker.exitcode is None, "the driver ends it"
    worker.join(120)


def quiet_reporter(asked: bool = False) -> SimpleNamespace:
    reporter = SimpleNamespace(save_asked=threading.Event())
    if asked:
        reporter.save_asked.set()
    return reporter


def test_one_is_due_after_the_minutes_since_the_last(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("pipelines.training.loop.time.monotonic", lambda: now[0])
    extra = ExtraCheckpoints(make_task(make_run(3, checkpoint_minutes=2), 0), quiet_reporter())
    assert not extra.is_due()
    now[0] += 119
    assert not extra.is_due()
    now[0] += 1
    assert extra.is_due()
    extra.saved()
    assert not extra.is_due()
    never = ExtraCheckpoints(make_task(make_run(3), 0), quiet_reporter())
    now[0] += 1e9
    assert not never.is_due()


def test_one_that_is_asked_for_is_due_once():
    reporter = quiet_reporter(asked=True)
    extra = ExtraCheckpoints(make_task(make_run(3), 0), reporter)
    assert extra.is_due()
    extra.saved()
    assert not extra.is_due()


@pytest.mark.parametrize("others", [0, 1])
def test_workers_that_write_together_agree(others):
    together = SimpleNamespace(all_gather=lambda own: np.array([*own, others]))
    extra = ExtraCheckpoints(make_task(make_run(3), 0), quiet_reporter(), together)
    assert extra.is_due() == bool(others)


def test_where_workers_do_not_meet_after_a_step_there_are_none():
    settings = {"mode": "async", "engine": "elephas", "checkpoint_minutes": 5}
    with pytest.raises(InputError, match=r"^training\.checkpoint_minutes: .* in mode `async`"):
        parse({"training": settings})
