"""`recipe: domain` as a job: what becomes of documents with titles, and of documents without."""

import json
from pathlib import Path

import numpy as np
import pytest
from corpus_runs import sentence
from embedding_fixtures import small_model

import pipelines
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.models.folder import read_encoder
from pipelines.models.weights import TERMS
from pipelines.settings.load import parse

__all__ = ["small_model"]

# How the engine starts a worker has tests of its own.
pytestmark = pytest.mark.usefixtures("warm_workers")

DOCUMENTS = 90


@pytest.mark.usefixtures("spark")
# What keeps the start where there are no titles has tests of its own.
@pytest.mark.parametrize("titled", [True, pytest.param(False, marks=pytest.mark.matrix)])
def test_only_titles_teach_the_encoder_and_lexical_features_stand_beside_it(
    small_model, tmp_path, titled
):
    lines = [
        {"title": f"The matter of number {n}" if titled else "", "text": 3 * f"{sentence(n)} "}
        for n in range(DOCUMENTS)
    ]
    inputs = tmp_path / "documents.jsonl"
    inputs.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    config = parse(
        {
            "recipe": "domain",
            "corpus": {"format": "jsonl", "inputs": [str(inputs)], "max_repeated": 1},
            "tokens": {"max_length": 32},
            "lanes": {"count": 2, "granule": 8},
            "encoder": {"start": str(small_model), "lsa": {"dimensions": 16}},
            "training": {
                "engine": "local",
                "framework": "torch",
                "workers": 1,
                "granules_per_step": 2,
                "max_steps": 3,
                "learning_rate": 1e-3,
            },
            "prepared": {"folder": str(tmp_path / "prepared")},
            "run": {"folder": str(tmp_path / "run")},
        }
    )
    pipelines.prepare(config)
    known = json.loads(PreparedFolder.of(config).corpus.statistics.read_text())
    assert known["titled"] == (DOCUMENTS if titled else -DOCUMENTS)
    model = pipelines.train(config)
    (_, start), (_, made) = read_encoder(tmp_path / "run" / "start"), read_encoder(model)
    assert made[TERMS].any()
    changed = [name for name in start if not np.array_equal(start[name], made[name])]
    assert bool(changed) == titled
    figures = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert figures["training"]["steps"] == (3 if titled else 1)
    card = Path(model, "README.md").read_text()
    assert ("since most documents have no title" in card) != titled
