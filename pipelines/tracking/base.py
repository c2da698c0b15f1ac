"""Trackers, and the plain values that travel to their processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pipelines.files.locations import location
from pipelines.files.run_folder import RunFolder
from pipelines.settings import StorageSettings, TrackingSettings

Status = Literal["finished", "failed", "killed"]


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """What is known of a run when it begins, or goes on.

    Attributes:
        run_folder: Absolute path of the run folder, or its address.
        storage: How stores are reached.
        settings: The section ``tracking``.
        parameters: The whole configuration, flat: dotted key to text.
        config: The same as YAML.
        program: What the driver runs.
        first_step: The step that training goes on from; None if nothing is trained.
    """

    run_folder: str
    storage: StorageSettings
    settings: TrackingSettings
    parameters: Mapping[str, str]
    config: str
    program: str
    first_step: int | None

    @property
    def folder(self) -> RunFolder:
        """The run folder."""
        return RunFolder(location(self.run_folder, self.storage))


@dataclass(frozen=True, kw_only=True)
class MetricPoint:
    """Figures of one step.

    Attributes:
        step: Steps that were made.
        time: Seconds since 1970.
        values: By name, such as ``training/loss``.
    """

    step: int
    time: float
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """How a run, or a part of it, has ended.

    Attributes:
        status: How.
        step: Steps that were made.
        problem: What went wrong, in one line.
        files: Absolute paths of files to keep.
        model: A sentence-transformers folder to keep.
    """

    status: Status = "finished"
    step: int = 0
    problem: str = ""
    files: Sequence[str] = field(default_factory=tuple)
    model: str | None = None


class Tracker(Protocol):
    """Runs in a process of its own, so it may be slow, and raise any error.

    After an error the same call is repeated, perhaps in another process; what a tracker needs to
    go on it keeps in the run folder.
    """

    def start(self, start: RunStart) -> None:
        """Opens the run, or goes on with it."""
        ...

    def log(self, points: Sequence[MetricPoint]) -> None:
        """Takes figures, in the order in which they were measured."""
        ...

    def finish(self, end: RunEnd) -> None:
        """Keeps files and model, and closes the run."""
        ...
