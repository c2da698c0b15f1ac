"""Reports a run to all of its trackers; what the jobs call.

Nothing here may stop or slow a training. Each tracker is a process of its own beside the driver,
behind a bounded queue (:mod:`pipelines.tracking.proxy`); a run that ends waits for
``tracking.wait_seconds`` at most, and then ends the process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from pipelines.catalog import TRACKERS
from pipelines.files.locations import Location
from pipelines.libraries import DRIVER, EXTRAS, check_installed
from pipelines.settings import Config, TrackingSettings
from pipelines.settings import load as configuration
from pipelines.settings.redaction import without_secrets
from pipelines.tracking.base import MetricPoint, RunEnd, RunStart, Status, parameters
from pipelines.tracking.process import one_line
from pipelines.tracking.proxy import TrackerProxy


def check_trackers(settings: TrackingSettings) -> None:
    """Refuse trackers that do not exist or are not installed.

    Raises:
        InputError: Naming the tracker, and the install command.
    """
    libraries = {extra: library for library, extra in EXTRAS.items()}
    for name in settings.trackers:
        TRACKERS.check(name)
        check_installed(TRACKERS.key, libraries.get(name, name), name, DRIVER)


class RunTracking:
    """Report what happens in a run to all of its trackers; a context manager on the driver.

    Only the end waits, and for ``tracking.wait_seconds`` at most; nothing raises. Leaving it
    reports how the run has ended.

    Args:
        config: Names the trackers.
        first_step: The step that training goes on from; None if nothing is trained.
    """

    def __init__(self, config: Config, run_folder: Location, first_step: int | None = None) -> None:
        self._settings = config.tracking
        self._start = RunStart(
            run_folder=str(run_folder),
            storage=config.storage,
            settings=config.tracking,
            parameters=parameters(config),
            config=configuration.dump(without_secrets(config)),
            program=sys.argv[0],
            first_step=first_step,
        )
        self._step = first_step or 0
        self._files: list[str] = []
        self._model: str | None = None
        self._proxies: list[TrackerProxy] = []

    def __enter__(self) -> RunTracking:
        self._proxies = [TrackerProxy(name, self._start) for name in self._settings.trackers]
        return self

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Report figures of a step."""
        self._step = max(self._step, step)
        point = MetricPoint(step=step, time=time.time(), values=dict(values))
        for proxy in self._proxies:
            proxy.log(point)

    def keep(self, *files: Location, model: Location | None = None) -> None:
        """Name what is to be kept of the run when it ends; files that are not there are not."""
        self._files += [str(file) for file in files if file.is_file()]
        self._model = str(model) if model is not None else self._model

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        status: Status = "finished" if error is None else "killed"
        problem = ""
        if isinstance(error, Exception):
            status, problem = "failed", one_line(error)
        end = RunEnd(
            status=status,
            step=self._step,
            problem=problem,
            files=tuple(self._files),
            model=self._model,
        )
        for proxy in self._proxies:
            proxy.end(end)
        deadline = time.monotonic() + self._settings.wait_seconds
        for proxy in self._proxies:
            proxy.wait(deadline - time.monotonic())
