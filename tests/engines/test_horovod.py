"""What is Horovod's own: fp16 on the way, strangers at its ranks, and runs that lose workers."""

import ctypes
import dataclasses
import json
import os
import signal
import socket
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from engine_cases import WITH_HOROVOD, trained_here
from pyspark import SparkConf
from test_contract import ENDLESS, connections, listening, started, wait_until_gone
from unauthenticated import tells_nothing, visit

from pipelines.engines.base import monitor_for
from pipelines.engines.horovod.elastic import check_elastic, rest_of
from pipelines.engines.horovod.engine import HorovodEngine
from pipelines.engines.horovod.ranks import RankMaker
from pipelines.engines.loading import load_engine
from pipelines.errors import EngineError, EngineUnavailable, WorkerLostError
from pipelines.runs.checkpoint import (
    checkpoint_path,
    checkpoint_steps,
    load_checkpoint,
    save_checkpoint,
)
from pipelines.runs.metrics_log import MetricsLog
from pipelines.runs.run import WorkerTask

STEPS = 24
# So many that strangers come, and a worker is killed, while there are steps to make.
MANY_STEPS = 240
# Of the system calls on 64-bit x86 and Arm.
PIDFD_GETFD = 438


@pytest.fixture
def monitors(monkeypatch):
    """The monitors of the engine's runs."""
    made = []

    def keep(*arguments, **named):
        made.append(monitor_for(*arguments, **named))
        return made[-1]

    monkeypatch.setattr("pipelines.engines.spark_engine.monitor_for", keep)
    return made


def train(spark, run, on_metrics=lambda line: None):
    return load_engine("horovod").train(spark, run, on_metrics)


def process_of(monitor, rank) -> int:
    there = monitor._shared.workers[rank].connection.getpeername()[1]
    # The field of the file descriptor holds the process.
    return next(c.fd for c in connections() if c.laddr.port == there)


def kill(monitor, rank=1):
    os.kill(process_of(monitor, rank), signal.SIGKILL)


def stop(monitor):
    os.kill(process_of(monitor, 1), signal.SIGSTOP)


def kill_the_one_that_saves(monitor):
    kill(monitor, 0)


def kill_the_executor(monitor):
    """Kills a JVM, with which its Python workers end; Spark starts another, and the task again."""
    above = psutil.Process(process_of(monitor, 1)).parents()
    next(process for process in above if process.name() == "java").kill()


def cut_between_ranks(monitor):
    """Breaks the connections of a rank with the others, as a network does."""
    process = process_of(monitor, 1)
    handle = os.pidfd_open(process)
    for one in psutil.Process(process).net_connections("tcp"):
        if one.status == psutil.CONN_ESTABLISHED and one.raddr.port != monitor.address[1]:
            own = ctypes.CDLL(None).syscall(PIDFD_GETFD, handle, one.fd, 0)
            if own < 0:
                pytest.skip("this system gives no process another's connection")
            with socket.socket(fileno=own) as connection:
                connection.shutdown(socket.SHUT_RDWR)
    os.close(handle)


def with_settings(run, section, **settings):
    changed = getattr(run.config, section).model_copy(update=settings)
    return dataclasses.replace(run, config=run.config.model_copy(update={section: changed}))


@WITH_HOROVOD
@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_gradients_as_fp16_give_nearly_the_same_curve(spark, make_run, reference, framework):
    run = make_run(STEPS, framework=framework, compression="fp16")
    losses = train(spark, run).losses
    expected = reference(STEPS, framework)
    np.testing.assert_allclose(losses, expected, rtol=2e-2)
    # The first is of weights that no gradient has reached, and is itself not rounded.
    assert losses[0] == pytest.approx(expected[0], rel=1e-5)
    assert losses[-1] != pytest.approx(expected[-1], rel=1e-6)


