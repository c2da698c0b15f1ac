"""The evaluation of checkpoints during a training, without an effect on it.

Workers write checkpoints to the run folder anyway. A thread of the driver finds them there, and
starts a process of :mod:`pipelines.evaluation.measure_checkpoint` for each. Executors, engine and
workers have no part in it, so the loss curve stays the same.
"""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.errors import PipelineError
from pipelines.evaluation.measure_checkpoint import STATE, Snapshot, write_snapshots
from pipelines.evaluation.sets import metric_named
from pipelines.files.locations import Location
from pipelines.files.run_folder import RunFolder
from pipelines.runs.attempts import SupersededError
from pipelines.runs.checkpoint import checkpoint_path, checkpoint_steps, newest_whole_checkpoint
from pipelines.runs.job_records import add_evaluations, forget_evaluations, read_evaluations
from pipelines.runs.model_choice import (
    Metric,
    ask_to_end,
    compared_steps,
    go_on_to_the_end,
    is_to_end,
    keep_if_best,
    measured_since,
    read_best,
)
from pipelines.runs.run import TrainingRun
from pipelines.settings import Config

logger = logging.getLogger(__name__)


def choosing_metric(config: Config) -> Metric | None:
    """Return the metric of ``training.keep_best``; None where it is not set.

    Raises:
        InputError: It is not measured.
    """
    asked = config.training.keep_best
    return metric_named(config, "training.keep_best", asked) if asked else None


def has_ended_early(config: Config, run_folder: Location) -> bool:
    """Tell whether a run has ended early, by the present settings too; else have it go on."""
    if not is_to_end(run_folder):
        return False
    metric, patience = choosing_metric(config), config.training.patience
    best = None if metric is None else read_best(run_folder, str(metric))
    if metric is not None and best is not None and patience is not None:
        since = measured_since(read_evaluations(run_folder), metric, best)
        if since >= patience:
            logger.info(
                "the run ended early: %d evaluations brought no gain. Raise training.patience to"
                " continue",
                since,
            )
            return True
    go_on_to_the_end(run_folder)
    return False


POLL_SECONDS = 1.0
MEASURE_SECONDS = 1800.0
"""Deadline for the evaluation of one checkpoint."""
KILL_SECONDS = 5.0
"""Deadline for a killed process to end."""
FINISH_SECONDS = 300.0
"""How long the end of a training waits for unmeasured checkpoints."""

Figures = dict[str, dict[str, float]]
OnFigures = Callable[[int, Figures], None]


