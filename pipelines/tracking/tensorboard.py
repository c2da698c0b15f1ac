"""TensorBoard: event files by tensorboardX, which needs neither TensorFlow nor PyTorch."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from pipelines.files.run_folder import RunFolder
from pipelines.quiet import import_without
from pipelines.tracking.base import MetricPoint, RunEnd, RunStart

# If it is there, it is imported for tensors, of which none come here; it takes seconds.
with import_without("torch"):
    from tensorboardX import SummaryWriter

LOSS = "training/loss"
MARKER = "run-folder.txt"
"""Says in a shared folder whose event files lie beside it."""
FLUSH_SECONDS = 2


class TensorBoardTracker:
    """Writes scalars, and the configuration as text, to a folder of event files."""

    def __init__(self) -> None:
        self._writer: SummaryWriter | None = None
        self._folder = Path()
        self._trained = 0

    def start(self, start: RunStart) -> None:
        """See :class:`pipelines.tracking.base.Tracker`."""
        self._folder = event_folder(start)
        first = start.first_step
        self._trained = first or 0
        # TensorBoard forgets the steps that an earlier process wrote and that are made again.
        self._open(purge_step=None if first is None else first + 1)
        assert self._writer is not None
        if first is not None:
            self._writer.add_text("config", f"```yaml\n{start.config}```", first)

    def log(self, points: Sequence[MetricPoint]) -> None:
        """See :class:`pipelines.tracking.base.Tracker`."""
        assert self._writer is not None
        for point in points:
            if LOSS in point.values:
                if point.step <= self._trained:
                    # A run that lost a worker has gone back to a checkpoint.
                    self._writer.close()
                    self._open(purge_step=point.step)
                self._trained = point.step
            for name, value in point.values.items():
                self._writer.add_scalar(name, value, point.step, walltime=point.time)

    def finish(self, end: RunEnd) -> None:
        """See :class:`pipelines.tracking.base.Tracker`."""
        assert self._writer is not None
        self._writer.close()

    def _open(self, purge_step: int | None) -> None:
        # Two files of one second would have one name otherwise.
        suffix = f".{os.getpid()}.{time.monotonic_ns()}"
        self._writer = SummaryWriter(
            str(self._folder),
            purge_step=purge_step,
            flush_secs=FLUSH_SECONDS,
            filename_suffix=suffix,
        )


def event_folder(start: RunStart) -> Path:
    """Where the event files of a run are; a place in a shared folder is taken for it.

    That is the name of the run folder. If another run folder of that name came first, or the
    owner of the files there is unknown, a digest of the path follows it.
    """
    run_folder = Path(start.run_folder)
    if start.settings.tensorboard_folder is None:
        return RunFolder(run_folder).tensorboard
    plain = Path(start.settings.tensorboard_folder).absolute() / run_folder.name
    digest = hashlib.sha256(str(run_folder).encode()).hexdigest()[:8]
    own = plain.with_name(f"{plain.name}-{digest}")
    return own if own.exists() or not _take(plain, run_folder) else plain


def _take(folder: Path, run_folder: Path) -> bool:
    """Marks a folder of event files as a run's; False if it is not empty and not this run's."""
    folder.mkdir(parents=True, exist_ok=True)
    marker = folder / MARKER
    if not any(folder.iterdir()):
        try:
            with marker.open("x", encoding="utf-8") as file:
                file.write(f"{run_folder}\n")
        except FileExistsError:
            return False  # Another run has just come first.
    return marker.is_file() and marker.read_text(encoding="utf-8") == f"{run_folder}\n"
