"""Triplets from a token file to a model, and the same loss curve on one worker and on two."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_factory import small_config
from engine_cases import trained_here

from pipelines import workflow
from pipelines.engines.loading import load_engine
from pipelines.lanes.stage import prepare_lanes
from pipelines.losses.targets import granule_targets
from pipelines.runs.run import TrainingRun, WorkerTask
from pipelines.settings.objective import objective
from pipelines.tokens.examples import SCHEMA
from pipelines.training.feed import lane_feed


@pytest.fixture(scope="module")
def triplets(spark, prepared, tmp_path_factory) -> Path:
    """The small corpus, each pair with the positives of the next two for hard negatives.

    Every third pair has the same positive, so that granules hold false negatives.
    """
    folder = tmp_path_factory.mktemp("triplets")
    shutil.copytree(prepared / "tokens", folder / "tokens")
    # What is made of these tokens is of no preparation.
    (folder / "tokens" / "stage.json").unlink()
    examples = folder / "tokens" / "examples.parquet"
    pairs = pq.read_table(examples).sort_by("id").to_pandas()
    shutil.rmtree(examples)
    examples.mkdir()
    shortest = pairs["positive"][pairs["positive"].map(len).idxmin()]
    pairs["positive"] = [shortest if n % 3 == 0 else ids for n, ids in enumerate(pairs["positive"])]
    others = [np.roll(pairs["positive"], -1), np.roll(pairs["positive"], -2)]
    pairs["negatives"] = list(zip(*others, strict=True))
    longest = [max(map(len, texts)) // 4 for texts in pairs["negatives"]]
    pairs["length"] = np.maximum(pairs["length"], longest).astype(np.int32)
    table = pa.Table.from_pandas(pairs, SCHEMA, preserve_index=False)
    pq.write_table(table, examples / "part-0.parquet")
    manifest = folder / "tokens" / "manifest.json"
    told = json.loads(manifest.read_text())
    changed = {"negatives": 2, "columns": [*told["columns"], "negatives"]}
    manifest.write_text(json.dumps(told | changed))
    prepare_lanes(spark, small_config(folder))
    return folder


def with_objective(run: TrainingRun, **keys) -> TrainingRun:
    return replace(run, config=run.config.model_copy(update={"objective": objective(**keys)}))


def curve(spark, run, name):
    return np.array(load_engine(name).train(spark, run, lambda line: None).losses)


RUNS = [
    ("tensorflowonspark", "step", {"feed": "spark", "dropout": 0.1}),
    ("bigdl", "granule", {"framework": "bigdl"}),
]


@pytest.mark.parametrize(("name", "negatives", "training"), RUNS)
def test_two_workers_give_the_curve_of_one_process(
    spark, make_run, triplets, name, negatives, training
):
    alone = {"workers": 1, "feed": "lanes", "framework": "tensorflow"}
    if "framework" in training:
        alone["framework"] = "torch"
    expected, _ = trained_here(make_run(12, "alone", triplets, negatives, **(training | alone)))
    ours = curve(spark, make_run(12, "run", triplets, negatives, workers=2, **training), name)
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


def test_triplets_train_a_model(triplets, tmp_path):
    config = small_config(
        triplets, engine="local", framework="torch", workers=1, epochs=4, max_steps=100
    )
    run = config.run.model_copy(update={"folder": str(tmp_path / "run")})
    model = workflow.train(config.model_copy(update={"run": run}))
    assert (model / "model.safetensors").exists()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])
