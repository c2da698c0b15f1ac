"""Triplets from a token file to a model, and the same loss curve on one worker and on two."""

import json
from dataclasses import replace

import numpy as np
import pytest
from corpus_factory import small_config
from engine_cases import trained_here

import pipelines
from pipelines.engines.base import load_engine
from pipelines.losses.candidates import granule_targets
from pipelines.runs.run import TrainingRun, WorkerTask
from pipelines.settings.objective import objective
from pipelines.training.steppers.base import lane_feed


def with_objective(run: TrainingRun, **keys) -> TrainingRun:
    return replace(run, config=run.config.model_copy(update={"objective": objective(**keys)}))


def curve(spark, run, name):
    return np.array(
        load_engine(name, run.config.training.framework).train(spark, run, lambda line: None).losses
    )


@pytest.mark.matrix
def test_two_workers_of_bigdl_give_the_curve_of_one_process(spark, make_run, triplets):
    """The same fed by Spark is in `test_tensorflowonspark.py`."""
    expected, _ = trained_here(make_run(6, "alone", triplets, workers=1, framework="torch"))
    ours = curve(spark, make_run(6, "run", triplets, workers=2, framework="bigdl"), "bigdl")
    np.testing.assert_allclose(ours, expected, rtol=1e-3)


def test_false_negatives_reach_a_worker(make_run, triplets):
    run = make_run(6, data=triplets)
    task = WorkerTask(run=run, rank=0, workers=2, monitor=("", 0), token="")
    granules = [granule for work in lane_feed(task) for granule in work.granules]
    targets = [granule_targets(run.config.objective, each, run.sides) for each in granules]
    with_some = [granule for granule, each in zip(granules, targets, strict=True) if len(each[1])]
    assert len(with_some) > len(granules) / 2


@pytest.mark.parametrize(
    ("name", "sides"),
    [
        ("in_batch_negatives", ["anchor", "positive", "negative_0", "negative_1"]),
        ("cosine_regression", ["anchor", "positive"]),
        ("simcse", ["anchor"]),
    ],
)
def test_a_worker_gets_the_sides_that_its_objective_embeds(make_run, triplets, name, sides):
    run = with_objective(make_run(3, data=triplets), name=name)
    task = WorkerTask(run=run, rank=1, workers=2, monitor=("", 0), token="")
    granules = [granule for work in lane_feed(task) for granule in work.granules]
    assert [list(granule.sides) for granule in granules] == [sides] * 3


@pytest.mark.matrix
def test_triplets_train_a_model(triplets, tmp_path):
    config = small_config(
        triplets, engine="local", framework="torch", workers=1, epochs=4, max_steps=60
    )
    run = config.run.model_copy(update={"folder": str(tmp_path / "run")})
    model = pipelines.train(config.model_copy(update={"run": run}))
    assert (model / "model.safetensors").exists()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])
