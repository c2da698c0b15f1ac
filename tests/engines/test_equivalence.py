"""The same loss curve on every engine and every number of workers."""

import numpy as np
import pytest
from engine_cases import WITH_HOROVOD

from pipelines.engines.loading import load_engine

STEPS = 30


@pytest.fixture(scope="module")
def reference():
    """Loss curves of the reference, by objective settings."""
    return {}


def curve(spark, run, name):
    return np.array(load_engine(name).train(spark, run, lambda line: None).losses)


@pytest.mark.parametrize("feed", ["lanes", "spark"])
def test_two_workers_give_the_curve_of_one_process(spark, make_run, reference, feed):
    if "plain" not in reference:
        reference["plain"] = curve(spark, make_run(STEPS, "reference", workers=1), "local")
        untrained = make_run(STEPS, "untrained", workers=1, learning_rate=1e-12)
        # On the same granules: the losses of a corpus differ more than few steps teach.
        reference["untrained"] = curve(spark, untrained, "local")
    ours = curve(spark, make_run(STEPS, workers=2, feed=feed), "tensorflowonspark")
    np.testing.assert_allclose(ours, reference["plain"], rtol=1e-3)
    assert reference["plain"][-5:].mean() < reference["untrained"][-5:].mean()


SHARDINGS = [
    ("bigdl", "none"),
    ("torch", "none"),
    ("torch", "parameters"),
    ("deepspeed", "parameters"),
    pytest.param("deepspeed", "optimizer", marks=pytest.mark.matrix),
    pytest.param("deepspeed", "gradients", marks=pytest.mark.matrix),
]


@pytest.mark.parametrize(("name", "sharding"), SHARDINGS)
def test_two_workers_of_pytorch_give_the_curve_of_one_process(
    spark, make_run, reference, name, sharding
):
    if "torch" not in reference:
        alone = make_run(STEPS, "reference", workers=1, framework="torch")
        reference["torch"] = curve(spark, alone, "local")
    run = make_run(STEPS, workers=2, framework="torch", sharding=sharding, feed="memory")
    ours = curve(spark, run, name)
    np.testing.assert_allclose(ours, reference["torch"], rtol=1e-3)


def with_step_negatives(run):
    objective = run.config.objective.model_copy(update={"negatives": "step"})
    config = run.config.model_copy(update={"objective": objective})
    return type(run)(**(vars(run) | {"config": config}))


@pytest.mark.parametrize("name", ["torch", "bigdl"])
def test_pytorch_with_dropout_and_negatives_of_the_whole_step(spark, make_run, name):
    settings = {"dropout": 0.1, "framework": "torch"}
    alone = make_run(12, "reference", workers=1, **settings)
    together = make_run(12, workers=2, **settings)
    expected = curve(spark, with_step_negatives(alone), "local")
    ours = curve(spark, with_step_negatives(together), name)
    np.testing.assert_allclose(ours, expected, rtol=1e-3)


def test_with_dropout_and_negatives_of_the_whole_step(spark, make_run):
    alone = make_run(12, "reference", workers=1, dropout=0.1)
    together = make_run(12, workers=2, dropout=0.1)
    expected = curve(spark, with_step_negatives(alone), "local")
    ours = curve(spark, with_step_negatives(together), "tensorflowonspark")
    np.testing.assert_allclose(ours, expected, rtol=1e-3)


HOROVOD_RUNS = [
    ("tensorflow", "granule"),
    ("torch", "step"),
    pytest.param("tensorflow", "step", marks=pytest.mark.matrix),
    pytest.param("torch", "granule", marks=pytest.mark.matrix),
]


@WITH_HOROVOD
@pytest.mark.parametrize(("framework", "negatives"), HOROVOD_RUNS)
def test_two_ranks_of_horovod_give_the_curve_of_one_process(spark, make_run, framework, negatives):
    settings = {"dropout": 0.1, "framework": framework, "feed": "memory"}
    alone = make_run(12, "reference", workers=1, **settings)
    together = make_run(12, workers=2, **settings)
    if negatives == "step":
        alone, together = with_step_negatives(alone), with_step_negatives(together)
    expected = curve(spark, alone, "local")
    np.testing.assert_allclose(curve(spark, together, "horovod"), expected, rtol=1e-3)
