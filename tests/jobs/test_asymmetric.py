"""Asymmetric search as jobs: a student as wide as its teacher asks the teacher's table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_runs import sentence
from embedding_fixtures import small_model
from measured_sets import measured_on, write_set

import pipelines
from pipelines.errors import InputError
from pipelines.models.folder import read_encoder
from pipelines.models.identity import model_digest
from pipelines.models.inference.embedder import load_embedder
from pipelines.settings.load import parse
from pipelines.vectors.nearest import unit_length

__all__ = ["small_model"]

# How the engine starts a worker has tests of its own.
pytestmark = pytest.mark.usefixtures("warm_workers")

TEXTS = [sentence(number) for number in range(48)]
STEPS = 12
WIDTH = 32
"""Of the teacher."""


@pytest.fixture
def config(small_model, tmp_path):
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "texts.parquet")
    return parse(
        {
            "corpus": {
                **{"format": "parquet", "inputs": [str(tmp_path / "texts.parquet")]},
                **{"pairs": "single", "text_column": "text", "max_repeated": 1},
                "evaluation_share": 0.0,
            },
            # The words of the texts are cut into letters.
            "tokens": {"vocabulary": str(small_model), "max_length": 64},
            "lanes": {"count": 2, "granule": 8},
            "encoder": {
                **{"start": "random", "layers": 1, "hidden": 16, "heads": 2},
                "output_width": WIDTH,
            },
            "teacher": {"model": str(small_model)},
            "objective": {"name": "embedding_distillation"},
            "training": {
                **{"engine": "local", "framework": "torch", "workers": 1},
                **{"granules_per_step": 2, "max_steps": STEPS, "epochs": STEPS, "log_every": 1},
                **{"learning_rate": 5e-3, "precision": "fp32"},
            },
            "evaluation": {"retrieval": False, "geometry": False},
            "embedding": {
                **{"inputs": [str(tmp_path / "texts.parquet")], "text_column": "text"},
                **{"output": str(tmp_path / "vectors"), "precision": "fp32"},
                "model": str(small_model),
            },
            "prepared": {"folder": str(tmp_path / "prepared")},
            "run": {"folder": str(tmp_path / "run")},
        }
    )


def test_an_evaluation_names_the_folder_of_a_model_that_cannot_be_read(config, tmp_path):
    (tmp_path / "run" / "model").mkdir(parents=True)
    with pytest.raises(InputError, match=r"^run\.folder: .*model has no config\.json"):
        pipelines.evaluate(config)


@pytest.mark.slow
def test_a_student_asks_the_table_of_its_teacher(spark, config, small_model, tmp_path):
    pipelines.prepare(config)
    model = Path(pipelines.train(config))
    steps = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in steps]
    assert len(losses) == STEPS
    assert losses[-1] < losses[0] - 0.1
    spec, weights = read_encoder(model)
    start, _ = read_encoder(tmp_path / "run" / "start")
    assert (start.embedding_width, spec.embedding_width) == (16, WIDTH)
    assert weights["dense.0.bias"].any()
    # The teacher's vectors are as wide, so nothing is projected.
    assert not (tmp_path / "run" / "teacher_axes.npy").exists()

    pipelines.embed(config)
    pair = tmp_path / "pair"
    pipelines.export(config, "router", output=str(pair))
    asking = config.changed("embedding", model=str(pair))
    # The Router would embed documents as the teacher has.
    assert pipelines.embed(asking).embedded == 0
    manifest = json.loads((tmp_path / "vectors" / "_manifest.json").read_text())
    assert manifest["model_digest"] == model_digest(small_model)
    (hit,) = pipelines.search(asking, TEXTS[:1], 1)
    student, teacher = load_embedder(model), load_embedder(small_model)
    cosines = unit_length(student.queries(TEXTS[:1])) @ unit_length(teacher.documents(TEXTS)).T
    assert hit.cosine == pytest.approx(cosines.max(), abs=1e-3)
    assert hit.position == cosines.argmax()

    # The figure is of queries by the student and documents by the teacher.
    documents = {f"d{n}": ("", text) for n, text in enumerate(TEXTS)}
    queries = {f"q{n}": text for n, text in enumerate(TEXTS[:9])}
    judged = write_set(
        tmp_path / "set", documents, queries, [(f"q{n}", f"d{n}", 1) for n in range(9)]
    )
    asked = unit_length(student.queries(TEXTS[:9])) @ unit_length(teacher.documents(TEXTS)).T
    ranks = 1 + (asked > asked[np.arange(9), np.arange(9)][:, None]).sum(axis=1)
    gains = np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0)
    figures = measured_on(spark, pair, retrieval_sets=[str(judged)], hybrid=False)
    assert figures["set"]["ndcg@10"] == pytest.approx(100 * gains.mean(), abs=1e-3)
