"""The Spark conf of a stage, and the settings beside the conf in the section `spark`."""

from __future__ import annotations

import pytest

from pipelines.engines.base import load_engine
from pipelines.engines.overview import submit_conf
from pipelines.errors import InputError
from pipelines.settings import Config
from pipelines.settings.load import dump, load, parse
from pipelines.settings.redaction import HIDDEN, without_secrets

TEXT = """
spark:
  wait_seconds: 90
  executor: {cores: 8, memory: 4g}
stages:
  train:
    spark.task.cpus: 8
    spark: {executor.resource.gpu.amount: 1, speculation: false}
"""


@pytest.fixture
def config(tmp_path) -> Config:
    (tmp_path / "job.yaml").write_text(TEXT)
    return load(tmp_path / "job.yaml", ["stages.prepare.spark.executor.memory=16g"])


def test_a_stage_has_what_is_shared_and_its_own_on_top(config):
    shared = {"spark.executor.cores": "8", "spark.executor.memory": "4g"}
    assert config.stage_conf("evaluate") == shared
    assert config.stage_conf("prepare") == shared | {"spark.executor.memory": "16g"}
    assert config.stage_conf("train") == shared | {
        "spark.task.cpus": "8",
        "spark.executor.resource.gpu.amount": "1",
        "spark.speculation": "false",
    }


def test_what_is_submitted_for_a_training_is_the_stages(config):
    conf = submit_conf(load_engine("torch"), config.model_copy(update={"training": torch()}))
    assert (conf["spark.task.cpus"], conf["spark.executor.cores"]) == ("8", "8")
    assert "spark.wait_seconds" not in conf


def torch():
    return parse({"training": {"engine": "torch", "framework": "torch"}}).training


def test_an_application_of_one_stage_has_its_conf(config):
    alone = config.for_stage("prepare")
    assert alone.spark.conf == {"executor.cores": "8", "executor.memory": "16g"}
    assert alone.spark.wait_seconds == 90
    assert Config().for_stage("train") == Config()


def test_it_survives_a_file_and_an_override(config, tmp_path):
    (tmp_path / "again.yaml").write_text(dump(config))
    assert load(tmp_path / "again.yaml") == config
    given = ["stages.train.spark.task.cpus=4", "spark.wait_seconds=5"]
    changed = load(tmp_path / "again.yaml", given)
    assert changed.stages.train["spark.task.cpus"] == "4"
    assert (changed.spark.wait_seconds, changed.spark.conf) == (5, config.spark.conf)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("stages.train.executor.memory=2g", r"^stages\.train\.executor\.memory: it is no key of"),
        ("stages.training.spark.task.cpus=1", r"^stages\.training\.spark\.task\.cpus: there is no"),
        ("spark.wait_seconds=soon", r"^spark\.wait_seconds: `soon` does not fit"),
    ],
)
def test_what_is_wrong_is_refused_by_its_key(given, message):
    with pytest.raises(InputError, match=message):
        load(None, [given])


def test_secrets_of_a_stage_are_hidden():
    key = "spark.hadoop.fs.s3a.secret.key"
    shown = without_secrets(parse({"stages": {"train": {key: "sesame", "spark.task.cpus": 1}}}))
    assert shown.stages.train == {key: HIDDEN, "spark.task.cpus": "1"}
