"""The Spark feed's two ends, which are on executors: a partition, and the worker that it feeds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark import TaskContext

import pipelines.lean_tensorflow  # noqa: F401 - before the library imports TensorFlow, and Keras
from pipelines.errors import PipelineError
from pipelines.lanes.files import decode
from pipelines.quiet import quiet_import
from pipelines.runs.run import TrainingRun, WorkerTask
from pipelines.training.feed import StepWork

# The library imports TensorFlow, which greets on standard error, and pkg_resources, which warns.
with quiet_import():
    from tensorflowonspark import TFSparkNode, util

# Granules that may wait in a worker's queue, which itself has no bound.
QUEUE_BOUND = 64
# Stand for the step in a message that is no granule: a partition's number, or the feed's error.
PARTITION, FAILED = -1, -2

Message: TypeAlias = tuple[int, int, int, bytes]


def feed_partition(
    index: int,
    _: Iterator[int],
    *,
    run: TrainingRun,
    workers: int,
    nodes: Sequence[dict[str, Any]],
) -> Iterator[Message]:
    """One worker's granules in the order of the plan. Runs on an executor.

    Which worker gets which partition is Spark's choice. That is harmless: the granules of a
    step are the same, and so is the noise, which belongs to the granule.

    Yields:
        Step, epoch, granule number, and the granule as an Arrow message; before all others the
        number of the partition.
    """
    task = TaskContext.get()
    assert task is not None, "runs in a Spark task"
    if task.attemptNumber() > 0:
        # The first attempt's granules are used up; Spark would feed them once more.
        raise PipelineError(f"the task that fed worker {index} was lost")
    manager = TFSparkNode._get_manager(nodes, util.get_ip_address(), util.read_executor_id())
    queue = manager.get_queue("input")
    reader = run.lane_reader()
    yield PARTITION, 0, index, b""
    for step, addresses in reader.ahead(run.shares(index, workers)):
        for address in addresses:
            while queue.qsize() >= QUEUE_BOUND:
                time.sleep(0.01)
            try:
                message = reader.message(address).to_pybytes()
            except (OSError, PipelineError) as error:
                # Through the queue, since a task that fails is started again by Spark.
                yield FAILED, 0, 0, str(error).encode()
                return
            yield step.index, step.epoch, reader.number(address), message


def spark_feed(task: WorkerTask, queue: Any) -> Iterator[StepWork]:
    """A worker's steps, which are those of the partition that it got. Runs on an executor.

    Raises:
        PipelineError: The other end failed, or something else than the next step arrived.
    """
    run = task.run
    wanted = [(one.sides, one.teacher) for one in run.by_source]
    partition = _take(queue, 1)[0][2]
    for step, addresses in replace(task, rank=partition).steps():
        items = _take(queue, len(addresses))
        if [item[0] for item in items] != [step.index] * len(addresses):
            brought = [item[0] for item in items]
            raise PipelineError(f"the feed brought {brought} for step {step.index}")
        granules = [
            decode(
                pa.ipc.read_record_batch(pa.py_buffer(message), run.manifest.schema),
                number,
                *wanted[step.source],
            )
            for _, _, number, message in items
        ]
        yield StepWork.of(step, granules)


def _take(queue: Any, count: int) -> Sequence[Message]:
    """The next messages, unless one says that the feed failed."""
    items: Sequence[Message] = queue.next_batch(count)
    for step, _, _, message in items:
        if step == FAILED:
            raise PipelineError(f"the feed failed: {message.decode()}")
    return items
