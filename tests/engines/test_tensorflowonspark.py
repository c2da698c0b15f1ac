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
from losing_workers import process_of
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

from pipelines.engines.base import load_engine
from pipelines.errors import EngineError
from pipelines.runs.checkpoint import checkpoint_steps, save_checkpoint
from pipelines.spark.errors import TaskPlace

STEPS = 12
BEGUN_STEPS = 6
# So many that strangers come, and a process is killed, while there are steps to make.
MANY_STEPS = 60


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
    from pipelines.engines.tensorflowonspark.nodes import means_peer_lost

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
        {"workers": 1, "parameter_servers": 2, "feed": "spark"},
        pytest.param({"workers": 1, "parameter_servers": 2}, marks=pytest.mark.matrix),
        # An executor more than are needed.
        pytest.param({"workers": 1, "feed": "spark"}, marks=pytest.mark.matrix),
        pytest.param({"workers": 1}, marks=pytest.mark.matrix),
        pytest.param({"workers": 2, "max_staleness": 0}, marks=pytest.mark.matrix),
        pytest.param({"workers": 2, "max_staleness": 0, "feed": "spark"}, marks=pytest.mark.matrix),
    ],
    ids=str,
)
def test_gradients_that_are_never_old_give_the_curve_of_one_process(
    spark, make_run, reference, settings
):
    outcome = train(spark, make_run(STEPS, mode="async", checkpoint_every=5, **settings))
    np.testing.assert_allclose(outcome.losses, reference(STEPS), rtol=1e-4)
    assert outcome.staleness.most == 0


def test_triplets_that_spark_feeds_give_the_curve_of_one_process(spark, make_run, triplets):
    """Each worker compares its texts with those of the whole step, of which it has a part."""
    settings = {"data": triplets, "negatives": "step", "dropout": 0.1}
    expected, _ = trained_here(make_run(STEPS, "alone", workers=1, **settings))
    outcome = train(spark, make_run(STEPS, workers=2, feed="spark", **settings))
    np.testing.assert_allclose(outcome.losses, expected, rtol=1e-3)


@pytest.mark.matrix
def test_a_run_goes_on_from_a_checkpoint_in_either_mode(spark, make_run):
    run = make_run(STEPS, mode="async", max_staleness=0, checkpoint_every=5)
    whole = train(spark, run)
    assert checkpoint_steps(run.run_folder) == [0, 5, 10, STEPS]
    rest = train(spark, resumed(run, 5))
    np.testing.assert_allclose(rest.losses, whole.losses[5:], rtol=1e-4)
    training = run.config.training.model_copy(update={"mode": "sync"})
    together = replace(run, config=run.config.model_copy(update={"training": training}))
    rest = train(spark, resumed(together, 5))
    np.testing.assert_allclose(rest.losses, whole.losses[5:], rtol=1e-3)


class Strangers:
    """Visit all that a run listens at once it has made a few steps, and later kill a process of it.

    Args:
        monitors: Of the runs; the last is this one's.
        rank: Of the process, as it reports to the monitor.
    """

    def __init__(self, monitors, rank):
        self.monitors, self.rank = monitors, rank
        self.before, self.visited, self.told = listening(), set(), []
        self.losses, self.killed = [], []

    def come(self, line):
        self.losses.append(line["loss"])
        if len(self.losses) == 3:
            there = {c.laddr for c in connections() if c.status == psutil.CONN_LISTEN}
            self.visited.update(one for one in there if one.port not in self.before)
            self.told.extend(visit(self.visited))
        if len(self.losses) >= MANY_STEPS and not self.killed:
            os.kill(process_of(self.monitors[-1], self.rank), signal.SIGKILL)
            self.killed.append(time.monotonic())

    def check(self, doors):
        """They have found so many doors, and learnt nothing at any."""
        assert len(self.visited) == doors
        assert all(map(tells_nothing, self.told)), self.told
        assert {address.ip for address in self.visited} == {"127.0.0.1"}


def train_among(strangers, spark, run):
    """Trains from the step on that the run goes on from, and checks what comes of it."""
    before, ports = started(), listening()
    with pytest.raises(EngineError) as caught:
        train(spark, run, on_metrics=strangers.come)
    died = rf"rank {strangers.rank}, host .*the worker's process died"
    assert re.search(died, str(caught.value))
    assert time.monotonic() - strangers.killed[0] < PROMPT_SECONDS
    wait_until_gone(before, ports)
    expected, _ = trained_here(run, MANY_STEPS)
    np.testing.assert_allclose(strangers.losses[:MANY_STEPS], expected, rtol=1e-3)


def begun(run):
    """The run as it goes on from a state that one process has made."""
    _, state = trained_here(run, BEGUN_STEPS)
    save_checkpoint(run.run_folder, state, 9)
    return resumed(run, BEGUN_STEPS)


@pytest.mark.parametrize("feed", ["lanes", pytest.param("spark", marks=pytest.mark.matrix)])
def test_strangers_change_nothing_and_a_process_that_is_killed_ends_the_run(
    spark, make_run, monitors, feed
):
    """The second run is in the session in which the first has failed."""
    settings = {"mode": "async", "max_staleness": 0, "feed": feed, "stall_seconds": STALL_SECONDS}
    strangers = Strangers(monitors, rank=2)
    train_among(strangers, spark, begun(make_run(ENDLESS, **settings)))
    # Monitor, registration and the parameter server.
    strangers.check(doors=3)

    strangers = Strangers(monitors, rank=1)
    train_among(strangers, spark, make_run(ENDLESS, "ring", stall_seconds=STALL_SECONDS))
    # Monitor, registration and each worker's end of the ring.
    strangers.check(doors=4)
    assert spark.range(3).count() == 3, "the session lives on"
