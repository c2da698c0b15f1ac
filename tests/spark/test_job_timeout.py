"""Spark jobs that move, that stand still and that fail."""

import itertools
import time

import pytest

from pipelines.errors import PipelineError
from pipelines.spark.errors import executor_failures
from pipelines.spark.jobs import run_with_timeout


def test_a_job_that_stands_still_is_called_off(spark) -> None:
    def hangs(rows):
        time.sleep(600)
        return rows

    context = spark.sparkContext
    act = context.parallelize([0], 1).mapPartitions(hangs).count
    began = time.monotonic()
    with pytest.raises(PipelineError, match=r"^embedding was called off: nothing was written for"):
        run_with_timeout(spark, "embedding", act, lambda: None, stall_seconds=2.0)
    assert time.monotonic() - began < 200
    deadline = time.monotonic() + 60
    while context.statusTracker().getActiveJobsIds() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not context.statusTracker().getActiveJobsIds()


def test_a_job_that_moves_goes_on(spark) -> None:
    beats = itertools.count()
    act = spark.sparkContext.parallelize([4], 1).map(time.sleep).count
    found = run_with_timeout(spark, "slow", act, lambda: next(beats), stall_seconds=1.5)
    assert found == 1


def test_errors_pass(spark) -> None:
    def fails(rows):
        raise ValueError(f"no {sum(rows)}")

    act = spark.sparkContext.parallelize([3, 4], 1).mapPartitions(fails).count
    with (
        pytest.raises(PipelineError, match=r"^adding failed on an executor: ValueError: no 7$"),
        executor_failures("adding"),
    ):
        run_with_timeout(spark, "adding", act, lambda: None)
