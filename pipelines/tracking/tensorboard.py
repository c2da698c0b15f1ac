"""TensorBoard: event files by tensorboardX, without TensorFlow or PyTorch."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pipelines.files import storage
from pipelines.files.locations import Location, as_local, location
from pipelines.quiet import import_without
from pipelines.tracking.base import MetricPoint, RunEnd, RunStart

# tensorboardX imports an installed PyTorch for tensors. None come here, and that takes seconds.
with import_without("torch"):
    from tensorboardX import SummaryWriter

LOSS = "training/loss"
MARKER = "run-folder.txt"
"""Names, in a shared folder, the run of the event files beside it."""
FLUSH_SECONDS = 2
PUBLISH_SECONDS = 30.0
"""Between two copies of the event files to an object store."""


class TensorBoardTracker:
    """A tracker by event files: scalars, and the configuration as text."""

    def __init__(self) -> None:
        self._writer: SummaryWriter | None = None
        self._folder: Location = Path()
        self._written = TemporaryDirectory(prefix="sentence-pipelines-")
        self._published = 0.0
        self._trained = 0

    def start(self, start: RunStart) -> None:
        """See :class:`pipelines.tracking.base.Tracker`."""
        self._folder = event_folder(start)
        first = start.first_step
        self._trained = first or 0
        # TensorBoard then forgets the steps of an earlier process that this one repeats.
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
        if time.monotonic() - self._published > PUBLISH_SECONDS:
            self._publish()

    def finish(self, end: RunEnd) -> None:
        """See :class:`pipelines.tracking.base.Tracker`."""
        assert self._writer is not None
        self._writer.close()
        self._publish()
        self._written.cleanup()

    def _publish(self) -> None:
        """Copy the event files to a store, since its files cannot grow."""
        self._published = time.monotonic()
        if as_local(self._folder) is None and self._writer is not None:
            self._writer.flush()
            storage.copy_folder(Path(self._written.name), self._folder)

    def _open(self, purge_step: int | None) -> None:
        # tensorboardX names files by the second: two of one second would be one file.
        suffix = f".{os.getpid()}.{time.monotonic_ns()}"
        self._writer = SummaryWriter(
            str(as_local(self._folder) or self._written.name),
            purge_step=purge_step,
            flush_secs=FLUSH_SECONDS,
            filename_suffix=suffix,
        )


def event_folder(start: RunStart) -> Location:
    """Return the folder of a run's event files; claim it in a shared folder.

    There it has the name of the run folder. If another run folder of this name came first, or files
    of an unknown owner lie there, a digest of the path follows the name.
    """
    if start.settings.tensorboard_folder is None:
        return start.folder.tensorboard
    shared = location(start.settings.tensorboard_folder, start.storage).absolute()
    plain = shared / start.folder.path.name
    digest = hashlib.sha256(start.run_folder.encode()).hexdigest()[:8]
    unique = plain.with_name(f"{plain.name}-{digest}")
    return unique if unique.exists() or not _take(plain, start.run_folder) else plain


def _take(folder: Location, run_folder: str) -> bool:
    """Mark a folder of event files as a run's; False if it is not empty and not this run's."""
    marker = folder / MARKER
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        storage.create_file(marker, f"{run_folder}\n".encode())
    return marker.is_file() and marker.read_text(encoding="utf-8") == f"{run_folder}\n"
