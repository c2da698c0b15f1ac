"""The same loss curve on every engine and every number of workers.

That of the plain settings is compared in `test_contract.py`; here what makes steps of several
workers differ from those of one: dropout, whose masks belong to granules, and negatives of the
whole step, of which each worker holds a part, anchors too where they are compared.
"""

import numpy as np
import pytest
from engine_cases import WITH_HOROVOD

from pipelines.engines.loading import load_engine

STEPS = 12
DIRECTIONS = ("query_to_doc", "doc_to_query", "query_to_query", "doc_to_doc")
HARD = {"dropout": 0.1, "negatives": "step", "directions": DIRECTIONS}
MATRIX = pytest.mark.matrix


def curve(spark, run, name):
    return np.array(load_engine(name).train(spark, run, lambda line: None).losses)


RUNS = [
    ("torch", {"framework": "torch", "sharding": "parameters"}),
    ("bigdl", {"framework": "torch", "feed": "memory"}),
    pytest.param("horovod", {"framework": "torch", "feed": "memory"}, marks=WITH_HOROVOD),
    # What Spark feeds is compared in `test_triplets.py`.
    pytest.param("tensorflowonspark", {"feed": "spark"}, marks=MATRIX),
    pytest.param("tensorflowonspark", {}, marks=MATRIX),
    pytest.param("torch", {"framework": "torch"}, marks=MATRIX),
    pytest.param("deepspeed", {"framework": "torch", "sharding": "parameters"}, marks=MATRIX),
    pytest.param("horovod", {"feed": "memory"}, marks=(WITH_HOROVOD, MATRIX)),
]


@pytest.mark.parametrize(("name", "settings"), RUNS, ids=str)
def test_with_dropout_and_negatives_of_the_whole_step(spark, make_run, reference, name, settings):
    expected = reference(STEPS, settings.get("framework", "tensorflow"), **HARD)
    ours = curve(spark, make_run(STEPS, workers=2, **settings, **HARD), name)
    np.testing.assert_allclose(ours, expected, rtol=1e-3)


@MATRIX
@WITH_HOROVOD
@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_two_ranks_of_horovod_with_dropout(spark, make_run, reference, framework):
    settings = {"dropout": 0.1, "framework": framework}
    ours = curve(spark, make_run(STEPS, workers=2, feed="memory", **settings), "horovod")
    np.testing.assert_allclose(ours, reference(STEPS, **settings), rtol=1e-3)
