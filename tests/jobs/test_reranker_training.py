"""Training of a cross-encoder as a job: its folder, its figures, and what they say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from corpus_factory import small_config
from sentence_transformers import CrossEncoder as TheirCrossEncoder

import pipelines
from pipelines.errors import InputError
from pipelines.models.rerankers.folder import read_reranker
from pipelines.models.rerankers.torch import CrossEncoder
from pipelines.settings import Config
from pipelines.settings.objective import objective

# How the engine starts a worker has tests of its own.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("warm_workers"),
]

PAIRS = [
    ("Open a file", "Return a file object that reads the file of that name"),
    ("Open a file", "A counter of the words"),
    ("", "Nothing is asked"),
]


@pytest.fixture(scope="module")
def config(prepared, tmp_path_factory) -> Config:
    settings = small_config(
        prepared, engine="local", framework="torch", workers=1, max_steps=30, checkpoint_every=20
    )
    updates = {
        "run": settings.run.model_copy(
            update={"folder": str(tmp_path_factory.mktemp("reranker") / "run")}
        ),
        "objective": objective("reranking", granule_negatives=3),
        # It ranks each query's first documents, the more the longer.
        "evaluation": settings.evaluation.model_copy(update={"rerank_depth": 10}),
    }
    return settings.model_copy(update=updates)


@pytest.fixture(scope="module")
def trained(config) -> Path:
    return Path(pipelines.train(config))


@pytest.fixture(scope="module")
def figures(config, trained):
    return pipelines.evaluate(config)


def test_the_loss_falls_and_the_folder_is_read_by_others(config, trained):
    run = Path(config.run.folder)
    assert trained == run / "reranker"
    lines = (run / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    ours = CrossEncoder(read_reranker(trained, "scoring.model"), precision="fp32")
    theirs = TheirCrossEncoder(str(trained), device="cpu").predict(PAIRS)
    np.testing.assert_allclose(ours(*zip(*PAIRS, strict=True)), theirs, atol=1e-5)


def test_its_ranking_is_compared_with_the_starts(config, trained, figures):
    before, after = figures["before"], figures["after"]
    assert before["retrieval"].keys() == after["retrieval"].keys()
    assert before["retrieval"]["ndcg@10"] != after["retrieval"]["ndcg@10"]
    assert figures["interval"]["retrieval"].keys() >= {"ndcg@10"}
    # It has no embeddings: nothing else is measured.
    assert not {"geometry"} & after.keys()
    report = (Path(config.run.folder) / "report.html").read_text()
    assert "/reranker" in report


def test_a_run_of_another_kind_is_not_its_reranker(config, trained):
    with pytest.raises(InputError, match=r"^promotion\.|^run\.folder"):
        pipelines.promote(config.changed("promotion", target=str(trained.parent / "served")))


def test_the_figures_stay_until_another_one_is_written(config, trained, figures):
    metrics = Path(config.run.folder) / "metrics.json"
    pipelines.train(config.changed("training", resume=True))
    assert json.loads(metrics.read_text())["after"] == figures["after"]
    another = config.changed("training", resume=True, average_checkpoints=2)
    pipelines.train(another)
    assert not {"after", "measured"} & json.loads(metrics.read_text()).keys()
