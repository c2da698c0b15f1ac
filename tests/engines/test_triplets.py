"""Triplets from a token file to a model, and the same loss curve on one worker and on two."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small import small_config

from pipelines import workflow
from pipelines.engines import engine
from pipelines.lanes.stage import prepare_lanes
from pipelines.training.feed import lane_feed
from pipelines.training.run import TrainingRun, WorkerTask


@pytest.fixture(scope="module")
def triplets(spark, prepared, tmp_path_factory) -> Path:
    """The small corpus, each pair with the right text of the next one for a hard negative."""
    folder = tmp_path_factory.mktemp("triplets")
    shutil.copytree(prepared / "tokens", folder / "tokens")
    examples = folder / "tokens" / "examples.parquet"
    pairs = pq.read_table(examples).sort_by("id").to_pandas()
    shutil.rmtree(examples)
    examples.mkdir()
    pairs["negative"] = np.roll(pairs["right"], -1)
    pairs["length"] = np.maximum(pairs["length"], pairs["negative"].map(len) // 4).astype(np.int32)
    table = pa.Table.from_pandas(pairs, preserve_index=False)
    pq.write_table(table, examples / "part-0.parquet")
    prepare_lanes(spark, small_config(folder))
    return folder


def with_objective(run: TrainingRun, **objective) -> TrainingRun:
    changed = run.config.objective.model_copy(update=objective)
    return replace(run, config=run.config.model_copy(update={"objective": changed}))


def curve(spark, run, name):
    return np.array(engine(name).train(spark, run, lambda line: None).losses)


def test_two_workers_give_the_curve_of_one_process(spark, make_run, triplets):
    alone = make_run(12, "reference", triplets, workers=1, dropout=0.1)
    together = make_run(12, data=triplets, workers=2, dropout=0.1, feed="spark")
    expected = curve(spark, with_objective(alone, negatives="step"), "local")
    ours = curve(spark, with_objective(together, negatives="step"), "tensorflowonspark")
    np.testing.assert_allclose(ours, expected, rtol=1e-3)


@pytest.mark.parametrize(
    ("objective", "sides"),
    [
        ("in_batch_negatives", ["left", "right", "negative"]),
        ("cosine_regression", ["left", "right"]),
        ("twins", ["left"]),
    ],
)
def test_a_worker_gets_the_sides_that_its_objective_embeds(make_run, triplets, objective, sides):
    run = with_objective(make_run(3, data=triplets), name=objective)
    task = WorkerTask(run=run, rank=1, workers=2, monitor=("", 0), token="")
    granules = [granule for work in lane_feed(task) for granule in work.granules]
    assert [list(granule.sides) for granule in granules] == [sides] * 3


def test_triplets_train_a_model(triplets, tmp_path):
    config = small_config(triplets, engine="local", workers=1, epochs=4, max_steps=100)
    run = config.run.model_copy(update={"folder": str(tmp_path / "run")})
    model = workflow.train(config.model_copy(update={"run": run}))
    assert (model / "model.safetensors").exists()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])
