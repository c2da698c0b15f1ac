"""Which models an evaluation replaces by their start (`run.keep_start`), and which stay."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embedding_fixtures import small_model

from pipelines.files.run_folder import RunFolder
from pipelines.files.storage import copy_folder, write_json
from pipelines.jobs.kept_start import keeps_start, shows_gain
from pipelines.models.folder import read_encoder, write_encoder
from pipelines.models.identity import FIELD, model_digest
from pipelines.report.verdict import verdict
from pipelines.settings import Config
from pipelines.settings.load import parse

__all__ = ["small_model"]


def figures_of(difference: float) -> dict[str, Any]:
    """Figures of a judged set, with an interval of one to either side of the difference."""
    counts = {"queries": 50, "documents": 900}
    ends = {"low": difference - 1, "high": difference + 1, "detectable": 1.4}
    return {
        "before": {"questions": {**counts, "ndcg@10": 60.0}},
        "after": {"questions": {**counts, "ndcg@10": 60.0 + difference}},
        "interval": {"questions": {"ndcg@10": ends}},
        "sets": {"questions": {"evaluation": "retrieval", "role": "judged"}},
    }


@pytest.fixture
def trained(small_model, tmp_path) -> Callable[[float], Config]:
    """Makes the run of a model that was trained and measured, by the difference of its figure."""

    def made(difference: float) -> Config:
        config = parse({"run": {"folder": str(tmp_path / "run"), "keep_start": True}})
        run = RunFolder.of(config)
        copy_folder(Path(small_model), run.start)
        spec, weights = read_encoder(run.start)
        moved = {name: np.asarray(value) + np.float32(0.01) for name, value in weights.items()}
        write_encoder(run.model, spec, moved, run.start, "")
        write_json(run.environment, {"sentence-pipelines": "1"})
        digest = model_digest(run.model)
        recorded = {"model": {"step": 7, FIELD: digest}, "measured": {FIELD: digest}}
        write_json(run.metrics, recorded | figures_of(difference))
        return config

    return made


def is_start(config: Config) -> bool:
    run = RunFolder.of(config)
    return model_digest(run.model) == model_digest(run.start)


def test_a_better_model_stays(trained):
    config = trained(3.0)
    assert shows_gain(config)
    assert not keeps_start(config, {})
    assert not is_start(config)


@pytest.mark.parametrize("difference", [0.3, -3.0])
def test_a_model_without_a_gain_gives_way_to_the_start(difference, trained, tmp_path):
    config = trained(difference)
    copy_folder(tmp_path / "run/model", tmp_path / "trained")
    assert not shows_gain(config)
    assert keeps_start(config, {})
    assert is_start(config)
    told = verdict(json.loads((tmp_path / "run/metrics.json").read_text()))
    assert "(run.keep_start). The verdict on the trained one: " in str(told)
    # A start that is kept already is not kept anew.
    assert not keeps_start(config, {})
    # Unless a kill came between its figures and its weights.
    copy_folder(tmp_path / "trained", tmp_path / "run/model")
    assert keeps_start(config, {})
    assert is_start(config)


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_model_that_was_put_there_stays(is_kept, trained, tmp_path, caplog):
    config = trained(-3.0)
    if is_kept:
        assert keeps_start(config, {})
    (tmp_path / "run/model/config_sentence_transformers.json").write_text("{}")
    caplog.clear()
    assert not keeps_start(config, {})
    assert not is_start(config)
    assert "run/model stays: `train` did not write it (run.keep_start)" in caplog.text


def test_a_model_of_an_earlier_release_has_no_digest(trained, tmp_path):
    config = trained(-3.0)
    known = json.loads((tmp_path / "run/metrics.json").read_text())
    del known["model"][FIELD]
    write_json(tmp_path / "run/metrics.json", known)
    assert keeps_start(config, {})
    assert is_start(config)
