"""Objectives with weights of their own: two workers of an engine give the curve of one process."""

from dataclasses import replace

import numpy as np
import pytest
from engine_cases import WITH_HOROVOD, trained_here

from pipelines.engines.base import load_engine
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.models.adaptation import OBJECTIVE
from pipelines.pretraining.start import objective_weights, special_ids
from pipelines.runs.checkpoint import load_checkpoint, save_checkpoint
from pipelines.runs.run import TrainingRun
from pipelines.settings.objective import objective

pytestmark = pytest.mark.matrix

STEPS = 8
RUNS = [
    ("torch", "mlm", {}),
    ("torch", "retromae", {"sharding": "parameters"}),
    ("deepspeed", "tsdae", {"sharding": "optimizer"}),
    ("bigdl", "tsdae", {"feed": "memory"}),
    pytest.param("horovod", "retromae", {"feed": "memory"}, marks=WITH_HOROVOD),
]


def with_objective(run: TrainingRun, name: str) -> TrainingRun:
    """A run by another objective, of whose weights its first checkpoint has none yet."""
    config = run.config.model_copy(update={"objective": objective(name)})
    start = load_checkpoint(run.run_folder, 0)
    weights = start.weights | objective_weights(config, start.spec)
    save_checkpoint(run.run_folder, replace(start, weights=weights), 9)
    ids = special_ids(config, PreparedFolder.of(config).tokens.tokenizer)
    return replace(run, config=config, special_ids=ids)


@pytest.mark.parametrize(("engine", "name", "settings"), RUNS)
def test_two_workers_give_the_curve_of_one_process(spark, make_run, engine, name, settings):
    common = {"framework": "torch", "dropout": 0.1}
    alone = with_objective(make_run(STEPS, "alone", workers=1, **common), name)
    expected, last = trained_here(alone)
    run = with_objective(make_run(STEPS, workers=2, **common, **settings), name)
    outcome = load_engine(engine, "torch").train(spark, run, lambda line: None)
    np.testing.assert_allclose(outcome.losses, expected, rtol=1e-3)
    found = load_checkpoint(run.run_folder, STEPS).weights
    assert found.keys() == last.weights.keys()
    assert any(one.startswith(OBJECTIVE) for one in found)