class CheckpointEvaluation:
    """The evaluation of every n-th checkpoint of a run; a context manager on the driver.

    The `evaluate` job measures the last checkpoint, unless the run keeps the best one. A checkpoint
    deleted before its turn is skipped. Checkpoints left by an earlier driver come first, even after
    the last step.

    Args:
        snapshots: The tables to measure on; without any, nothing is measured.
        run: The run, with ``evaluation.every_checkpoints`` above 0 if there are snapshots.
        on_figures: Called with the step and the figures, on a thread.
        metric: Chooses the best checkpoint, if the run keeps it. Workers are asked to end after
            ``training.patience`` evaluations without a gain.
    """

    def __init__(
        self,
        snapshots: Sequence[Snapshot],
        run: TrainingRun,
        tokenizer: Location,
        on_figures: OnFigures = lambda step, figures: None,
        metric: Metric | None = None,
    ) -> None:
        self._measured_on = snapshots
        self._run = run
        self._tokenizer = tokenizer
        self._on_figures = on_figures
        self._metric = metric
        self._folder = RunFolder(run.run_folder).snapshots
        self._last = max(run.first_step, run.last_step)
        self._tried: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = threading.Event()
        self._aborted = threading.Event()
        # Keeps an abort and the start of a process apart: no process begins after the abort.
        self._starting = threading.Lock()
        self._has_warned = False
        self._superseded: SupersededError | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> CheckpointEvaluation:
        if self._run.first_step < self._run.last_step:
            forget_evaluations(self._run.run_folder, self._run.first_step)
        if self._measured_on:
            self._tried = self._measured_before()
            write_snapshots(self._measured_on, self._folder)
            self._folder = RunFolder(self._run.run_folder).snapshots
            self._thread = threading.Thread(
                target=self._work, name="evaluation of checkpoints", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._thread is None:
            return
        if kind is None and self._metric is not None and is_to_end(self._run.run_folder):
            # The workers have ended early, at their newest checkpoint.
            self._last = newest_whole_checkpoint(self._run.run_folder) or self._last
        self._ending.set()
        if kind is None:
            if left := len(self._waiting()) + (self._process is not None):
                logger.info("waiting for the evaluation of %d checkpoints", left)
            # Even with none left: the thread may have taken the last one and not begun its process.
            self._thread.join(FINISH_SECONDS)
            if self._thread.is_alive() and self._metric is not None:
                logger.warning(
                    "the comparison of checkpoints by %s did not end within %.0f s of the training",
                    self._metric,
                    FINISH_SECONDS,
                )
        with self._starting:
            self._aborted.set()
            if self._process is not None:
                self._process.kill()
        # `_ask` waits up to KILL_SECONDS for its killed process.
        self._thread.join(2 * KILL_SECONDS)
        if kind is None:
            self.check()

    def _measured_before(self) -> set[int]:
        """Return the steps measured, and compared, before an interruption of the run."""
        folder = self._run.run_folder
        lines = read_evaluations(folder)
        if self._metric is None:
            steps = {line["step"] for line in lines}
        else:
            steps = compared_steps(lines, self._metric, read_best(folder, str(self._metric)))
        # A resumed run repeats steps, and the best may be of one of them.
        return {step for step in steps if step <= self._run.first_step}

    def _waiting(self) -> list[int]:
        steps = checkpoint_steps(self._run.run_folder)
        return [step for step in steps if step not in self._tried and self._is_measured(step)]

    def _is_measured(self, step: int) -> bool:
        """Tell whether to measure the checkpoint of the state before a step."""
        if step == self._last:
            return step > 0 and self._metric is not None
        every = self._run.config.training.checkpoint_every
        return (
            0 < step < self._last
            and step % (every * self._run.config.evaluation.every_checkpoints) == 0
        )

    def check(self) -> None:
        """Check that the run is still this job's, as far as the thread knows.

        Raises:
            SupersededError: A later attempt has begun, as the thread saw when it wrote figures.
        """
        if self._superseded is not None:
            raise self._superseded

    def _work(self) -> None:
        """Measure the checkpoints in turn until the training has ended: the thread's function."""
        while not self._aborted.is_set():
            # Read before the look at checkpoints, which then cannot miss the last one.
            is_last_look = self._ending.is_set()
            step = None
            try:
                step = next(iter(self._waiting()), None)
                if step is not None:
                    self._tried.add(step)
                    self._measure(step)
            except SupersededError as error:
                self._superseded = error
                return
            except (OSError, ValueError, subprocess.SubprocessError, PipelineError) as error:
                self._warn(step, error)
            if step is None:
                if is_last_look:
                    return
                self._ending.wait(POLL_SECONDS)

    def _measure(self, step: int) -> None:
        """Have a process measure a checkpoint, and pass the figures on."""
        began = time.monotonic()
        # The driver makes and removes it, so that a killed process leaves nothing behind.
        with tempfile.TemporaryDirectory(
            prefix="sentence-pipelines-", ignore_cleanup_errors=True
        ) as folder:
            job: Mapping[str, Any] = {
                "run_folder": str(self._run.run_folder),
                "step": step,
                "tokenizer": str(self._tokenizer),
                "snapshots": str(self._folder),
                "storage": self._run.config.storage.model_dump(),
                "keep": self._metric is not None,
                "folder": folder,
                "driver": os.getpid(),
                "seconds": MEASURE_SECONDS,
            }
            figures: Figures = json.loads(self._ask(json.dumps(job).encode()))
            logger.info("step %d was measured in %.0f s", step, time.monotonic() - began)
            add_evaluations(self._run.run_folder, step, figures)
            if self._metric is not None:
                self._compare(self._metric, step, figures, Path(folder, STATE))
        self._on_figures(step, figures)

    def _compare(self, metric: Metric, step: int, figures: Figures, written: Path) -> None:
        """Keep the best state so far; ask for the end after too many without a gain."""
        folder, patience = self._run.run_folder, self._run.config.training.patience
        value = metric.of(figures)
        if value is None or not math.isfinite(value):
            raise ValueError(f"{metric} is {value}, which is no finite number")
        if keep_if_best(folder, metric, step, value, written):
            logger.info("step %d is the best so far, with %s %.4g", step, metric, value)
            return
        best = read_best(folder, str(metric))
        if best is None or patience is None:
            return
        since = measured_since(read_evaluations(folder), metric, best)
        if since >= patience and not is_to_end(folder):
            logger.info(
                "%s has not improved on %.4g (step %d) in %d evaluations. The training ends at"
                " its next checkpoint (training.patience)",
                metric,
                best.value,
                best.step,
                since,
            )
            ask_to_end(folder)

    def _ask(self, job: bytes) -> bytes:
        """Return a process's answer to a job; the process has ended by then."""
        command = [sys.executable, "-m", "pipelines.evaluation.measure_checkpoint"]
        with (self._folder / "log.txt").open("ab") as log, self._starting:
            if self._aborted.is_set():
                raise subprocess.SubprocessError("the training has ended")
            process = self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                # A keyboard interrupt is for the driver, and the driver ends this process.
                start_new_session=True,
            )
        try:
            answer, _ = process.communicate(job, MEASURE_SECONDS)
        finally:
            process.kill()
            with self._starting:
                self._process = None
            process.wait(KILL_SECONDS)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        return answer

    def _warn(self, step: int | None, error: Exception) -> None:
        """Warn of an unmeasured checkpoint, or of a failed look for checkpoints."""
        if self._aborted.is_set():
            return
        if step is not None and self._is_deleted(step):
            logger.info(
                "step %d was not measured: its checkpoint was deleted before its turn "
                "(training.keep_checkpoints)",
                step,
            )
        elif not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s not measured (%s). Training goes on; see %s",
                "checkpoints were" if step is None else f"step {step} was",
                error,
                self._folder / "log.txt",
            )

    def _is_deleted(self, step: int) -> bool:
        try:
            return not checkpoint_path(self._run.run_folder, step).exists()
        except OSError:
            return False  # `_warn` names the error of the folder itself.
