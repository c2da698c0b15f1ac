"""What is Horovod's own: fp16 on the way, and in the matrix strangers and restarts.

Strangers come to a run of the contract too.
"""

import os
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from engine_cases import OF_WHOLE_STEPS, WITH_HOROVOD, trained_here
from losing_workers import kill
from pyspark import SparkConf
from test_contract import ENDLESS, FROM_THE_FIRST, connections, listening, started, wait_until_gone
from unauthenticated import tells_nothing, visit

from pipelines.engines.base import load_engine, monitor_for
from pipelines.engines.horovod.ranks import train_rank
from pipelines.engines.horovod.rendezvous import RendezvousClient
from pipelines.engines.spark_engine import run_in_child
from pipelines.errors import EngineError, EngineUnavailable, WorkerLostError
from pipelines.runs.run import WorkerTask
from pipelines.runs.step_metrics import StepMetrics

FEW_STEPS = 12
# So many that strangers come, and a worker is killed, while there are steps to make.
MANY_STEPS = 60


def train(spark, run, on_metrics=lambda line: None):
    return load_engine("horovod").train(spark, run, on_metrics)


@WITH_HOROVOD
@pytest.mark.matrix
@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_gradients_as_fp16_give_nearly_the_same_curve(spark, make_run, reference, framework):
    run = make_run(FEW_STEPS, framework=framework, compression="fp16")
    losses = train(spark, run).losses
    expected = reference(FEW_STEPS, framework)
    np.testing.assert_allclose(losses, expected, rtol=2e-2)
    # The first is of weights that no gradient has reached, and is itself not rounded.
    assert losses[0] == pytest.approx(expected[0], rel=1e-5)
    assert not np.allclose(losses[1:], expected[1:], rtol=1e-6, atol=0)


def ran(program: str) -> subprocess.CompletedProcess[str]:
    """Runs ranks, which exchange by Gloo, to their end."""
    gloo = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | gloo,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


# A rank without others; its process also holds that Keras is not imported.
SINGLE_RANK = """
import sys
from pipelines.engines.horovod.tensorflow import TensorFlowCollectives, tf
collectives = TensorFlowCollectives("fp16")
gradient, loss = collectives.all_reduce_mean([tf.constant([1.0001, 1e-9]), tf.constant(1.0001)])
print(gradient.numpy().tolist(), float(loss) == float(tf.constant(1.0001)), "keras" in sys.modules)
collectives.leave()
"""


@WITH_HOROVOD
def test_tensorflow_sends_gradients_as_fp16_and_the_loss_as_it_is():
    ended = ran(SINGLE_RANK)
    assert ended.stdout == "[1.0, 0.0] True False\n", ended.stderr


# Two ranks of TensorFlow, and one of PyTorch; they also hold that Keras is not imported.
RANKS = """
import os
import sys
import traceback
import torch
from pipelines.engines.horovod.ranks import GLOO_INTERFACE, environment
from pipelines.engines.horovod.rendezvous import Place, Rendezvous, RendezvousClient
from pipelines.engines.horovod.tensorflow import TensorFlowCollectives, tf
from pipelines.engines.horovod.torch import TorchCollectives

def tell_means(collectives, tensor):
    gradient, loss = tensor([1.0001, 1e-9]), tensor(1.0001 + 2 * collectives.rank)
    gradient, mean = collectives.all_reduce_mean([gradient, loss])
    exact = float(mean) == float(tensor(1.0001 + collectives.workers - 1))
    return f"{gradient.numpy().tolist()} {exact}"

def work(collectives):
    rank = collectives.rank
    told = [tell_means(collectives, tf.constant)]
    for found in (
        collectives.all_gather(tf.fill([1 + rank, 2], float(rank))),
        collectives.reduce_scatter(tf.fill([2, 2], 1.0 + rank)),
    ):
        told.append(found.numpy().tolist())
    print(*told, "keras" in sys.modules, flush=True)

with Rendezvous("127.0.0.1", "127.0.0.1") as store:
    for rank in range(2):
        if not os.fork():
            client = RendezvousClient(store.address, store.token)
            os.environ |= environment(2 * [Place("here", "")], rank, ()) | client.environment()
            os.environ[GLOO_INTERFACE] = "lo"
            try:
                collectives = TensorFlowCollectives("fp16")
                work(collectives)
                collectives.leave()
                os._exit(0)
            finally:
                # An error does not leave through the parent's store.
                traceback.print_exc()
                os._exit(1)
    assert [os.wait()[1] for _ in range(2)] == [0, 0]
alone = TorchCollectives("fp16")
print(tell_means(alone, torch.tensor))
alone.leave()
"""


