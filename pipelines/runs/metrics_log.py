"""``metrics.jsonl`` of a run, a line every so many steps, and the progress bar over it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any, NotRequired

from typing_extensions import TypedDict

from pipelines.files import records
from pipelines.files.locations import Location
from pipelines.files.run_folder import RunFolder
from pipelines.files.storage import LineLog
from pipelines.progress import WorkProgress
from pipelines.runs.run import TrainingRun

logger = logging.getLogger(__name__)


class _Step(TypedDict):
    """What a log that goes on must find in a line."""

    step: int
    precision: NotRequired[str | None]


class MetricsLine(_Step):
    """What is read again of every line of a run, which has more."""

    loss: float
    seconds: float
    cpu_seconds: NotRequired[float | None]


def read_metrics_lines(run_folder: Location) -> Iterator[dict[str, Any]]:
    """The metrics lines that are whole; none if there is no file.

    Raises:
        DamagedFileError: The file holds something else.
    """
    return _read(run_folder, MetricsLine)


def _read(run_folder: Location, kind: type) -> Iterator[dict[str, Any]]:
    return records.read_lines(RunFolder(run_folder).step_metrics, kind, torn=True)


class MetricsLog:
    """Writes ``metrics.jsonl`` and shows a progress bar; a context manager on the driver.

    Args:
        run: The run; lines of steps that are made again are dropped from an earlier file.
    """

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self._lines = LineLog(RunFolder(run.run_folder).step_metrics)
        self._keep_lines_to(run.first_step)
        self._warn_of_gap()
        self._logged = run.first_step
        self._precision = _last_precision(run.run_folder)
        self._progress = WorkProgress(
            "training",
            run.last_step,
            run.first_step,
            "step {done}/{total}  {text}",
            "the workers start",
        )

    def __enter__(self) -> MetricsLog:
        self._progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)
        self._lines.flush()

    def add(self, line: dict[str, Any]) -> None:
        """Takes a metrics line; called while the run goes on.

        A run that lost a worker may go back to a checkpoint: the lines of steps that are made
        again are dropped.
        """
        if line["step"] <= self._logged:
            self._keep_lines_to(line["step"] - 1)
        self._logged = line["step"]
        self._warn_of_precision(line.get("precision"))
        self._lines.add(json.dumps(line))
        rate = f"{line['examples_per_second']:.1f} examples/s"
        self._progress.show(line["step"], f"loss {line['loss']:.4f}  {rate}")

    def step_done(self, step: int) -> None:
        """Shows that so many steps are done."""
        self._progress.move(step)
        if self._run.is_checkpointed(step):
            # A run that goes on from the checkpoint, which is written now, makes no lines before.
            self._lines.flush()

    def checkpoint_saved(self) -> None:
        """Writes the lines before a checkpoint, which need not be one of a known step."""
        self._lines.flush()

    def _warn_of_gap(self) -> None:
        """Warns if a job was killed before a store had the lines of its last checkpoint."""
        first, every = self._run.first_step, self._run.config.training.log_every
        last = max((line["step"] for line in _read(self._run.run_folder, _Step)), default=0)
        if last < first // every * every:
            logger.warning(
                "metrics.jsonl lacks steps %d to %d: the run before was killed before it wrote"
                " their lines",
                last + 1,
                first,
            )

    def _warn_of_precision(self, precision: str | None) -> None:
        """Warns if steps are not rounded as those before, which ``auto`` may bring about."""
        if None not in (precision, self._precision) and precision != self._precision:
            logger.warning(
                "the steps up to here were computed in %s, and those from here on are in %s "
                "(training.precision)",
                self._precision,
                precision,
            )
        self._precision = precision or self._precision

    def _keep_lines_to(self, step: int) -> None:
        path = RunFolder(self._run.run_folder).step_metrics

        def is_before(line: str) -> bool:
            """Whether a line is whole and of a step that is not made again."""
            found = records.read_line(path, line.encode(), _Step, torn=True)
            return found is not None and found["step"] <= step

        self._lines.keep(is_before)


def _last_precision(run_folder: Location) -> str | None:
    """The precision of the last metrics line."""
    lines = list(_read(run_folder, _Step))
    return lines[-1].get("precision") if lines else None
