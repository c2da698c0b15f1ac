"""What Spark raises, in one line."""

import pytest

from pipelines.errors import InputError, PipelineError
from pipelines.failures import executor_failures


def test_a_task_that_failed_is_told_by_its_own_error(spark):
    def fail(_batches):
        raise ValueError("no 7")

    with (
        pytest.raises(PipelineError, match=r"^adding failed on an executor: ValueError: no 7; run"),
        executor_failures("adding", "; run it again"),
    ):
        spark.sparkContext.parallelize([7], 1).mapPartitions(fail).count()
    frame = spark.range(1).mapInArrow(fail, "id long")
    with (
        pytest.raises(PipelineError, match=r"^adding failed on an executor: ValueError: no 7$"),
        executor_failures("adding"),
    ):
        frame.collect()


def test_what_java_says_is_its_first_line(spark):
    with (
        pytest.raises(PipelineError, match=r'^reading failed in Spark: For input string: "seven"$'),
        executor_failures("reading"),
    ):
        spark.sparkContext._jvm.java.lang.Integer.parseInt("seven")


def test_errors_of_ours_pass():
    @executor_failures("working")
    def work():
        raise InputError("a.key", "is wrong", "mend it")

    with pytest.raises(InputError, match=r"^a.key: is wrong, mend it$"):
        work()