@WITH_HOROVOD
@pytest.mark.matrix
def test_gradients_are_sent_as_fp16_and_what_else_is_sent_as_it_is():
    ended = ran(RANKS)
    gathered, scattered = [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]], [[3.0, 3.0]]
    rank = f"[1.0, 0.0] True {gathered} {scattered} False"
    told = ended.stdout.splitlines()
    assert told == [rank, rank, "[1.0, 0.0] True"], (told, ended.returncode, ended.stderr)


@WITH_HOROVOD
@pytest.mark.matrix
def test_strangers_change_nothing_and_a_run_ends_with_its_last_restart(spark, make_run, monitors):
    settings = {"framework": "torch", "feed": "memory", **OF_WHOLE_STEPS, **FROM_THE_FIRST}
    run = make_run(ENDLESS, restarts=1, checkpoint_every=25, **settings)
    before, ports, killed = started(), listening(), []
    losses, visited, told = [], set(), []

    def kill_each(line):
        losses.append(line["loss"])
        if line["step"] == 3:
            there = {c.laddr for c in connections() if c.status == psutil.CONN_LISTEN}
            visited.update(address for address in there if address.port not in ports)
            told.extend(visit(visited))
        if len(killed) < len(monitors) and line["step"] >= MANY_STEPS:
            killed.append(len(killed))
            kill(spark, monitors[-1], killed[-1])

    with pytest.raises(WorkerLostError, match=r"rank 1, host .*the worker's process died"):
        train(spark, run, kill_each)
    assert killed == [0, 1]
    wait_until_gone(before, ports)
    assert spark.range(3).count() == 3, "the session lives on"
    np.testing.assert_allclose(losses[:MANY_STEPS], trained_here(run, MANY_STEPS)[0], rtol=1e-3)
    assert len(visited) == 2, "monitor and store; the ranks do not listen any more"
    assert all(map(tells_nothing, told)), told
    assert not {address.ip for address in visited} & {"0.0.0.0", "::"}


def test_a_rank_that_cannot_speak_is_spoken_for(make_run, monkeypatch):
    run = make_run(2, workers=1)
    monkeypatch.setattr(
        "pipelines.engines.horovod.ranks.run_worker", lambda *_, **named: os._exit(3)
    )
    monitor = monitor_for("horovod", run, StepMetrics(run, 1, lambda line: None), "127.0.0.1")
    task = WorkerTask(run=run, rank=0, workers=1, monitor=monitor.address, token=monitor.token)
    died = r"rank 0, host .*the worker's process died \(exit code 3\)"
    with pytest.raises(EngineError, match=died), monitor:
        run_in_child(task, partial(train_rank, RendezvousClient(("", 0), "")))
        monitor.wait()


def test_without_horovod_the_way_to_it_is_named(make_run, monkeypatch):
    monkeypatch.setattr("pipelines.engines.horovod.engine.is_installed", lambda name: False)
    with pytest.raises(EngineUnavailable, match=r"training\.engine: .* `make horovod`"):
        load_engine("horovod").check_libraries(make_run(2).config)


def test_speculation_is_refused(make_run):
    speculating = SimpleNamespace(
        getConf=lambda: SparkConf(loadDefaults=False).set("spark.speculation", "true")
    )
    with pytest.raises(EngineUnavailable, match=r"spark\.speculation: .* Set false"):
        load_engine("horovod").check(SimpleNamespace(sparkContext=speculating), make_run(2).config)
