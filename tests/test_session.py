"""The Spark conf of a new session."""

import pytest

from pipelines.config import parse, without_secrets
from pipelines.errors import InputError
from pipelines.session import session_conf

OPTIONS = "spark.driver.extraJavaOptions"


def test_what_the_user_sets_wins():
    config = parse({"spark": {"master": "local[3]", "ui.enabled": "true"}})
    conf = session_conf(config, submitted=False)
    assert conf["spark.master"] == "local[3]"
    assert conf["spark.ui.enabled"] == "true"


def test_java_options_are_added_to_ours():
    ours = session_conf(parse({}), submitted=False)[OPTIONS]
    both = session_conf(parse({"spark": {"driver.extraJavaOptions": "-Xint"}}), submitted=False)
    assert both[OPTIONS] == f"{ours} -Xint"


def test_under_spark_submit_its_conf_decides():
    conf = session_conf(parse({"spark": {"driver.extraJavaOptions": "-Xint"}}), submitted=True)
    assert conf[OPTIONS] == "-Xint"
    assert "spark.executor.cores" not in conf


def test_a_local_cluster_has_an_executor_for_each_worker_and_room_for_it():
    config = parse(
        {"training": {"workers": 3, "granules_per_step": 3}, "spark": {"executor.memory": "2g"}}
    )
    assert session_conf(config, submitted=False)["spark.master"] == "local-cluster[3,1,2048]"


def test_what_a_run_has_hidden_is_asked_for_again():
    config = parse({"spark": {"hadoop.fs.s3a.secret.key": "sesame"}})
    hidden = without_secrets(config)
    assert session_conf(config, submitted=True)["spark.hadoop.fs.s3a.secret.key"] == "sesame"
    with pytest.raises(InputError, match=r"^spark.hadoop.fs.s3a.secret.key: a run's"):
        session_conf(hidden, submitted=True)
