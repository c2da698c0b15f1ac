"""The tracking of a run by all of its trackers; the jobs call it.

Nothing here may stop or slow a training. Each tracker is a process of its own beside the driver,
behind a bounded queue. The training hands figures over and never waits; only a thread speaks with
the process. If the process cannot deliver, the thread retries at intervals, while the queue keeps
new figures. At its end a run waits for ``tracking.wait_seconds`` at most, then ends the process.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipelines.files.copies import cache_folder
from pipelines.files.locations import Location, as_local
from pipelines.settings import Config, TrackingSettings
from pipelines.settings import load as configuration
from pipelines.settings.redaction import without_secrets
from pipelines.tracking.base import MetricPoint, RunEnd, RunStart, Status, parameters
from pipelines.tracking.process import one_line

logger = logging.getLogger(__name__)

MAX_WAITING = 10_000
"""Points that are kept for a tracker; when there are more, the oldest are dropped."""
BATCH = 500
RETRY_SECONDS = 30.0
LAST_PAUSE_SECONDS = 2.0
LAST_TRIES = 3
ANSWER_SECONDS = 120.0
LEAVE_SECONDS = 2.0


class RunTracking:
    """The reports of a run to all of its trackers; a context manager on the driver.

    Only the end waits, for ``tracking.wait_seconds`` at most; nothing raises. Leaving it reports
    how the run has ended. ``first_step`` counts the completed steps at the start; None without
    training.
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
        """Report the figures of a step."""
        self._step = max(self._step, step)
        point = MetricPoint(step=step, time=time.time(), values=dict(values))
        for proxy in self._proxies:
            proxy.log(point)

    def keep(self, *files: Location, model: Location | None = None) -> None:
        """Name files and a model to keep when the run ends; missing files are ignored."""
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


class TrackingError(Exception):
    """A tracker's failed request; its proxy handles it."""


class TrackerProxy:
    """The driver's side of one tracker; sends ``start`` first, and survives all failures."""

    def __init__(self, name: str, start: RunStart) -> None:
        self._name = name
        self._start = start
        self._points: deque[MetricPoint] = deque(maxlen=MAX_WAITING)
        self._dropped = 0
        self._end: RunEnd | None = None
        self._changed = threading.Condition()
        self._process: TrackerProcess | None = None
        self._is_delivered = False
        self._has_warned = False
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def log(self, point: MetricPoint) -> None:
        """Hand figures over; never wait."""
        with self._changed:
            self._dropped += len(self._points) == MAX_WAITING
            self._points.append(point)
            self._changed.notify()

    def end(self, end: RunEnd) -> None:
        """Pass on how the run has ended; never wait."""
        with self._changed:
            self._end = end
            self._changed.notify()

    def wait(self, seconds: float) -> None:
        """Wait until all is delivered or cannot be, at most so long, and end the process."""
        self._thread.join(max(seconds, 0.0))
        if not self._is_delivered:
            self._warn("it did not take the last figures in time")
            logger.info("%s lacks the last figures of this run; the run folder has all", self._name)
        elif self._dropped:
            logger.info("%s lacks %d points of this run", self._name, self._dropped)
        with self._changed:
            self._is_abandoned = True
            self._changed.notify()
            if self._process is not None:
                self._process.kill()
        self._thread.join(LEAVE_SECONDS)

    def _work(self) -> None:
        """Deliver figures, and wait for more: the thread's function."""
        last_tries = LAST_TRIES
        while last_tries and not self._is_delivered and not self._is_abandoned:
            try:
                self._deliver()
                self._wait_for_more()
            except Exception as error:  # noqa: BLE001 - a training does not end for a tracker
                self._warn(str(error) if isinstance(error, TrackingError) else one_line(error))
                last_tries -= self._end is not None
                self._pause()
        if self._process is not None:
            self._process.close()

    def _deliver(self) -> None:
        process = self._running_process()
        if not process.has_started:
            sections = {
                "settings": self._start.settings.model_dump(),
                "storage": self._start.storage.model_dump(),
            }
            process.ask("start", asdict(self._start) | sections)
            process.has_started = True
            # A later process continues this one's run, and must not begin it again.
            self._start = replace(self._start, first_step=None)
        while True:
            with self._changed:
                # A deque has no slices.
                batch = [self._points[index] for index in range(min(BATCH, len(self._points)))]
                dropped = self._dropped
            if not batch:
                break
            process.ask("log", {"points": [asdict(point) for point in batch]})
            with self._changed:
                # The queue may have dropped the oldest of these points meanwhile.
                for _ in range(len(batch) - (self._dropped - dropped)):
                    self._points.popleft()
        if self._end is not None and not self._points:
            process.ask("finish", asdict(self._end))
            self._is_delivered = True

    def _running_process(self) -> TrackerProcess:
        if self._process is None or not self._process.is_alive:
            started = TrackerProcess(self._name, self._start)
            with self._changed:
                self._process = started
                if self._is_abandoned:
                    started.kill()
        assert self._process is not None
        return self._process

    def _wait_for_more(self) -> None:
        with self._changed:
            while not (self._points or self._is_delivered or self._end is not None):
                self._changed.wait()

    def _pause(self) -> None:
        """Wait before the next attempt, and only briefly when the run has ended."""
        began = time.monotonic()
        with self._changed:
            if self._end is not None and not self._is_abandoned:
                self._changed.wait(LAST_PAUSE_SECONDS)
            while self._end is None and (left := began + RETRY_SECONDS - time.monotonic()) > 0:
                self._changed.wait(left)

    def _warn(self, problem: str) -> None:
        """Log one warning for the tracker, however often it fails."""
        with self._changed:
            if self._has_warned:
                return
            self._has_warned = True
        logger.warning(
            "%s is behind or unreachable (%s), and the run goes on without it; see %s",
            self._name,
            problem,
            log_path(self._start, self._name),
        )


