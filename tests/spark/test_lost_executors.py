"""The error of a lost worker tells why Spark says that its executor has ended."""

from __future__ import annotations

import psutil
import pytest
from lost_executors import executor_lost

# Another one starts in its place: the same is held in `engines/test_bigdl.py`, where one is killed
# anyway.
pytestmark = pytest.mark.matrix


def an_executor() -> psutil.Process:
    return next(
        process
        for process in psutil.Process().children(recursive=True)
        if process.name() == "java" and any("ExecutorBackend" in one for one in process.cmdline())
    )


def test_the_exit_code_of_an_executor_is_told_of_its_worker_alone(spark):
    with executor_lost(spark.sparkContext):
        an_executor().kill()
    assert spark.range(3).count() == 3, "the session lives on"