@WITH_HOROVOD
@pytest.mark.parametrize(
    ("framework", "lose"),
    [
        ("torch", kill),
        pytest.param("torch", stop, marks=pytest.mark.matrix),
        pytest.param("torch", kill_the_one_that_saves, marks=pytest.mark.matrix),
        pytest.param("torch", kill_the_executor, marks=pytest.mark.matrix),
        ("torch", cut_between_ranks),
        pytest.param("tensorflow", kill, marks=pytest.mark.matrix),
        pytest.param("tensorflow", cut_between_ranks, marks=pytest.mark.matrix),
    ],
)
def test_an_elastic_run_loses_a_worker_and_not_a_step(
    spark, make_run, reference, monitors, framework, lose
):
    steps, every = MANY_STEPS, 30
    settings = {"checkpoint_every": every, "keep_checkpoints": steps, "feed": "memory"}
    run = make_run(steps, framework=framework, elastic=True, **settings)
    before, ports = started(), listening()
    with MetricsLog(run) as log:

        def kill_once(line):
            log.add(line)
            if line["step"] == 3 and len(monitors) == 1:
                lose(monitors[0])

        outcome = train(spark, run, kill_once)
    assert len(monitors) == 2
    assert len(monitors[1]._shared.workers) == 1
    assert outcome.steps == steps
    assert [restart.workers for restart in outcome.restarts] == [1]
    np.testing.assert_allclose(outcome.losses, reference(steps, framework), rtol=1e-3)
    lines = (run.run_folder / "metrics.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in lines]
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert [line["loss"] for line in lines] == list(outcome.losses)
    seconds = [line["seconds"] for line in lines]
    assert seconds == sorted(seconds), "what the loss cost is a part of it"
    assert checkpoint_steps(run.run_folder) == list(range(0, steps + 1, every))
    wait_until_gone(before, ports)


@WITH_HOROVOD
def test_strangers_change_nothing_and_an_elastic_run_ends_with_its_last_worker(
    spark, make_run, monitors
):
    run = make_run(ENDLESS, framework="torch", elastic=True)
    before, ports, killed = started(), listening(), []
    losses, visited, told = [], set(), []

    def kill_each(line):
        losses.append(line["loss"])
        if line["step"] == 3:
            there = {c.laddr for c in connections() if c.status == psutil.CONN_LISTEN}
            visited.update(address for address in there if address.port not in ports)
            told.extend(visit(visited))
        if len(killed) < len(monitors) and line["step"] >= MANY_STEPS:
            killed.append(len(monitors[-1]._shared.workers) - 1)
            kill(monitors[-1], killed[-1])

    with pytest.raises(WorkerLostError, match=r"rank 0, host .*the worker's process died"):
        train(spark, run, kill_each)
    assert killed == [1, 0]
    wait_until_gone(before, ports)
    assert spark.range(3).count() == 3, "the session lives on"
    np.testing.assert_allclose(losses[:MANY_STEPS], trained_here(run, MANY_STEPS)[0], rtol=1e-3)
    assert len(visited) == 2, "monitor and store; the ranks do not listen any more"
    assert all(map(tells_nothing, told)), told
    assert not {address.ip for address in visited} & {"0.0.0.0", "::"}


@WITH_HOROVOD
def test_an_elastic_run_does_not_try_again_what_cannot_be_computed(spark, make_run, monitors):
    run = make_run(STEPS, framework="torch", elastic=True)
    run = with_settings(run, "objective", temperature=1e-45)
    with pytest.raises(EngineError, match=r"rank \d, host .*lower training\.learning_rate"):
        train(spark, run)
    assert len(monitors) == 1


def test_a_rank_that_cannot_speak_is_spoken_for(make_run, monkeypatch):
    run = make_run(2, workers=1)
    monkeypatch.setattr(
        "pipelines.engines.horovod.ranks.run_worker", lambda *_, **named: os._exit(3)
    )
    monitor = monitor_for("horovod", run, lambda line: None, "127.0.0.1")
    task = WorkerTask(run=run, rank=0, workers=1, monitor=monitor.address, token=monitor.token)
    died = r"rank 0, host .*the worker's process died \(exit code 3\)"
    with pytest.raises(EngineError, match=died), monitor:
        RankMaker(task=task, rendezvous=("", 0), token="").start([0])
        monitor.wait()


def test_what_is_left_of_a_run(make_run):
    run = with_settings(make_run(STEPS), "training", workers=4, granules_per_step=4, elastic=True)
    start = load_checkpoint(run.run_folder, 0)
    for step in (4, 8, 9):
        save_checkpoint(run.run_folder, dataclasses.replace(start, step=step), 9)
    torn = checkpoint_path(run.run_folder, 9) / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:-1])
    rest = rest_of(run, 9, 3)
    assert (rest.config.training.workers, rest.first_step, rest.last_step) == (2, 8, STEPS)
    assert rest.config.training.stall_seconds == 2 * run.config.training.stall_seconds
    # A checkpoint whose steps the driver has not heard of is not gone on from.
    rest = rest_of(rest, 7, 1)
    assert (rest.config.training.workers, rest.first_step) == (1, 4)
    assert rest_of(rest, 7, 0) is None
    assert rest_of(run, 3, 3).first_step == 0
    assert rest_of(with_settings(run, "training", elastic=False), 9, 3) is None


