"""The same loss curve on every engine and every number of workers, in the matrix.

Some are compared in `test_contract.py` and in the tests of an engine too; here all that engines are
tried with is, with what makes steps of several workers differ from those of one.
"""

import numpy as np
import pytest
from engine_cases import OF_WHOLE_STEPS, WITH_HOROVOD

from pipelines.engines.base import load_engine

pytestmark = pytest.mark.matrix

STEPS = 12


def curve(spark, run, name):
    return np.array(
        load_engine(name, run.config.training.framework).train(spark, run, lambda line: None).losses
    )


RUNS = [
    ("torch", {"framework": "torch", "sharding": "parameters"}),
    ("bigdl", {"framework": "torch"}),
    ("tensorflowonspark", {"feed": "spark"}),
    ("tensorflowonspark", {}),
    ("torch", {"framework": "torch"}),
    ("deepspeed", {"framework": "torch", "sharding": "parameters"}),
    pytest.param("horovod", {"feed": "memory"}, marks=WITH_HOROVOD),
]


@pytest.mark.parametrize(("name", "settings"), RUNS, ids=str)
def test_with_dropout_and_negatives_of_the_whole_step(spark, make_run, reference, name, settings):
    expected = reference(STEPS, settings.get("framework", "tensorflow"), **OF_WHOLE_STEPS)
    ours = curve(spark, make_run(STEPS, workers=2, **settings, **OF_WHOLE_STEPS), name)
    np.testing.assert_allclose(ours, expected, rtol=1e-3)


@WITH_HOROVOD
@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_two_ranks_of_horovod_with_dropout(spark, make_run, reference, framework):
    settings = {"dropout": 0.1, "framework": framework}
    ours = curve(spark, make_run(STEPS, workers=2, feed="memory", **settings), "horovod")
    np.testing.assert_allclose(ours, reference(STEPS, **settings), rtol=1e-3)
