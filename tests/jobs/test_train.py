"""A training as a whole: parts of an encoder, and which of its states becomes the model."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_factory import small_config

import pipelines
from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.models.adaptation import DOWN, UP
from pipelines.models.folder import read_encoder
from pipelines.models.identity import model_digest
from pipelines.models.weights import TERMS, load_weights
from pipelines.runs.checkpoint import checkpoint_steps, load_checkpoint, save_checkpoint
from pipelines.runs.job_records import read_evaluations
from pipelines.runs.model_choice import ask_to_end, is_to_end
from pipelines.runs.opening import open_run_folder
from pipelines.settings import Config
from pipelines.settings.encoder import LoraSettings, LsaSettings

# How the engine starts a worker has tests of its own.
pytestmark = pytest.mark.usefixtures("warm_workers")

PAIRS = {
    "sentence1": ["a cat sleeps", "the market fell", "it rains", "he sings", "open the file"],
    "sentence2": ["the cat is asleep", "stocks lost", "sunny weather", "he is silent", "close it"],
    "score": [5.0, 4.0, 1.0, 0.5, 0.0],
}


@pytest.fixture
def config(prepared, tmp_path) -> Config:
    """LoRA, the best by a file of pairs, and a moving average, in a run of twelve steps."""
    pq.write_table(pa.table(PAIRS), tmp_path / "sts.parquet")
    config = small_config(
        prepared,
        engine="local",
        framework="torch",
        workers=1,
        max_steps=12,
        checkpoint_every=6,
        keep_best="sts.spearman",
        ema=0.9,
    )
    config = config.changed(
        "evaluation",
        retrieval=False,
        geometry=False,
        similarity=(str(tmp_path / "sts.parquet"),),
        every_checkpoints=1,
    )
    config = config.changed("encoder", lora=LoraSettings(rank=2, alpha=16.0, export="adapter"))
    return config.changed("run", folder=str(tmp_path / "run"))


def test_lora_gives_the_best_of_its_states_and_an_adapter(spark, config, tmp_path, caplog):
    caplog.set_level("INFO")
    pipelines.train(config)
    run = tmp_path / "run"
    assert "parameters are trained, and" in caplog.text
    # The last checkpoint is measured too, and the best is the model.
    measured = {line["step"]: line["spearman"] for line in read_evaluations(run)}
    assert sorted(measured) == [6, 12]
    best = max(measured, key=lambda step: (measured[step], -step))
    told = storage.read_json(run / "metrics.json")["model"]
    expected = {"best_by": "sts.spearman", "value": measured[best], "ema": 0.9, "ema_of": "factors"}
    digest = {"model_digest": model_digest(run / "model")}
    assert told == {"step": best, **expected, **digest}
    state = load_checkpoint(run, best)
    model = read_encoder(run / "model")[1]
    for name, value in state.encoder_weights.items():
        np.testing.assert_allclose(model[name], value, atol=1e-6, err_msg=name)
    card = (run / "model" / "README.md").read_text()
    assert f"each LoRA factor after step {best} (decay 0.9), the best by sts.spearman (" in card
    # What is trained alone is kept with its moments; the rest is there once.
    assert all(name.endswith((DOWN, UP)) for name in state.weights)
    kinds = {name.partition("/")[0] for name in state.moments}
    assert kinds == {"m", "v", "ema"}
    start = read_encoder(run / "start")[1]
    for name, value in load_weights(run / "checkpoints" / "frozen" / "model.safetensors").items():
        np.testing.assert_array_equal(value, start[name], err_msg=name)
    adapter = json.loads((run / "adapter" / "adapter_config.json").read_text())
    assert (adapter["r"], adapter["base_model_name_or_path"]) == (2, str(run / "start"))
    assert state.averages.keys() == {
        name.removeprefix("base_model.model.")
        for name in load_weights(run / "adapter" / "adapter_model.safetensors")
    }

    # It has ended early, unless the patience is greater.
    found = json.loads((run / "best" / "best.json").read_text())
    storage.write_json(run / "best" / "best.json", found | {"step": 3, "value": 1000.0})
    ask_to_end(run)
    more = config.changed("training", resume=True, max_steps=15, patience=2)
    pipelines.train(more)
    assert "the run ended early: 2 evaluations brought no gain" in caplog.text
    assert checkpoint_steps(run)[-1] == 12
    pipelines.train(more.changed("training", patience=4))
    assert checkpoint_steps(run)[-1] == 15
    assert not is_to_end(run)
    assert storage.read_json(run / "metrics.json")["model"]["value"] == 1000.0


def test_a_run_leaves_no_gap_in_its_lines_and_begins_anew_where_it_is_overwritten(
    prepared, tmp_path, caplog, monkeypatch
):
    config = small_config(prepared, engine="local", framework="torch", workers=1, max_steps=6)
    config = config.changed("training", log_every=1, checkpoint_every=3)
    config = config.changed("run", folder=str(tmp_path / "run"))
    pipelines.train(config)
    run = tmp_path / "run"
    lines, trained = run / "metrics.jsonl", load_checkpoint(run, 6)
    # A driver was killed before it wrote the last lines.
    lines.write_text("".join(lines.read_text().splitlines(keepends=True)[:4]))
    pipelines.train(config.changed("training", resume=True))
    steps = [json.loads(line)["step"] for line in lines.read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert "the run goes on from step 3, not 6" in caplog.text
    for name, value in load_checkpoint(run, 6).weights.items():
        np.testing.assert_array_equal(value, trained.weights[name], err_msg=name)

    def opened_in_time(*given):
        found = open_run_folder(*given)
        # A late worker of the run that is overwritten still writes.
        save_checkpoint(run, replace(trained, step=3), keep=9)
        return found

    monkeypatch.setattr("pipelines.jobs.train.open_run_folder", opened_in_time)
    anew = config.changed("training", max_steps=4, checkpoint_every=100)
    pipelines.train(anew.changed("run", overwrite=True))
    assert [json.loads(line)["step"] for line in lines.read_text().splitlines()] == [1, 2, 3, 4]
    assert [path.name for path in (run / "checkpoints").glob("step-00000003*")] == []


def test_a_metric_that_is_not_measured_is_refused_before_the_run_begins(prepared, config, tmp_path):
    with pytest.raises(InputError, match=r"^training\.keep_best: `sts\.ndcg@10` is not measured"):
        pipelines.train(config.changed("training", keep_best="sts.ndcg@10"))
    assert not (tmp_path / "run").exists()


def test_words_of_the_corpus_stand_beside_the_encoder_that_was_trained(spark, prepared, tmp_path):
    config = small_config(prepared, engine="local", framework="torch", workers=1, max_steps=2)
    config = config.changed("run", folder=str(tmp_path / "run"))
    asked = config.changed("encoder", lsa=LsaSettings(dimensions=6), max_length="corpus")
    pipelines.train(asked)
    spec, weights = read_encoder(tmp_path / "run" / "model")
    state = load_checkpoint(tmp_path / "run", 2)
    assert spec.lsa == 6
    assert spec.embedding_width == state.spec.embedding_width + 6
    assert weights[TERMS].any(axis=0).all()
    for name, value in state.encoder_weights.items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)
    assert read_encoder(tmp_path / "run" / "start")[0].lsa == 0
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert f"{spec.embedding_width} numbers" in card
    assert "sentence-transformers>=5.4" in card
    # It is no part of what is learnt: a run that has come to its end can do without.
    again = asked.changed("training", resume=True)
    pipelines.train(again.changed("encoder", lsa=LsaSettings()))
    assert read_encoder(tmp_path / "run" / "model")[0].lsa == 0
