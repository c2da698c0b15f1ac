"""What is TensorFlowOnSpark's own: parameters on its servers, and room for them."""

import multiprocessing
import os
import re
import signal
import socket
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from contestants import resumed
from hypothesis import given
from hypothesis import strategies as st
from strangers import MESSAGES, approach
from test_contract import connections, listening, started, wait_until_gone

from pipelines.config import parse
from pipelines.encoder.spec import EncoderSpec
from pipelines.encoder.weights import random_weights, weight_shapes
from pipelines.engines import engine
from pipelines.engines.base import monitor_for
from pipelines.engines.tensorflowonspark.shards import Layout, shards
from pipelines.errors import EngineError
from pipelines.training.adamw import AdamW
from pipelines.training.checkpoint import Checkpoint, checkpoint_steps, save_checkpoint
from pipelines.training.run import TrainingRun, WorkerTask

STEPS = 20
SPEC = EncoderSpec(vocabulary=50, layers=1, hidden=16, heads=2, intermediate=32, positions=8)


@pytest.fixture(scope="module")
def references():
    """The loss curve of the reference, once it is known."""
    return []


@pytest.fixture
def expected(spark, make_run, references):
    """The loss curve of the reference."""
    if not references:
        references.append(train(spark, make_run(STEPS, "reference", workers=1), "local").losses)
    return references[0]


def train(spark, run, name="tensorflowonspark", on_metrics=lambda line: None):
    return engine(name).train(spark, run, on_metrics)


@given(st.integers(0, 5000), st.integers(0, 500), st.integers(1, 9), st.integers(1, 700))
def test_every_server_holds_as_much_as_every_other(matrices, others, servers, largest):
    pieces = shards(matrices, others, servers, largest)
    covered = [number for piece in pieces for number in range(piece.start, piece.stop)]
    assert covered == list(range(matrices + others))
    assert all(piece.stop - piece.start <= largest for piece in pieces)
    assert all(piece.decayed == (piece.stop <= matrices) for piece in pieces)
    held = np.zeros(servers, int)
    for piece in pieces:
        held[piece.server] += piece.stop - piece.start
    assert held.max() - held.min() <= 2 * -(-(matrices + others) // largest) + 2


@given(st.integers(1, 7), st.integers(0, 99))
def test_pieces_become_the_weights_again(servers, seed):
    weights = random_weights(SPEC, seed)
    layout = Layout(weight_shapes(SPEC), servers)
    again = layout.join([piece.copy() for piece in layout.cut(weights)])
    assert list(again) == list(weights)
    for name, weight in weights.items():
        np.testing.assert_array_equal(again[name], weight)


def free_ports(count):
    with_ports = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in with_ports]
    for one in with_ports:
        one.close()
    return ports


def train_on_servers(run, results):
    """Two servers and a worker in one process, which goes with them."""
    from pipelines.engines.tensorflowonspark.servers import served_parameters, start_server

    hosts = [f"127.0.0.1:{port}" for port in free_ports(3)]
    cluster = {"ps": hosts[:2], "chief": hosts[2:]}

    def node(job, index):
        return SimpleNamespace(
            cluster_spec=cluster, job_name=job, task_index=index, tmp_socket=None
        )

    for index in range(2):
        start_server(node("ps", index), threads=1)
    task = WorkerTask(run=run, rank=0, workers=1, monitor=("", 0), token="")
    parameters = served_parameters(task, node("chief", 0))
    seen = []
    for step in range(run.first_step, run.last_step):
        weights, made = parameters.pull()
        gradients = {name: np.cos(value + step) for name, value in weights.items()}
        pushed = parameters.push(step, gradients, 1e-2)
        seen.append((made, pushed, parameters.progress()))
    parameters.mark_saved(run.last_step)
    results.put((seen, parameters.progress(), parameters.state()))
    results.close()
    results.join_thread()
    os._exit(0)


