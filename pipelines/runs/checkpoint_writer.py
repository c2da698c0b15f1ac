"""Writes checkpoints while training goes on: to a store beside it, to a file system at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from tempfile import TemporaryDirectory

from pipelines.files.locations import Location, RemotePath
from pipelines.runs.attempts import FIRST
from pipelines.runs.checkpoint import Checkpoint, save_checkpoint, upload_checkpoint, write_files
from pipelines.settings import TrainingSettings


class CheckpointWriter:
    """Writes the checkpoints of a run, one after the other. Runs on an executor.

    A checkpoint for a store is written to the disk of this machine, which is when the next step may
    begin, and copied by a thread. The copy before it has ended by then, so that the disk holds no
    more than one.

    Args:
        run_folder: Where they go.
        training: Says which stay.
        attempt: On the run, see :mod:`pipelines.runs.attempts`.
    """

    def __init__(
        self, run_folder: Location, training: TrainingSettings, attempt: int = FIRST
    ) -> None:
        self._run_folder = run_folder
        self._training = training
        self._attempt = attempt
        self._copying = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._last: Future[None] | None = None

    def save(self, checkpoint: Checkpoint, saved: Callable[[int], None]) -> None:
        """Writes a checkpoint.

        Args:
            checkpoint: The state before a step.
            saved: Called with the step once the checkpoint is whole, perhaps on another thread.

        Raises:
            FloatingPointError: It holds numbers that are none; there is no checkpoint.
            OSError: It, or the one before it, cannot be written.
        """
        if not isinstance(self._run_folder, RemotePath):
            kept = self._kept(checkpoint.step)
            save_checkpoint(self._run_folder, checkpoint, *kept, attempt=self._attempt)
            saved(checkpoint.step)
            return
        self.wait()
        written = TemporaryDirectory(prefix="sentence-pipelines-")
        try:
            write_files(written.name, checkpoint)
        except BaseException:
            # Numbers are looked at while they are written: much of it may be there.
            written.cleanup()
            raise
        self._last = self._copying.submit(self._copy, written, checkpoint.step, saved)

    def wait(self) -> None:
        """Returns when the last checkpoint is whole.

        Raises:
            OSError: It cannot be written.
        """
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def _copy(
        self, written: TemporaryDirectory[str], step: int, saved: Callable[[int], None]
    ) -> None:
        with written:
            kept = self._kept(step)
            upload_checkpoint(written.name, self._run_folder, step, *kept, attempt=self._attempt)
        saved(step)

    def _kept(self, step: int) -> tuple[int, tuple[int, ...]]:
        """How many stay when that before a step is there, and which others."""
        return self._training.kept_checkpoints, self._training.averaged_steps(step)
