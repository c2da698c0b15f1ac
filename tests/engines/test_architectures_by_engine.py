"""Checkpoints of every family, trained by two workers as by one process, and saved."""

from dataclasses import replace

import numpy as np
import pytest
from engine_cases import trained_here
from tiny_checkpoints import FAMILIES, TEXTS, write_plain

from pipelines.engines.base import load_engine
from pipelines.lanes.files import LaneManifest
from pipelines.models.folder import read_encoder, write_encoder
from pipelines.models.inference.embedder import load_embedder
from pipelines.runs.checkpoint import Checkpoint, load_checkpoint, save_checkpoint

sentence_transformers = pytest.importorskip("sentence_transformers")
pytest.importorskip("torch")

pytestmark = pytest.mark.matrix

STEPS = 8
TORCH = {"framework": "torch"}
SHARDED = {**TORCH, "sharding": "parameters"}
RUNS = [
    ("torch", "xlm-roberta", SHARDED),
    *(("torch", name, {"dropout": 0.1}) for name in FAMILIES),
    ("torch", "mpnet", SHARDED),
    ("torch", "roberta", SHARDED),
    ("torch", "roberta", {"compile": True, "dropout": 0.1}),
    ("torch", "modernbert", SHARDED),
    ("torch", "qwen3", {"activation_checkpointing": True}),
    # At the rate of the others each step of so small a decoder triples what rounding made.
    ("torch", "qwen3", {"model_parallel": 2, "learning_rate": 1e-4}),
    ("torch", "qwen3", {"model_parallel": 2, **SHARDED}),
    ("deepspeed", "electra", SHARDED),
    ("horovod", "qwen3", {"feed": "memory"}),
    ("tensorflowonspark", "electra", {"framework": "tensorflow"}),
    ("tensorflowonspark", "distilbert", {"framework": "tensorflow"}),
    ("bigdl", "electra", {"framework": "bigdl", "dropout": 0.0}),
    ("bigdl", "distilbert", {"framework": "bigdl", "dropout": 0.0}),
]


@pytest.mark.parametrize(("engine", "name", "training"), RUNS, ids=str)
def test_two_workers_give_the_curve_of_one_process(
    spark, make_run, prepared, tmp_path, engine, name, training
):
    training = TORCH | training
    vocabulary = LaneManifest.load(prepared / "lanes").vocabulary
    family = FAMILIES[name]
    family = replace(family, config={**family.config, "vocab_size": vocabulary})
    folder = write_plain(tmp_path / "start", family)
    spec, weights = read_encoder(folder)
    spec = replace(spec, pooling=family.pooling)

    def run_of(place, **settings):
        run = make_run(STEPS, place, **settings)
        save_checkpoint(run.run_folder, Checkpoint(0, spec, weights, {}), 9)
        return run

    alone = training | {"workers": 1, "model_parallel": 1, "sharding": "none", "feed": "lanes"}
    alone["compile"] = False
    alone["framework"] = alone["framework"].replace("bigdl", "torch")
    expected, _ = trained_here(run_of("alone", **alone))
    run = run_of("run", workers=2, **training)
    trainer = load_engine(engine, run.config.training.framework)
    found = trainer.train(spark, run, lambda line: None).losses
    np.testing.assert_allclose(found, expected, rtol=1e-3)

    trained = load_checkpoint(run.run_folder, STEPS)
    write_encoder(tmp_path / "model", trained.spec, trained.weights, folder, "")
    library = sentence_transformers.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    ours = load_embedder(tmp_path / "model")(list(TEXTS))
    np.testing.assert_allclose(ours, library.encode(list(TEXTS)), rtol=0, atol=1e-5)
    assert np.abs(ours - load_embedder(folder)(list(TEXTS))).max() > 1e-4