def lost(began=True):
    return WorkerLostError("horovod", "gone", began=began, rank=1)


@pytest.mark.parametrize(
    ("slots", "ends", "parts"),
    [
        ([3, 2], [lost(), lost()], [4, 2, 1]),
        # A host with two workers is gone, of which Spark learns between two starts.
        ([4, 4, 1], [lost(), lost(began=False), lost(began=False)], [4, 2, 2, 1]),
    ],
)
def test_parts_of_a_run_fit_what_is_left(make_run, monkeypatch, slots, ends, parts):
    """The decisions alone: what the parts do is tried with real workers above."""
    run = with_settings(make_run(STEPS), "training", workers=4, granules_per_step=4, elastic=True)
    tried, left, finished = [], iter(ends), object()

    def train_once(engine, session, part, *_):
        tried.append(part.config.training.workers)
        if (end := next(left, None)) is not None:
            raise end
        return finished

    monkeypatch.setattr(HorovodEngine, "run_workers", train_once)
    room = iter(slots)
    monkeypatch.setattr("pipelines.engines.horovod.engine.task_slots", lambda _: next(room))
    assert train(SimpleNamespace(sparkContext=None), run) is finished
    assert tried == parts


def test_a_cluster_that_does_not_fit_is_not_tried_again(make_run, monkeypatch):
    run = with_settings(make_run(STEPS), "training", workers=2, elastic=True)
    begun = iter([lost(began=False), lost(), lost(began=False)])

    def train_once(*_):
        raise next(begun)

    monkeypatch.setattr(HorovodEngine, "run_workers", train_once)
    monkeypatch.setattr("pipelines.engines.horovod.engine.task_slots", lambda _: 2)
    session = SimpleNamespace(sparkContext=None)
    with pytest.raises(WorkerLostError):
        train(session, run)
    assert len(list(begun)) == 2, "the first start was not tried again"
    begun = iter([lost(), lost(began=False)])
    monkeypatch.setattr("pipelines.engines.horovod.elastic.RECOVERY_SECONDS", -1.0)
    with pytest.raises(WorkerLostError):
        train(session, run)
    assert list(begun) == [], "a later one was, until its time was over"


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"workers": 1}, "training.elastic"),
        ({"workers": 2, "keep_checkpoints": 1}, "training.keep_checkpoints"),
    ],
)
def test_an_elastic_run_that_cannot_go_on_is_refused(make_run, settings, key):
    training = make_run(2, **settings, elastic=True).config.training
    with pytest.raises(EngineUnavailable) as caught:
        check_elastic(training)
    assert caught.value.key == key
    check_elastic(training.model_copy(update={"elastic": False}))


def test_without_horovod_the_way_to_it_is_named(make_run, monkeypatch):
    monkeypatch.setattr("pipelines.engines.horovod.engine.find_spec", lambda name: None)
    with pytest.raises(EngineUnavailable, match=r"training\.engine: .* `make horovod`"):
        load_engine("horovod").check(SimpleNamespace(), make_run(2).config)


def test_speculation_is_refused(make_run, monkeypatch):
    monkeypatch.setattr("pipelines.engines.horovod.engine.find_spec", lambda name: "found")
    speculating = SimpleNamespace(
        getConf=lambda: SparkConf(loadDefaults=False).set("spark.speculation", "true")
    )
    with pytest.raises(EngineUnavailable, match=r"spark\.speculation: .* set false"):
        load_engine("horovod").check(SimpleNamespace(sparkContext=speculating), make_run(2).config)
