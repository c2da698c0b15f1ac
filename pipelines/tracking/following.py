"""A run under the eyes of its trackers; what the workflow calls."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from pipelines import config as configuration
from pipelines.settings import Config
from pipelines.tracking import names
from pipelines.tracking.base import End, Point, Start, Status
from pipelines.tracking.link import TrackerLink
from pipelines.tracking.process import one_line


class Following:
    """Tells all trackers of a run what happens in it; a context manager on the driver.

    Nothing of it waits but the end, and that for ``tracking.wait_seconds`` at most; nothing of it
    fails. Leaving it tells the trackers how the run has ended.

    Args:
        config: Names the trackers.
        run_folder: Folder of the run.
        first_step: The step that training goes on from; None if nothing is trained.
    """

    def __init__(self, config: Config, run_folder: Path, first_step: int | None = None) -> None:
        self._settings = config.tracking
        self._start = Start(
            run_folder=str(run_folder),
            settings=config.tracking,
            parameters=names.parameters(config),
            config=configuration.dump(configuration.without_secrets(config)),
            program=sys.argv[0],
            first_step=first_step,
        )
        self._step = first_step or 0
        self._files: list[str] = []
        self._model: str | None = None
        self._links: list[TrackerLink] = []

    def __enter__(self) -> Following:
        self._links = [TrackerLink(name, self._start) for name in self._settings.trackers]
        return self

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Tells figures of a step."""
        self._step = max(self._step, step)
        point = Point(step=step, time=time.time(), values=dict(values))
        for link in self._links:
            link.log(point)

    def keep(self, *files: Path, model: Path | None = None) -> None:
        """Names what is to be kept of the run when it ends; files that are not there are not."""
        self._files += [str(file) for file in files if file.is_file()]
        self._model = str(model) if model is not None else self._model

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end = End(
            status=_status(error),
            step=self._step,
            problem=one_line(error) if isinstance(error, Exception) else "",
            files=tuple(self._files),
            model=self._model,
        )
        for link in self._links:
            link.end(end)
        deadline = time.monotonic() + self._settings.wait_seconds
        for link in self._links:
            link.wait(deadline - time.monotonic())


def _status(error: BaseException | None) -> Status:
    if error is None:
        return "finished"
    return "failed" if isinstance(error, Exception) else "killed"
