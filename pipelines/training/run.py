"""What a training run is, as plain values that travel from the driver to every worker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.lanes.files import LaneManifest, SideName
from pipelines.lanes.plan import BatchPlan, first_lane
from pipelines.objectives import OBJECTIVES
from pipelines.settings import Config


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """Everything that an engine and its workers need to know.

    Attributes:
        config: The whole configuration.
        plan: The order of the steps.
        manifest: What the lanes hold.
        lanes_folder: Folder of the lanes, reachable from every executor.
        run_folder: Folder of the run, reachable from every executor.
        first_step: The step to begin with; the checkpoint before it exists.
        last_step: One past the last step.
    """

    config: Config
    plan: BatchPlan
    manifest: LaneManifest
    lanes_folder: Path
    run_folder: Path
    first_step: int
    last_step: int

    @property
    def examples_per_step(self) -> int:
        """Examples of one optimiser update."""
        return self.plan.granules_per_step * self.manifest.granule

    @property
    def sides(self) -> tuple[SideName, ...]:
        """The sides of a granule that are embedded, in the order in which the loss takes them."""
        wanted = OBJECTIVES[self.config.objective.name].sides
        return tuple(name for name in wanted if name in self.manifest.sides)


@dataclass(frozen=True, kw_only=True)
class WorkerTask:
    """A run as one worker sees it.

    Attributes:
        run: The run.
        rank: Number of the worker.
        workers: How many there are.
        monitor: Host and port of the driver's monitor.
        token: Shows the monitor that the worker belongs to the run.
    """

    run: TrainingRun
    rank: int
    workers: int
    monitor: tuple[str, int]
    token: str

    @property
    def first_lane(self) -> int:
        """The first lane that this worker reads."""
        return first_lane(self.rank, self.workers, self.run.plan.granules_per_step)


@dataclass(frozen=True, kw_only=True)
class TrainingOutcome:
    """What a finished run reports.

    Attributes:
        steps: Optimiser updates that were made.
        examples: Examples that were seen.
        seconds: From the first step to the last, on rank 0.
        examples_per_second: Over the steps after the first logged ones, which hold the
            framework's start-up.
        losses: The loss of every step.
    """

    steps: int
    examples: int
    seconds: float
    examples_per_second: float
    losses: tuple[float, ...]

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> TrainingOutcome:
        """Reads what rank 0 sent."""
        return cls(
            steps=int(message["steps"]),
            examples=int(message["examples"]),
            seconds=float(message["seconds"]),
            examples_per_second=float(message["examples_per_second"]),
            losses=tuple(map(float, message["losses"])),
        )
