"""How a worker gets the granules of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipelines.lanes.files import Granule, LaneReader
from pipelines.lanes.plan import share
from pipelines.training.run import WorkerTask


@dataclass(frozen=True)
class StepWork:
    """A worker's part of a step.

    Attributes:
        index: Number of the step.
        epoch: Its epoch.
        granules: The granules that this worker computes.
    """

    index: int
    epoch: int
    granules: list[Granule]


def lane_feed(task: WorkerTask) -> Iterator[StepWork]:
    """Reads the worker's own lanes in place. Runs on an executor."""
    run = task.run
    reader = LaneReader(run.lanes_folder, run.manifest, run.sides)
    for step in run.plan.steps(run.first_step, run.last_step):
        addresses = share(step, task.rank, task.workers)
        yield StepWork(step.index, step.epoch, [reader.granule(a) for a in addresses])


def memory_feed(task: WorkerTask) -> Iterator[StepWork]:
    """Reads all of the worker's steps into memory before the first. Runs on an executor.

    What a feed that costs nothing would give: for small corpora, and to measure the others by.
    """
    yield from list(lane_feed(task))


Feed = Callable[[WorkerTask], Iterator[StepWork]]

FILE_FEEDS: dict[str, Feed] = {"lanes": lane_feed, "memory": memory_feed}
