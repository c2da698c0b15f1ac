"""An error of a Spark job says which of its tasks failed, and on which host."""

from __future__ import annotations

import os
import signal
import time

from pipelines.spark.errors import failed_partition, host_of_task, name_of
from pipelines.spark.jobs import SparkJob, ranks_of

SECONDS = 120
GONE = 1


def failed_job(context, by_rank):
    # Of no module, since executors have none of these tests.
    def dies(ranks):
        for rank in ranks:
            if rank == GONE:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(SECONDS)
            yield rank

    tasks = ranks_of(context, 2, None).barrier().mapPartitions(dies)
    job = SparkJob(context, "torch", "the job", "dies", tasks.count, by_rank=by_rank)
    job.start()
    job.join(SECONDS)
    assert not job.is_alive()
    return job


def test_the_task_that_died_is_named(spark):
    job = failed_job(spark.sparkContext, by_rank=True)
    failure = job.failure()
    assert "ModuleNotFound" not in str(failure)
    assert (failure.rank, failure.host) == (GONE, name_of("127.0.0.1"))
    assert job.host_of(0) == name_of("127.0.0.1")
    assert failed_job(spark.sparkContext, by_rank=False).failure().rank is None


def test_the_task_of_a_stage_without_a_barrier_is_named_too():
    lost = "Lost task 7.0 in stage 3.0 (TID 9) (10.0.0.9 executor 1): java.io.IOException"
    assert failed_partition(f"Job aborted due to stage failure: {lost}") == 7
    assert failed_partition("Job 3 cancelled") is None


def test_of_a_job_that_was_never_started_nothing_is_known(spark):
    assert host_of_task(spark.sparkContext, "no such group", 0) is None


def test_an_address_without_a_name_stays_what_it_is():
    assert name_of("203.0.113.9") == "203.0.113.9", "of a network that is for examples (RFC 5737)"
