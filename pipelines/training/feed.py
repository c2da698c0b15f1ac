"""How a worker gets the granules of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipelines.lanes.files import Granule, LaneReader
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
    """Reads the worker's granules from the lane files in place. Runs on an executor."""
    run = task.run
    reader = LaneReader(run.lanes_folder, run.manifest, run.sides)
    for step, addresses in task.steps():
        yield StepWork(step.index, step.epoch, [reader.granule(a) for a in addresses])


def memory_feed(task: WorkerTask) -> Iterator[StepWork]:
    """Reads all of the worker's steps into memory before the first. Runs on an executor.

    What a feed that costs nothing would give: for small corpora, and to measure the others by.
    """
    yield from list(lane_feed(task))


Feed = Callable[[WorkerTask], Iterator[StepWork]]

FILE_FEEDS: dict[str, Feed] = {"lanes": lane_feed, "memory": memory_feed}
