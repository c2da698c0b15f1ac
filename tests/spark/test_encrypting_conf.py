"""Which conf of Spark has the servers of a run encrypt."""

import pytest
from pyspark import SparkConf

from pipelines.spark.shell import encrypting_key


class Context:
    def __init__(self, conf):
        self._conf = SparkConf(loadDefaults=False).setAll(list(conf.items()))

    def getConf(self):  # noqa: N802 - as PySpark calls it
        return self._conf


@pytest.mark.parametrize(
    ("conf", "key"),
    [
        ({}, None),
        ({"spark.authenticate": "true"}, None),
        ({"spark.ssl.enabled": "false"}, None),
        ({"spark.ssl.enabled": "true"}, "spark.ssl.enabled"),
        ({"spark.ssl.rpc.enabled": "true"}, "spark.ssl.rpc.enabled"),
        ({"spark.network.crypto.enabled": "TRUE"}, "spark.network.crypto.enabled"),
        (
            {"spark.ssl.enabled": "true", "spark.network.crypto.enabled": "true"},
            "spark.network.crypto.enabled",
        ),
    ],
)
def test_any_key_that_asks_for_encryption_is_enough(conf, key):
    assert encrypting_key(Context(conf)) == key
