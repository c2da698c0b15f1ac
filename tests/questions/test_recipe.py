"""`recipe: questions`: from documents to a model, or to a reason why there is none."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from language_server import MODEL
from question_documents import write_documents

import pipelines
from pipelines.errors import InputError
from pipelines.files.run_folder import RunFolder
from pipelines.jobs.triplets import check_same_questions, make_triplets
from pipelines.models.folder import read_encoder
from pipelines.settings import Config
from pipelines.settings.load import parse
from pipelines.vectors.mining_inputs import stamps


@pytest.fixture
def configured(language_server, document_file, small_model, tmp_path):
    """Makes settings of a whole run, in the folder of the test."""

    def made(**questions: Any) -> Config:
        return parse(
            {
                "recipe": "questions",
                "questions": {
                    "inputs": [str(document_file)],
                    "title_column": "title",
                    "output": str(tmp_path / "questions"),
                    "address": language_server["address"],
                    "model": MODEL,
                    "round_trip": 100,
                    "per_prompt": 2,
                    **questions,
                },
                "mining": {"negatives": 2, "output": str(tmp_path / "mined")},
                "encoder": {"start": str(small_model)},
                "tokens": {"max_length": 32},
                "lanes": {"count": 2, "granule": 8},
                "embedding": {"precision": "fp32"},
                "evaluation": {"samples": 0},
                "training": {
                    "engine": "local",
                    "framework": "torch",
                    "workers": 1,
                    "granules_per_step": 2,
                    "max_steps": 2,
                    "learning_rate": 1e-9,
                    "precision": "fp32",
                },
                "prepared": {"folder": str(tmp_path / "prepared")},
                "run": {"folder": str(tmp_path / "run")},
            }
        )

    return made


@pytest.mark.usefixtures("spark")
def test_a_model_without_a_gain_keeps_the_weights_of_the_start(
    configured, language_server, tmp_path, caplog
):
    caplog.set_level(logging.INFO)
    figures = pipelines.run(configured())
    assert "keeps the start's weights (run.keep_start)" in caplog.text
    run = tmp_path / "run"
    (_, start), (_, kept) = read_encoder(run / "start"), read_encoder(run / "model")
    assert start.keys() == kept.keys()
    for name, value in start.items():
        np.testing.assert_array_equal(kept[name], value, err_msg=name)
    assert figures["before"]["retrieval"] == figures["after"]["retrieval"]
    assert "start" in Path(run, "model", "README.md").read_text()
    asked = language_server["counts"]["requests"]
    make_triplets(configured().changed("run", overwrite=True))
    assert language_server["counts"]["requests"] == asked


def asks_on_resuming(config: Config) -> None:
    """Resumes the run of these settings as far as to its questions."""
    check_same_questions(config.changed("training", resume=True))


@pytest.mark.usefixtures("spark")
def test_a_resumed_run_tells_what_it_leaves_out(configured, document_file, caplog):
    caplog.set_level(logging.INFO)
    config = configured(round_trip=None)
    pipelines.ask(config)
    asks_on_resuming(config)
    assert "goes on with the triplets that it began with" in caplog.text
    texts = [row["text"] for row in pq.read_table(document_file).to_pylist()]
    write_documents(document_file, [*texts, "Kangaroos hop across Australian grasslands"])
    caplog.clear()
    asks_on_resuming(config)
    (record,) = (one for one in caplog.records if one.levelname == "WARNING")
    told = record.getMessage()
    assert told.startswith("questions.inputs: the documents have changed since")
    assert "goes on without the change. Set training.resume=false and run.overwrite=true" in told
    # A finished run would do nothing at all.
    metrics = RunFolder.of(config).metrics
    metrics.parent.mkdir()
    metrics.write_text('{"before": {}, "after": {}}')
    with pytest.raises(InputError, match=r"^questions\.inputs: the documents have changed since"):
        asks_on_resuming(config)
    pipelines.ask(config)
    asks_on_resuming(config)
    # Nor would it train on what `ask` has added since its triplets were mined.
    (mined := Path(config.mining.output)).mkdir()
    named = {"texts": {"mining.inputs": stamps(config)["mining.inputs"]}}
    (mined / "_mining.json").write_text(json.dumps(named))
    asks_on_resuming(config)
    write_documents(document_file, texts)
    pipelines.ask(config)
    with pytest.raises(InputError, match=r"^questions\.output: it has changed since .*finished"):
        asks_on_resuming(config)
    (mined / "_mining.json").unlink()
    with pytest.raises(InputError, match=r"^questions\.max_characters: it has changed since .*run"):
        asks_on_resuming(configured(round_trip=None, max_characters=90))
    # Documents that are gone are no change.
    document_file.unlink()
    caplog.clear()
    asks_on_resuming(config)
    assert "goes on with its triplets, but: questions.inputs: " in caplog.text


@pytest.mark.usefixtures("spark")
def test_questions_that_hardly_pass_the_filters_train_nothing(configured, tmp_path):
    told = r"^questions\.least_kept: only .* questions pass the filters, most often dropped: too lo"
    with pytest.raises(InputError, match=told):
        pipelines.run(configured(max_characters=36, least_kept=0.99))
    assert not (tmp_path / "mined").exists()
    assert not (tmp_path / "run").exists()
