"""A whole training by an objective with weights of its own, and what is left of these."""

import json
import shutil

import numpy as np
import pytest
from corpus_factory import small_config
from safetensors import safe_open
from sentence_transformers import SentenceTransformer

import pipelines
from pipelines.models.adaptation import OBJECTIVE
from pipelines.runs.checkpoint import checkpoint_path
from pipelines.settings.objective import objective

STEPS = 12


@pytest.fixture
def config(prepared, tmp_path):
    """Of each pair of the small corpus the first text is read."""
    config = small_config(
        prepared,
        engine="local",
        framework="torch",
        workers=1,
        max_steps=STEPS,
        checkpoint_every=6,
        dropout=0.1,
    )
    updates = {
        "run": config.run.model_copy(update={"folder": str(tmp_path / "run")}),
        "corpus": config.corpus.model_copy(update={"pairs": "single"}),
        "objective": objective("retromae"),
    }
    return config.model_copy(update=updates)


def names_in(path):
    with safe_open(str(path), framework="numpy") as file:
        return set(file.keys())


def losses_of(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_checkpoints_hold_what_the_model_leaves_out(config, tmp_path):
    model = pipelines.train(config)
    run = tmp_path / "run"
    in_checkpoint = names_in(run / "checkpoints" / "step-00000012" / "model.safetensors")
    own = {name for name in in_checkpoint if name.startswith(OBJECTIVE)}
    assert f"{OBJECTIVE}decoder.intermediate.dense.weight" in own
    for folder in (model, run / "start"):
        assert not any(OBJECTIVE in name for name in names_in(folder / "model.safetensors"))
        vectors = SentenceTransformer(str(folder), device="cpu").encode(["a text", "another"])
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    losses = losses_of(run)
    assert np.mean(losses[-3:]) < np.mean(losses[:3])

    # The second half once more, from the checkpoint between them.
    shutil.rmtree(checkpoint_path(run, STEPS))
    again = config.training.model_copy(update={"resume": True})
    pipelines.train(config.model_copy(update={"training": again}))
    np.testing.assert_allclose(losses_of(run)[-6:], losses[-6:], rtol=1e-5)