def test_servers_make_the_updates_of_adamw(tmp_path):
    training = {"mode": "async", "workers": 1, "parameter_servers": 2, "weight_decay": 0.1}
    run = TrainingRun(
        config=parse({"training": training}),
        plan=None,
        manifest=None,
        lanes_folder=tmp_path,
        run_folder=tmp_path,
        first_step=3,
        last_step=8,
    )
    weights = random_weights(SPEC, 3)
    shapes = {f"{kind}/{name}": value.shape for name, value in weights.items() for kind in "mv"}
    moments = {name: np.full(shape, 1e-3, np.float32) for name, shape in shapes.items()}
    save_checkpoint(run.run_folder, Checkpoint(3, SPEC, weights, moments), 9)

    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=train_on_servers, args=(run, results))
    process.start()
    try:
        seen, progress, (ours, our_moments) = results.get(timeout=120)
    finally:
        process.kill()
        process.join()

    reference = AdamW(weights, moments, weight_decay=0.1)
    for step in range(3, 8):
        gradients = {name: np.cos(value + step) for name, value in reference.weights.items()}
        reference.update(gradients, 1e-2, step + 1)
    for name, value in reference.weights.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    for name, value in reference.moments.items():
        np.testing.assert_allclose(our_moments[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    assert [(made, pushed) for made, pushed, _ in seen] == [(n, n + 1) for n in range(3, 8)]
    assert [(one.applied, one.saved) for *_, one in seen] == [(n + 1, 3) for n in range(3, 8)]
    assert (progress.applied, progress.saved) == (8, 8)


@pytest.mark.parametrize(
    "settings",
    [
        {"workers": 1},
        {"workers": 1, "parameter_servers": 2},
        {"workers": 2, "max_staleness": 0},
        {"workers": 2, "max_staleness": 0, "feed": "spark"},
        # An executor more than are needed.
        {"workers": 1, "feed": "spark"},
    ],
    ids=str,
)
def test_gradients_that_are_never_old_give_the_curve_of_one_process(
    spark, make_run, expected, settings
):
    outcome = train(spark, make_run(STEPS, mode="async", checkpoint_every=6, **settings))
    np.testing.assert_allclose(outcome.losses, expected, rtol=1e-4)
    assert outcome.staleness.most == 0


def test_a_run_goes_on_from_a_checkpoint_in_either_mode(spark, make_run):
    run = make_run(STEPS, mode="async", max_staleness=0, checkpoint_every=8)
    whole = train(spark, run)
    assert checkpoint_steps(run.run_folder) == [0, 8, 16, STEPS]
    rest = train(spark, resumed(run, 8))
    np.testing.assert_allclose(rest.losses, whole.losses[8:], rtol=1e-4)
    training = run.config.training.model_copy(update={"mode": "sync"})
    together = replace(run, config=run.config.model_copy(update={"training": training}))
    rest = train(spark, resumed(together, 8))
    np.testing.assert_allclose(rest.losses, whole.losses[8:], rtol=1e-3)


@pytest.fixture
def monitors(monkeypatch):
    """The monitors of the engine's runs."""
    made = []

    def keep(*arguments, **named):
        made.append(monitor_for(*arguments, **named))
        return made[-1]

    monkeypatch.setattr("pipelines.engines.tensorflowonspark.engine.monitor_for", keep)
    return made


@pytest.mark.parametrize("feed", ["lanes", "spark"])
def test_a_parameter_server_that_is_killed_ends_the_run(spark, make_run, monitors, feed):
    run = make_run(100_000, mode="async", feed=feed)
    before, ports, killed = started(), listening(), []

    def kill_once(line):
        if line["step"] >= 3 and not killed:
            there = monitors[-1]._shared.workers[2].connection.getpeername()[1]
            # The field of the file descriptor holds the process.
            server = next(c.fd for c in connections() if c.laddr.port == there)
            os.kill(server, signal.SIGKILL)
            killed.append(time.monotonic())

    with pytest.raises(EngineError) as caught:
        train(spark, run, on_metrics=kill_once)
    assert re.search(r"rank 2, host .*the worker's process died", str(caught.value))
    assert time.monotonic() - killed[0] < 30
    wait_until_gone(before, ports)
    assert train(spark, make_run(2, "next", mode="async", feed=feed)).steps == 2


def test_strangers_that_do_not_speak_its_protocol_change_nothing(spark, make_run, expected):
    before, told = listening(), []

    def let_strangers_come(line):
        if line["step"] == 3:
            for port in listening() - before:
                for transport in MESSAGES:
                    answers, staying = approach(("127.0.0.1", port), transport)
                    told.extend(answers)
                    staying.close()

    run = make_run(STEPS, mode="async", workers=2, max_staleness=0)
    outcome = train(spark, run, on_metrics=let_strangers_come)
    np.testing.assert_allclose(outcome.losses, expected, rtol=1e-4)
    assert told
    assert max(map(len, told)) < 4096, "words of refusal: the weights are fifty times as long"
