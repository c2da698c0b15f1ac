"""An error of a Spark job says which of its tasks failed, and on which host."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator

from pipelines.spark.jobs import SparkJob
from pipelines.spark.room import ranks_of
from pipelines.spark.task_places import host_of_task, name_of

SECONDS = 120
GONE = 1


def dies(ranks: Iterable[int]) -> Iterator[int]:
    """Runs on an executor."""
    for rank in ranks:
        if rank == GONE:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(SECONDS)
        yield rank


def failed_job(context, by_rank):
    tasks = ranks_of(context, 2, None).barrier()
    job = SparkJob(
        context,
        "torch",
        "the job",
        "dies",
        lambda: tasks.mapPartitions(dies).count(),
        by_rank=by_rank,
    )
    job.start()
    job.join(SECONDS)
    assert not job.is_alive()
    return job


def test_the_task_that_died_is_named(spark):
    job = failed_job(spark.sparkContext, by_rank=True)
    failure = job.failure()
    assert (failure.rank, failure.host) == (GONE, name_of("127.0.0.1"))
    assert job.host_of(0) == name_of("127.0.0.1")
    assert failed_job(spark.sparkContext, by_rank=False).failure().rank is None


def test_of_a_job_that_was_never_started_nothing_is_known(spark):
    assert host_of_task(spark.sparkContext, "no such group", 0) is None


def test_an_address_without_a_name_stays_what_it_is():
    assert name_of("203.0.113.9") == "203.0.113.9", "of a network that is for examples (RFC 5737)"
