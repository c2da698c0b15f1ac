"""What is TensorFlowOnSpark's own: parameters on its servers, and room for them."""

import os
import re
import signal
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest
from engine_cases import resumed, trained_here
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
from pipelines.spark.task_places import TaskPlace

STEPS = 24
# So many that strangers come, and a server is killed, while there are steps to make.
MANY_STEPS = 240


@pytest.fixture
def expected(reference):
    """The loss curve of the reference."""
    return reference(STEPS)


def train(spark, run, on_metrics=lambda line: None):
    return load_engine("tensorflowonspark").train(spark, run, on_metrics)


@pytest.mark.slow
@pytest.mark.parametrize(("registered", "number"), [({1, 2}, 0), ({0, 2}, 1), ({0}, 1)])
def test_a_node_that_never_registered_is_found(registered, number):
    from pipelines.engines.tensorflowonspark.cluster import silent_node

    places = [TaskPlace(2, "c"), TaskPlace(1, "b"), TaskPlace(0, "a")]
    assert silent_node(places, registered) == TaskPlace(number, "abc"[number])
    assert silent_node(places, {0, 1, 2}) is None
    # Nodes that wait for an executor are nowhere.
    assert silent_node([], {0}) is None


@pytest.mark.slow
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


class Strangers:
    """Visit all that a run listens at, once it has made a few steps."""

    def __init__(self):
        self.before, self.visited, self.told = listening(), set(), []

    def come(self, line):
        if line["step"] == 3:
            there = {c.laddr for c in connections() if c.status == psutil.CONN_LISTEN}
            self.visited.update(one for one in there if one.port not in self.before)
            self.told.extend(visit(self.visited))

    def check(self, doors):
        """They have found so many doors, and learnt nothing at any."""
        assert len(self.visited) == doors
        assert all(map(tells_nothing, self.told)), self.told
        assert {address.ip for address in self.visited} == {"127.0.0.1"}


@pytest.mark.parametrize("feed", ["lanes", pytest.param("spark", marks=pytest.mark.matrix)])
def test_strangers_change_nothing_and_a_parameter_server_that_is_killed_ends_the_run(
    spark, make_run, monitors, feed
):
    settings = {"mode": "async", "max_staleness": 0, "feed": feed, "stall_seconds": STALL_SECONDS}
    run = make_run(ENDLESS, **settings)
    before, ports, killed, losses, strangers = started(), listening(), [], [], Strangers()

    def kill_at_last(line):
        losses.append(line["loss"])
        strangers.come(line)
        if line["step"] >= MANY_STEPS and not killed:
            there = monitors[-1]._shared.workers[2].connection.getpeername()[1]
            # The field of the file descriptor holds the process.
            server = next(c.fd for c in connections() if c.laddr.port == there)
            os.kill(server, signal.SIGKILL)
            killed.append(time.monotonic())

    with pytest.raises(EngineError) as caught:
        train(spark, run, on_metrics=kill_at_last)
    assert re.search(r"rank 2, host .*the worker's process died", str(caught.value))
    assert time.monotonic() - killed[0] < PROMPT_SECONDS
    wait_until_gone(before, ports)
    expected, _ = trained_here(run, MANY_STEPS)
    np.testing.assert_allclose(losses[:MANY_STEPS], expected, rtol=1e-3)
    # Monitor, registration and the parameter server.
    strangers.check(doors=3)
    assert train(spark, make_run(2, "next", mode="async", feed=feed)).steps == 2


def test_unauthenticated_clients_of_a_ring_learn_and_change_nothing(spark, make_run, reference):
    strangers = Strangers()
    outcome = train(spark, make_run(MANY_STEPS, workers=2), on_metrics=strangers.come)
    np.testing.assert_allclose(outcome.losses, reference(MANY_STEPS), rtol=1e-3)
    # Monitor, registration and each worker's end of the ring.
    strangers.check(doors=4)
