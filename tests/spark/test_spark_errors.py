"""What Spark raises, in one line."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipelines.errors import InputError, PipelineError
from pipelines.spark.errors import complete_line, executor_failures, file_failures, spark_cause


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


TRACEBACK = """An exception was thrown
Traceback (most recent call last):
  File "worker.py", line 1, in work
    fail()
    ^^^^^^
ValueError: no 7
in the second row

\tat org.apache.spark.api.python.BasePythonRunner
"""


class JavaError(Exception):
    """As py4j has it: each cause of a Java exception says something, or nothing."""

    def __init__(self, *messages: str | None) -> None:
        super().__init__("An error occurred while calling o1.count.\n: java.lang.IOError\n\tat a.b")
        cause = None
        for message in reversed(messages):
            cause = SimpleNamespace(
                getMessage=lambda message=message: message, getCause=lambda cause=cause: cause
            )
        self.java_exception = cause


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError(TRACEBACK), "ValueError: no 7"),
        (JavaError("Job aborted", TRACEBACK, None), "ValueError: no 7"),
        (JavaError("Job aborted", "a/file is gone\nmore", None), "a/file is gone"),
        (JavaError(None), "java.lang.IOError"),
        ("the log's end\n  raise\nRuntimeError: lost\nbye", "RuntimeError: lost"),
        ("all executors are lost", "all executors are lost"),
        (ValueError(), "ValueError()"),
    ],
)
def test_the_cause_is_the_error_behind_the_stacks(error, expected):
    assert spark_cause(error) == expected


def test_errors_of_ours_pass():
    @executor_failures("working")
    def work():
        raise InputError("a.key", "is wrong", "Repair it")

    with pytest.raises(InputError, match=r"^a.key: is wrong. Repair it.$"):
        work()


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told_with_what_to_do():
    told = r"^training failed: No space left on device.*; make room on the disk, and run it again$"
    with pytest.raises(PipelineError, match=told), file_failures("training"):
        FULL.write_bytes(bytes(10**6))


def test_a_file_that_is_gone_is_named(tmp_path):
    told = rf"^training failed: No such file or directory \({tmp_path}/gone\)$"
    with pytest.raises(PipelineError, match=told), file_failures("training"):
        (tmp_path / "gone").read_text()


def test_other_errors_pass_file_failures():
    with pytest.raises(ValueError, match="a mistake of ours"), file_failures("training"):
        raise ValueError("a mistake of ours")


def test_what_says_all_needs_no_traceback():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a/file")
    assert complete_line(full) == (
        "No space left on device (a/file); make room on the disk, and run it again"
    )
    assert complete_line(PipelineError("it was prepared again")) == "it was prepared again"
    assert complete_line(ConnectionResetError(errno.ECONNRESET, "reset")) is None
    assert complete_line(ValueError("a mistake of ours")) is None
