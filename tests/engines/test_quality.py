"""What asynchrony costs: figures of evaluation after the same number of examples."""

from pathlib import Path

import pytest
from corpus_factory import small_config
from engine_cases import trained_here

from pipelines.engines.loading import load_engine
from pipelines.evaluation.snapshot import measure, read_snapshots, write_snapshots
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.models.folder import write_encoder
from pipelines.models.inference.embedder import load_embedder
from pipelines.runs.checkpoint import Checkpoint, load_checkpoint

STEPS = 120
POINTS = 5
"""Runs that differ by their seed alone are up to two points apart on so small a corpus."""

RUNS = [
    pytest.param({"engine": "tensorflowonspark", "mode": "async"}, marks=pytest.mark.matrix),
    {"engine": "elephas", "mode": "hogwild"},
    pytest.param({"engine": "elephas", "mode": "sync"}, marks=pytest.mark.matrix),
    pytest.param({"engine": "elephas", "mode": "async"}, marks=pytest.mark.matrix),
]


NAME = "retrieval among held-out"


@pytest.fixture(scope="module")
def held_out(spark, prepared, tmp_path_factory) -> Path:
    """The held-out pairs, for this process to measure on."""
    folder = tmp_path_factory.mktemp("held-out") / "snapshots"
    write_snapshots(read_snapshots(spark, small_config(prepared)), folder)
    return folder


@pytest.fixture
def ndcg(prepared, held_out, tmp_path):
    """Finds nDCG@10 of a checkpoint on the held-out pairs, in points."""

    def find(checkpoint: Checkpoint) -> float:
        tokenizer = PreparedFolder(prepared).tokens.tokenizer
        model = tmp_path / f"model-{len(list(tmp_path.iterdir()))}"
        write_encoder(model, checkpoint.spec, checkpoint.weights, tokenizer, "")
        return measure(held_out, lambda: load_embedder(model))[NAME]["ndcg@10"]

    return find


@pytest.fixture(scope="module")
def known() -> dict[str, float]:
    """The figures of the synchronous reference, once known."""
    return {}


@pytest.mark.parametrize("settings", RUNS, ids=lambda value: "-".join(value.values()))
def test_two_workers_are_as_good_as_one_process(spark, make_run, ndcg, known, settings):
    if not known:
        alone = make_run(STEPS, "alone", workers=1)
        known["before"] = ndcg(load_checkpoint(alone.run_folder, 0))
        known["after"] = ndcg(trained_here(alone)[1])
    run = make_run(STEPS, workers=2, **settings)
    load_engine(settings["engine"]).train(spark, run, lambda line: None)
    ours = ndcg(load_checkpoint(run.run_folder, STEPS))
    gain = known["after"] - known["before"]
    assert gain > 2 * POINTS, "the reference learns more than what runs may differ by"
    assert ours > known["after"] - POINTS
