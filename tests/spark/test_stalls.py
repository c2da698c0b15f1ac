"""Spark jobs outside of training that stand still are called off; those that are slow are not."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from pipelines.errors import InputError, PipelineError
from pipelines.settings.load import parse
from pipelines.spark import jobs as stalls
from pipelines.spark.errors import executor_failures
from pipelines.spark.jobs import called_off_when_stalled, run_with_timeout, stall_failures

DEADLINE = 60.0


@pytest.fixture(autouse=True)
def often(monkeypatch) -> None:
    monkeypatch.setattr(stalls, "STALL_POLL_SECONDS", 0.2)


def deadlines(stall, wait=600):
    """Those of the settings, shorter than they may be set."""
    return parse({}).spark.model_copy(update={"stall_seconds": stall, "wait_seconds": wait})


def hanging():
    """What never ends; executors, which have no module of the tests, get it by value."""

    def hang(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time.sleep(600)
        yield from ()

    return hang


def test_a_job_whose_tasks_hang_is_called_off_with_the_hosts_and_the_way_out(spark):
    began = time.monotonic()
    said = (
        r"^preparing was cancelled: 0 of 1 tasks of Spark's stage \d+ are done and others run on"
        r" \S+, and nothing has moved there for 2 s\. A folder .* raise"
        r" spark\.stall_seconds for "
    )
    with (
        pytest.raises(PipelineError, match=said),
        executor_failures("preparing"),
        stall_failures("preparing", deadlines(2)),
    ):
        spark.range(4, numPartitions=1).mapInArrow(hanging(), "id long").collect()
    assert time.monotonic() - began < DEADLINE
    assert spark.range(3).count() == 3, "the session lives on"


@pytest.mark.parametrize(("before", "called_off", "stall"), [(1, True, 60), (0, False, 3)])
def test_a_job_that_has_lost_all_executors_is_called_off_and_one_that_waits_for_them_is_not(
    spark, monkeypatch, before, called_off, stall
):
    """The cells of the faults, in which a driver's host is cut off, lose them in earnest."""
    seen = iter([before] * 5)
    monkeypatch.setattr(stalls, "executors_of", lambda context: next(seen, 0))
    said = (
        r"^evaluating was cancelled: 0 of 1 tasks .*, and no executor has been left for 1 s\."
        r" .* Raise spark\.wait_seconds if "
        if called_off
        else r"^evaluating was cancelled: .*, and nothing has moved there for 3 s\."
    )
    with (
        pytest.raises(PipelineError, match=said),
        executor_failures("evaluating"),
        stall_failures("evaluating", deadlines(stall, wait=1)),
    ):
        spark.range(4, numPartitions=1).mapInArrow(hanging(), "id long").collect()


def test_the_deadline_is_that_of_the_settings(spark):
    @called_off_when_stalled("searching")
    def job(config, rows):
        return spark.range(rows, numPartitions=1).mapInArrow(hanging(), "id long").collect()

    config = parse({}).model_copy(update={"spark": deadlines(1)})
    with pytest.raises(PipelineError, match=r"^searching was cancelled: .* for 1 s\. "):
        job(config, 4)
    with pytest.raises(InputError, match=r"^spark\.stall_seconds: "):
        parse({"spark": {"stall_seconds": 3}})


def test_other_errors_pass_and_a_job_that_waits_for_nothing_of_spark_goes_on(spark):
    with pytest.raises(ValueError, match="mine"), stall_failures("preparing", deadlines(1)):
        time.sleep(2)
        raise ValueError("mine")


@pytest.mark.matrix
def test_a_job_of_one_task_that_is_slow_is_seen_to_move(spark):
    def slowly(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # More than Python keeps back before it writes.
        rows = pa.RecordBatch.from_arrays([pa.array(range(20_000))], names=["id"])
        for _number in range(20):
            time.sleep(3)
            yield rows

    # Executors tell every ten seconds what their tasks have done.
    with stall_failures("preparing", deadlines(25)):
        assert spark.range(1, numPartitions=1).mapInArrow(slowly, "id long").count() == 400_000


def test_a_job_that_stands_still_is_called_off(spark) -> None:
    def hangs(rows):
        time.sleep(600)
        return rows

    context = spark.sparkContext
    act = context.parallelize([0], 1).mapPartitions(hangs).count
    began = time.monotonic()
    with pytest.raises(PipelineError, match=r"^embedding was cancelled: its tasks wrote nothing"):
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
