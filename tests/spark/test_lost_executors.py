"""The error of a lost worker tells why Spark says that its executor has ended."""

from __future__ import annotations

import time

import psutil
import pytest

from pipelines.errors import WorkerLostError
from pipelines.spark.errors import ended_executors, reasons_of_losses

SECONDS = 120
HERE = "127.0.0.1"


def an_executor() -> psutil.Process:
    return next(
        process
        for process in psutil.Process().children(recursive=True)
        if process.name() == "java" and any("ExecutorBackend" in one for one in process.cmdline())
    )


def lost(host: str) -> WorkerLostError:
    cause = "the worker's process died"
    return WorkerLostError("torch", cause, began=True, rank=1, host=host, lane=2)


def test_the_exit_code_of_an_executor_is_told_of_its_worker_alone(spark):
    context = spark.sparkContext
    before = ended_executors(context)
    named = r"^engine torch, rank 1, host node7, lane 2: the worker's process died \(.*code 137\)$"
    with (
        pytest.raises(WorkerLostError, match=named) as caught,
        reasons_of_losses(context, lambda rank: {1: HERE}[rank]),
    ):
        with (
            pytest.raises(WorkerLostError, match=r"process died$"),
            reasons_of_losses(context, lambda rank: "10.9.9.9"),
        ):
            an_executor().kill()
            deadline = time.monotonic() + SECONDS
            while ended_executors(context).keys() == before.keys():
                assert time.monotonic() < deadline
                time.sleep(0.1)
            raise lost("another")
        raise lost("node7")
    assert (caught.value.began, caught.value.rank, caught.value.lane) == (True, 1, 2)
    assert spark.range(3).count() == 3, "the session lives on"
