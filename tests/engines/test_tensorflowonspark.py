"""What is TensorFlowOnSpark's own: parameters on its servers, and room for them."""

import os
import re
import signal
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest
from engine_cases import losses_here, resumed, stepper_here, trained_here
from losing_workers import process_of
from rings import in_ring
from test_contract import (
    ENDLESS,
    FROM_THE_FIRST,
    PROMPT_SECONDS,
    STALL_SECONDS,
    connections,
    distance,
    listening,
    started,
    wait_until_gone,
)
from unauthenticated import tells_nothing, visit

from pipelines.engines.base import load_engine
from pipelines.errors import EngineError
from pipelines.runs.checkpoint import checkpoint_steps, load_checkpoint, save_checkpoint
from pipelines.spark.errors import TaskPlace
from pipelines.training.collectives.ring import RingCollectives

STEPS = 12
BEGUN_STEPS = 6
# So many that strangers come, and a process is killed, while there are steps to make.
MANY_STEPS = 40
# Of the checkpoint that is compared.
KEPT_STEP = 20
ONES = np.ones([2, 3], np.float32)


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


@pytest.mark.matrix
@pytest.mark.parametrize(
    "settings",
    [
        {"workers": 1, "parameter_servers": 2, "feed": "spark"},
        {"workers": 1, "parameter_servers": 2},
        # An executor more than are needed.
        {"workers": 1, "feed": "spark"},
        {"workers": 1},
        {"workers": 2, "max_staleness": 0},
        {"workers": 2, "max_staleness": 0, "feed": "spark"},
    ],
    ids=str,
)
def test_gradients_that_are_never_old_give_the_curve_of_one_process(
    spark, make_run, reference, settings
):
    outcome = train(spark, make_run(STEPS, mode="async", checkpoint_every=5, **settings))
    np.testing.assert_allclose(outcome.losses, reference(STEPS), rtol=1e-4)
    assert outcome.staleness.most == 0


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


@pytest.mark.slow
def test_a_ring_brings_tensors_what_it_brings_arrays():
    tf = pytest.importorskip("tensorflow")
    from pipelines.engines.tensorflowonspark.nodes import TensorRing

    def act(ring):
        if ring.rank:
            # In a pool of one thread an operation of TensorFlow would wait for its peer's.
            arrays, part = RingCollectives(ring), np.ones([1, 3], np.float32)
            mean = ring.sum(np.array([1, 1, 1, 2], np.float32)) / arrays.workers
            return mean[:3], mean[3], arrays.all_gather(part), arrays.reduce_scatter(ONES)
        tensors, part = TensorRing(ring), tf.zeros([1, 3])
        mean = tf.function(lambda: tensors.all_reduce_mean([part, part[0, 0] + 1]))()
        return *mean, tensors.all_gather(part), tensors.reduce_scatter(tf.constant(ONES))

    of_tensors, of_arrays = in_ring(2, act, wait_seconds=120.0)
    assert all(map(tf.is_tensor, of_tensors))
    wanted = [[[0.5] * 3], 1.5, [[0.0] * 3, [1.0] * 3], [[2.0] * 3]]
    assert [one.numpy().tolist() for one in of_tensors] == wanted
    for found, expected in zip(of_arrays, wanted, strict=True):
        np.testing.assert_array_equal(np.ravel(found), np.ravel(expected))


class Strangers:
    """Visit all that a run listens at once it has made a few steps, and later kill a process of it.

    Args:
        monitors: Of the runs; the last is this one's.
        rank: Of the process, as it reports to the monitor.
    """

    def __init__(self, monitors, rank):
        self.monitors, self.rank = monitors, rank
        self.before, self.visited, self.told = listening(), set(), []
        self.lines, self.killed = [], []

    def come(self, line):
        self.lines.append(line)
        if len(self.lines) == 3:
            there = {c.laddr for c in connections() if c.status == psutil.CONN_LISTEN}
            self.visited.update(one for one in there if one.port not in self.before)
            self.told.extend(visit(self.visited))
        if len(self.lines) >= MANY_STEPS and not self.killed:
            os.kill(process_of(self.monitors[-1], self.rank), signal.SIGKILL)
            self.killed.append(time.monotonic())

    def check(self, doors):
        """They have found so many doors, and learnt nothing at any."""
        assert len(self.visited) == doors
        assert all(map(tells_nothing, self.told)), self.told
        assert {address.ip for address in self.visited} == {"127.0.0.1"}


def train_among(strangers, spark, run):
    """Trains from the step on that the run goes on from, and checks what comes of it.

    Returns:
        The state of one process before :data:`KEPT_STEP`.
    """
    before, ports = started(), listening()
    with pytest.raises(EngineError) as caught:
        train(spark, run, on_metrics=strangers.come)
    died = rf"rank {strangers.rank}, host .*the worker's process died"
    assert re.search(died, str(caught.value))
    assert time.monotonic() - strangers.killed[0] < PROMPT_SECONDS
    wait_until_gone(before, ports)
    stepper = stepper_here(run)
    expected = losses_here(stepper, run, KEPT_STEP - run.first_step)
    kept = stepper.checkpoint(KEPT_STEP)
    rest = losses_here(stepper, resumed(run, KEPT_STEP), MANY_STEPS - len(expected))
    losses = [line["loss"] for line in strangers.lines[:MANY_STEPS]]
    np.testing.assert_allclose(losses, np.append(expected, rest), rtol=1e-3)
    return kept


def begun(run):
    """The run as it goes on from a state that one process has made."""
    _, state = trained_here(run, BEGUN_STEPS)
    save_checkpoint(run.run_folder, state, 9)
    return resumed(run, BEGUN_STEPS)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("workers", "servers", "feed"), [(1, 2, "spark"), (2, 1, "lanes"), (2, 1, "spark")]
)
def test_strangers_change_nothing_and_a_process_that_is_killed_ends_the_run(
    spark, make_run, monitors, triplets, workers, servers, feed
):
    """The second run is in the session in which the first has failed.

    Its workers compare their triplets with those of the whole step, of which each has a part.
    """
    limits = {"stall_seconds": STALL_SECONDS, **FROM_THE_FIRST}
    # Steps are made while strangers are there.
    limits |= {"checkpoint_every": KEPT_STEP, "keep_checkpoints": ENDLESS}
    settings = {"mode": "async", "max_staleness": 0, "workers": workers, "feed": feed}
    strangers = Strangers(monitors, rank=2)
    run = begun(make_run(ENDLESS, parameter_servers=servers, **settings, **limits))
    kept = train_among(strangers, spark, run).weights
    # Monitor, registration and the parameter servers.
    strangers.check(doors=2 + servers)
    assert {line["staleness_max"] for line in strangers.lines} == {0}
    first, found = (
        load_checkpoint(run.run_folder, step).weights for step in (BEGUN_STEPS, KEPT_STEP)
    )
    assert distance(found, kept) < 1e-3 * distance(first, kept)

    strangers = Strangers(monitors, rank=1)
    settings = {"data": triplets, "negatives": "step", "dropout": 0.1, "feed": "spark"}
    train_among(strangers, spark, make_run(ENDLESS, "ring", workers=2, **settings, **limits))
    # Monitor, registration and each worker's end of the ring.
    strangers.check(doors=4)
    assert spark.range(3).count() == 3, "the session lives on"
