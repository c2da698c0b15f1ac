"""Names that trackers take, and what they are not told."""

from pipelines.settings import load as configuration
from pipelines.settings.load import parse
from pipelines.settings.redaction import HIDDEN, without_secrets
from pipelines.tracking.base import (
    evaluation_values,
    parameters,
    training_values,
)


def test_secrets_of_spark_are_hidden_and_the_rest_is_told():
    conf = {
        "hadoop.fs.s3a.secret.key": "sesame",
        "hadoop.fs.s3a.access.key": "sesame",
        "hadoop.fs.azure.account.oauth2.client.secret": "sesame",
        "ssl.keyPassword": "sesame",
        "hadoop.fs.azure.account.key.store.dfs.core.windows.net": "sesame",
        "hadoop.google.cloud.auth.service.account.private.key": "sesame",
        "hadoop.fs.azure.sas.container.store": "sesame",
        "executor.extraJavaOptions": "-Djavax.net.ssl.trustStorePassword=sesame",
        "executor.memory": "2g",
        "task.cpus": "1",
    }
    tracking = {"trackers": ["mlflow"], "mlflow_uri": "postgresql://me:sesame@db:5432/runs"}
    config = parse({"spark": conf, "evaluation": {"similarity": ["ä.csv"]}, "tracking": tracking})
    flat = parameters(config)
    assert flat["spark.executor.memory"] == "2g"
    assert flat["spark.hadoop.fs.s3a.secret.key"] == HIDDEN
    assert flat["tracking.mlflow_uri"] == "postgresql://db:5432/runs"
    assert flat["evaluation.similarity"] == '["ä.csv"]'
    assert flat["training.max_steps"] == "null"
    assert {type(value) for value in flat.values()} == {str}
    assert "sesame" not in str(flat) + configuration.dump(without_secrets(config))
    assert without_secrets(config).spark.conf["task.cpus"] == "1"


def test_figures_have_names_that_every_tracker_takes():
    figures = {"data/dev (de).csv": {"ndcg@10": 50, "pairs": 3}}
    assert evaluation_values("after", figures) == {
        "after/data_dev__de_.csv/ndcg_at_10": 50.0,
        "after/data_dev__de_.csv/pairs": 3.0,
    }
    workers = [{"rank": 0, "arithmetic": 2}, {"rank": 1, "arithmetic": 3}]
    assert training_values(
        {"step": 4, "loss": 1, "epoch": 0, "precision": "bf16", "workers": workers}
    ) == {
        "training/loss": 1.0,
        "training/epoch": 0.0,
        "training/worker_0/arithmetic": 2.0,
        "training/worker_1/arithmetic": 3.0,
    }


def test_the_figures_of_sources_are_under_their_names():
    line = {"step": 4, "loss": 2.0, "sources": {"pairs": {"loss": 3.0, "steps": 1}}}
    assert training_values(line) == {
        "training/loss": 2.0,
        "training/source_pairs/loss": 3.0,
        "training/source_pairs/steps": 1.0,
    }
