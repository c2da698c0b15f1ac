"""The Elephas engine on a cluster: failures, and in the matrix its modes, and strangers.

The contract's runs go by either transport, one of them among strangers; what each answers these is
in `test_elephas_servers.py`.
"""

import threading

import numpy as np
import psutil
import pytest
from engine_cases import LAST_STEPS, resumed
from test_contract import check_state
from unauthenticated import approach, tells_nothing

from pipelines.engines.base import load_engine
from pipelines.engines.elephas.spark_model import GranuleModel
from pipelines.errors import EngineError, EngineUnavailable
from pipelines.runs.checkpoint import load_checkpoint, save_checkpoint

STEPS = 24
MATRIX = pytest.mark.matrix
TRANSPORTS = pytest.mark.parametrize("transport", ["http", "socket"])


def losses(spark, run, on_metrics=lambda line: None):
    return np.array(load_engine("elephas").train(spark, run, on_metrics).losses)


def listening() -> set[int]:
    connections = psutil.Process().net_connections("tcp")
    return {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}


@MATRIX
@pytest.mark.parametrize("mode", ["sync", "async", "hogwild"])
def test_one_worker_gives_the_curve_of_the_reference(spark, make_run, reference, mode):
    run = make_run(STEPS, workers=1, mode=mode, round_steps=4, transport="socket")
    np.testing.assert_allclose(losses(spark, run), reference(STEPS), rtol=1e-4)


@MATRIX
@TRANSPORTS
def test_in_step_the_curve_is_the_reference_even_among_unauthenticated_clients(
    spark, make_run, course, transport
):
    """It goes on from a state that one process has made."""
    run = make_run(STEPS, mode="async", max_staleness=0, transport=transport, checkpoint_every=5)
    expected = course(STEPS, workers=1, framework="tensorflow")
    begun = expected.middle.step
    save_checkpoint(run.run_folder, expected.middle, 9)
    before, answers, staying = listening(), [], []

    def let_strangers_come(line):
        if line["step"] - begun in (3, 7):
            for port in listening() - before:
                answered, half = approach(("127.0.0.1", port), transport)
                answers.extend(answered)
                staying.append(half)

    ours = losses(spark, resumed(run, begun), on_metrics=let_strangers_come)
    np.testing.assert_allclose(ours, expected.losses[begun:], rtol=1e-4)
    check_state(load_checkpoint(run.run_folder, STEPS), expected)
    assert answers
    assert all(map(tells_nothing, answers)), answers
    assert listening() == before
    for half in staying:
        half.close()


@MATRIX
@TRANSPORTS
def test_a_failure_leaves_nothing(spark, make_run, transport):
    ports, threads = listening(), set(threading.enumerate())

    def fail(line):
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        losses(spark, make_run(100_000, mode="async", transport=transport), on_metrics=fail)
    assert listening() == ports
    assert not threads_of_servers(threads)


def threads_of_servers(before: set[threading.Thread]) -> set[str]:
    """Those that have been started since, and are there."""
    left = {thread.name for thread in set(threading.enumerate()) - before}
    return {name for name in left if "elephas" in name or name.startswith("door")}


def test_the_error_of_the_spark_job_is_told(spark, make_run, monkeypatch):
    def lose_executors(model, rdd):
        raise RuntimeError("all executors are lost")

    monkeypatch.setattr(GranuleModel, "fit", lose_executors)
    ports, threads = listening(), set(threading.enumerate())
    with pytest.raises(EngineError, match=r"the Spark job failed \(all executors are lost\)"):
        losses(spark, make_run(2))
    assert listening() == ports
    assert not threads_of_servers(threads)


@MATRIX
def test_after_failures_hogwild_learns(spark, make_run, course):
    """Those above are of the same process and the same executors."""
    run = make_run(STEPS, mode="hogwild")
    still = course(STEPS, workers=1, framework="tensorflow").still
    assert np.mean(losses(spark, run)[-LAST_STEPS:]) < 0.97 * np.mean(still)


def test_too_few_slots_are_refused(spark, make_run):
    run = make_run(2, mode="async", workers=50)
    with pytest.raises(EngineUnavailable, match=r"training\.workers: .* 50 tasks at once"):
        load_engine("elephas").check(spark, run.config)
    load_engine("elephas").check(spark, make_run(2).config)
