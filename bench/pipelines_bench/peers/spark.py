"""The local cluster of a peer: what an engine of this package would find, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipelines.errors import PipelineError
from pipelines.settings import Config
from pipelines.spark.jobs import await_room
from pipelines.spark.session import executor_count, spark_session, stopped_at_the_end

if TYPE_CHECKING:
    from pyspark import SparkContext


@contextmanager
def local_cluster(config: Config, name: str) -> Iterator[SparkContext]:
    """A session with an executor for each worker, all of which are there.

    An array that is parallelised has a partition for each worker, as a user would have it.

    Args:
        config: Of the training.
        name: Of the peer.

    Raises:
        PipelineError: The executors have not come in time.
    """
    workers, threads = config.training.workers, config.training.threads
    own = {
        "spark.default.parallelism": str(workers),
        # A worker that has failed does not come back: Spark would feed its rows to nobody.
        "spark.task.maxFailures": "1",
        # TensorFlow takes its threads from these wherever nothing else says how many.
        "spark.executorEnv.TF_NUM_INTRAOP_THREADS": str(threads),
        "spark.executorEnv.TF_NUM_INTEROP_THREADS": str(threads),
    }
    with stopped_at_the_end():
        session = spark_session(config, name, conf=lambda _: own)
        seconds = config.training.start_seconds
        there = await_room(session, workers, lambda: executor_count(session), seconds)
        if there < workers:
            raise PipelineError(f"{there} of {workers} executors have come within {seconds} s")
        yield session.sparkContext
