"""How a worker gets the granules of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipelines.lanes.files import Granule
from pipelines.lanes.plan import StepPlan
from pipelines.runs.run import WorkerTask


@dataclass(frozen=True)
class StepWork:
    """A worker's part of a step.

    Attributes:
        index: Number of the step.
        epoch: Its epoch.
        granules: The granules that this worker computes.
        source: Number of the source that they are of.
        visit: How often the granules of the source were read before; None where that is the epoch.
    """

    index: int
    epoch: int
    granules: list[Granule]
    source: int = 0
    visit: int | None = None

    @classmethod
    def of(cls, step: StepPlan, granules: list[Granule]) -> StepWork:
        """The work of a planned step."""
        return cls(step.index, step.epoch, granules, step.source, step.visit)

    @property
    def noise_epoch(self) -> int:
        """What noise follows from beside the granule, so that it is fresh on each visit."""
        return self.epoch if self.visit is None else self.visit


def lane_feed(task: WorkerTask) -> Iterator[StepWork]:
    """Reads the worker's granules from the lanes as its steps come. Runs on an executor.

    Those in an object store are fetched from now on, while the encoder is loaded.
    """
    reader = task.run.lane_reader()
    steps = reader.ahead(task.steps())
    return (
        StepWork.of(step, [reader.granule(address) for address in addresses])
        for step, addresses in steps
    )


def memory_feed(task: WorkerTask) -> Iterator[StepWork]:
    """Reads all of the worker's granules into memory before the first. Runs on an executor.

    Each is kept once, for all epochs. It shows what a feed without any cost would give: for small
    corpora, and as the baseline of benchmarks.
    """
    reader = task.run.lane_reader()
    wanted = {address for _, addresses in task.steps() for address in addresses}
    in_order = sorted(wanted, key=lambda address: (address.lane, address.row))
    one_by_one = reader.ahead((address, (address,)) for address in in_order)
    kept = {address: reader.granule(address) for address, _ in one_by_one}
    for step, addresses in task.steps():
        yield StepWork.of(step, [kept[address] for address in addresses])


Feed = Callable[[WorkerTask], Iterator[StepWork]]

FILE_FEEDS: dict[str, Feed] = {"lanes": lane_feed, "memory": memory_feed}