def log_path(start: RunStart, name: str) -> Path:
    """Return the log file of a tracker's process and its library."""
    folder = as_local(start.folder.tracking)
    if folder is not None:
        return folder / f"{name}.log"
    # The process appends to it, which no store can.
    digest = hashlib.sha256(start.run_folder.encode()).hexdigest()[:16]
    return cache_folder(start.storage) / "logs" / digest / f"{name}.log"


EXPERIMENT = ("MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")


def databricks_environment(settings: TrackingSettings) -> Mapping[str, str]:
    """Return workspace, credentials and experiment of a notebook or job of Databricks.

    A child process does not know them. Empty for other tracking servers, without an import of
    MLflow.

    Raises:
        Exception: MLflow's, where it finds no credentials.
    """
    uri = settings.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI", "")
    in_runtime = "DATABRICKS_RUNTIME_VERSION" in os.environ
    if not uri.startswith("databricks") and (uri or not in_runtime):
        return {}
    from mlflow.tracking.default_experiment.registry import get_experiment_id
    from mlflow.utils.databricks_utils import get_databricks_env_vars

    found = dict(get_databricks_env_vars(uri or "databricks"))
    if settings.mlflow_experiment is None and not any(name in os.environ for name in EXPERIMENT):
        experiment = get_experiment_id() if in_runtime else None
        if experiment is not None:
            found["MLFLOW_EXPERIMENT_ID"] = str(experiment)
    return found


_ENVIRONMENTS: Mapping[str, Callable[[TrackingSettings], Mapping[str, str]]] = {
    "mlflow": databricks_environment
}
"""Variables that a tracker's process needs and only the driver can know."""


class TrackerProcess:
    """The process of a tracker; raises any error of its start."""

    def __init__(self, name: str, start: RunStart) -> None:
        self.has_started = False
        extra = _ENVIRONMENTS[name](start.settings) if name in _ENVIRONMENTS else {}
        log = log_path(start, name)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipelines.tracking.process", name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env={**os.environ, **extra, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                # Ctrl-C must reach only the driver, which reports how the run ended.
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        """Whether it takes requests."""
        return self._process.poll() is None

    def ask(self, call: str, given: Mapping[str, Any]) -> None:
        """Have the tracker make a call, and wait for its answer.

        Raises:
            TrackingError: It failed, or did not answer in time; the process is ended then.
        """
        assert self._process.stdin is not None
        request = json.dumps({"call": call, "with": given}) + "\n"
        try:
            self._process.stdin.write(request.encode())
            self._process.stdin.flush()
        except OSError as error:
            raise TrackingError(f"its process died ({error})") from None
        problem = json.loads(self._answer(call))["problem"]
        if problem is not None:
            raise TrackingError(problem)

    def _answer(self, call: str) -> bytes:
        assert self._process.stdout is not None
        # The end of a run may take long; `TrackerProxy.wait` ends the process after its deadline.
        limit = None if call == "finish" else ANSWER_SECONDS
        # `readline` has no timeout.
        ready, _, _ = select.select([self._process.stdout], [], [], limit)
        if not ready:
            self.kill()
            raise TrackingError(f"it did not answer within {ANSWER_SECONDS:.0f} s")
        line: bytes = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise TrackingError("its process died")
        return line

    def close(self) -> None:
        """Let the process end by itself, and end it if it does not."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(5.0)
        except (OSError, subprocess.TimeoutExpired):
            self.kill()

    def kill(self) -> None:
        """Kill the process, and warn if it does not end soon."""
        self._process.kill()
        try:
            self._process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired as error:
            logger.warning("a tracker's process was killed and is still there (%s)", error)
