"""What is TensorFlowOnSpark's own: parameters on its servers, and room for them."""

import os
import re
import signal
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest
from engine_cases import resumed
from test_contract import (
    ENDLESS,
    PROMPT_SECONDS,
    STALL_SECONDS,
    connections,
    listening,
    started,
    wait_until_gone,
)
from unauthenticated import tells_nothing, visit

from pipelines.engines.base import monitor_for
from pipelines.engines.loading import load_engine
from pipelines.errors import EngineError
from pipelines.runs.checkpoint import checkpoint_steps

STEPS = 24
# So many that strangers come, and a server is killed, while there are steps to make.
MANY_STEPS = 240


@pytest.fixture
def expected(reference):
    """The loss curve of the reference."""
    return reference(STEPS)


def train(spark, run, on_metrics=lambda line: None):
    return load_engine("tensorflowonspark").train(spark, run, on_metrics)


@pytest.mark.parametrize("kind", [ConnectionError, TimeoutError])
def test_a_ring_that_broke_is_another_workers_end_through_tensorflow_too(kind):
    tf = pytest.importorskip("tensorflow")
    from pipelines.engines.tensorflowonspark.collectives import means_peer_lost

    def fail(cause):
        def operation(values):
            raise cause

        with pytest.raises(tf.errors.OpError) as caught:
            tf.function(lambda: tf.numpy_function(operation, [[1.0]], tf.float32))()
        return caught.value

    broken = kind("the ring to worker 1 broke (reset)")
    assert means_peer_lost(broken)
    assert means_peer_lost(fail(broken))
    assert not means_peer_lost(fail(ValueError("of its own")))
    assert not means_peer_lost(OSError("a file"))


@pytest.mark.parametrize(
    "settings",
    [
        {"workers": 1, "parameter_servers": 2},
        # An executor more than are needed.
        {"workers": 1, "feed": "spark"},
        pytest.param({"workers": 1}, marks=pytest.mark.matrix),
        pytest.param({"workers": 2, "max_staleness": 0}, marks=pytest.mark.matrix),
        pytest.param({"workers": 2, "max_staleness": 0, "feed": "spark"}, marks=pytest.mark.matrix),
    ],
    ids=str,
)
def test_gradients_that_are_never_old_give_the_curve_of_one_process(
    spark, make_run, expected, settings
):
    outcome = train(spark, make_run(STEPS, mode="async", checkpoint_every=6, **settings))
    np.testing.assert_allclose(outcome.losses, expected, rtol=1e-4)
    assert outcome.staleness.most == 0


@pytest.mark.matrix
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


@pytest.mark.parametrize("feed", ["lanes", pytest.param("spark", marks=pytest.mark.matrix)])
def test_a_parameter_server_that_is_killed_ends_the_run(spark, make_run, monitors, feed):
    run = make_run(ENDLESS, mode="async", feed=feed, stall_seconds=STALL_SECONDS)
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
    assert time.monotonic() - killed[0] < PROMPT_SECONDS
    wait_until_gone(before, ports)
    assert train(spark, make_run(2, "next", mode="async", feed=feed)).steps == 2


@pytest.mark.parametrize(
    ("mode", "doors"),
    [
        # Monitor and registration, and then the workers' ring or the parameter server.
        ("sync", 4),
        ("async", 3),
    ],
)
def test_unauthenticated_clients_learn_and_change_nothing(spark, make_run, reference, mode, doors):
    before, visited, told = listening(), set(), []

    def let_strangers_come(line):
        if line["step"] == 3:
            there = {c.laddr for c in connections() if c.status == psutil.CONN_LISTEN}
            visited.update(address for address in there if address.port not in before)
            told.extend(visit(visited))

    run = make_run(MANY_STEPS, mode=mode, workers=2, max_staleness=0)
    outcome = train(spark, run, on_metrics=let_strangers_come)
    np.testing.assert_allclose(outcome.losses, reference(MANY_STEPS), rtol=1e-3)
    assert len(visited) == doors
    assert all(map(tells_nothing, told)), told
    assert {address.ip for address in visited} == {"127.0.0.1"}
