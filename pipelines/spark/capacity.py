"""What a session has for its tasks, whether it has a SparkContext or is one of Spark Connect."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, overload

from pipelines.spark.access_mode import is_connected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

_ROWS = 2**16


def default_parallelism(session: SparkSession) -> int:
    """The tasks that Spark makes of a job that does not say: as many as cores, unless set."""
    if not is_connected():
        return int(session.sparkContext.defaultParallelism)
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    # A client cannot ask for the number, but a range has as many partitions.
    places = session.range(_ROWS).select(F.spark_partition_id().alias("place"))
    return int(places.agg(F.max("place").alias("last")).collect()[0]["last"]) + 1


def has_partitions(frame: DataFrame, least: int) -> bool:
    """Whether a frame has so many partitions; False where that is not known.

    A client of Spark Connect does not see them.
    """
    return not is_connected() and frame.rdd.getNumPartitions() >= least


def task_threads(session: SparkSession) -> int:
    """CPU threads of a task."""
    return int(conf_value(session, "spark.task.cpus", "1") or 1)


@overload
def conf_value(session: SparkSession, key: str, default: str) -> str: ...
@overload
def conf_value(session: SparkSession, key: str, default: None = None) -> str | None: ...
def conf_value(session: SparkSession, key: str, default: str | None = None) -> str | None:
    """A key of a session's conf; the default where it is not set or the session does not tell.

    Serverless sessions of Databricks know few keys of Spark's conf, and refuse to tell others.
    """
    from pyspark.errors import PySparkException

    try:
        return session.conf.get(key, default)
    except PySparkException as error:
        if not is_connected():
            raise
        logger.debug("the session does not tell %s (%s)", key, error)
        return default
