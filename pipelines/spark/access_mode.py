"""Sessions without a SparkContext: what Spark Connect lets a job do, and what it does not."""

from __future__ import annotations

from pipelines.errors import InputError


def is_connected() -> bool:
    """Whether the session of this process is one of Spark Connect.

    Databricks has such sessions in standard access mode and on serverless compute.
    """
    from pyspark.sql.utils import is_remote

    return bool(is_remote())


def check_context() -> None:
    """Refuses a session in which the jobs cannot run.

    Raises:
        InputError: It is one of Spark Connect.
    """
    if is_connected():
        raise InputError(
            "spark.master",
            "this session is of Spark Connect (on Databricks: standard access mode, or serverless) "
            "and has no SparkContext, which jobs need",
            "run it on a cluster of dedicated access mode; `embed_column` and the model of "
            "pyspark.ml work here too",
        )
