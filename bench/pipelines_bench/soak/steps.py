"""Trainings in a process of their own, which is looked at meanwhile."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from pipelines.compare.processes import end_session, own_environment, stage_command, started
from pipelines.errors import PipelineError
from pipelines.files import storage
from pipelines.files.run_folder import RunFolder
from pipelines.runs.step_metrics import read_metrics_lines
from pipelines.settings import Config
from pipelines.settings import load as configuration
from pipelines_bench.soak.record import RUNS, STEPS, Record
from pipelines_bench.soak.watching import Watch

logger = logging.getLogger(__name__)

SAMPLE_SECONDS = 1.0
HEAP_SECONDS = 4.0
_DEADLINE_SECONDS = 900.0
_DEADLINE_SECONDS_PER_STEP = 1.0
_LOGGED = 300


def soak_steps(name: str, config: Config, folder: Path) -> Record:
    """Runs the job `train`, looks at its processes once a second, and has none left.

    Args:
        name: Of the case.
        config: With its settings.
        folder: Where what it prints is kept.

    Raises:
        PipelineError: It failed, or did not end in time.
    """
    log = folder / f"{name}.log"
    command = stage_command("train", config, folder / f"{name}.yaml")
    steps = config.training.max_steps
    assert steps is not None, "a case says how many it makes"
    deadline = time.monotonic() + _DEADLINE_SECONDS + _DEADLINE_SECONDS_PER_STEP * steps
    record, run = Record(name, STEPS), RunFolder.of(config)
    with log.open("wb") as output, started(command, output.fileno(), own_environment()) as process:
        try:
            _watch(process, record, run, steps, deadline)
        finally:
            end_session(process.pid)
    if process.returncode:
        raise PipelineError(f"soak: {name} ended with {process.returncode}: {last_words(log)}")
    return record


def soak_runs(config: Config, runs: int, cases: list[str], folder: Path) -> Record:
    """Makes many short trainings one after the other in one session of one process.

    Args:
        config: Of :func:`pipelines_bench.soak.cases.small_settings`.
        runs: How many.
        cases: Which ones, by turns.
        folder: Where the record and what the process prints are kept; temporary files of the
            process lie there too.

    Raises:
        PipelineError: The process failed, or did not end in time.
    """
    settings, log = folder / "runs.yaml", folder / "runs.log"
    storage.write_text(settings, configuration.dump(config))
    path, temporary = folder / "runs.json", folder / "temporary"
    path.unlink(missing_ok=True)
    temporary.mkdir(exist_ok=True)
    module = "pipelines_bench.soak.session"
    arguments = [str(settings), str(runs), ",".join(cases), str(path)]
    command = [sys.executable, "-m", module, *arguments]
    deadline = _DEADLINE_SECONDS * (1 + runs / 10)
    environment = own_environment() | {"TMPDIR": str(temporary)}
    with log.open("wb") as output, started(command, output.fileno(), environment) as process:
        try:
            process.wait(deadline)
        except subprocess.TimeoutExpired:
            raise PipelineError(f"soak: {runs} runs did not end in {deadline:.0f} s") from None
        finally:
            end_session(process.pid)
    if process.returncode:
        raise PipelineError(f"soak: {RUNS}s ended with {process.returncode}: {last_words(log)}")
    return Record(**storage.read_json(path))


def last_words(log: Path) -> str:
    """The end of what a process printed."""
    return log.read_text(encoding="utf-8", errors="replace")[-_LOGGED:].strip()


def _watch(
    process: subprocess.Popen[bytes],
    record: Record,
    run: RunFolder,
    steps: int,
    deadline: float,
) -> None:
    """Adds samples to a record until a training ends, but for those after its last step."""
    watch, began, heap_at = Watch(process.pid), time.monotonic(), 0.0
    while not _ended(process):
        now = time.monotonic()
        if now > deadline:
            raise PipelineError(f"soak: {record.case} did not end in {now - began:.0f} s")
        if with_heap := now >= heap_at:
            heap_at = now + HEAP_SECONDS
        sample = watch.sample(with_heap=with_heap)
        if (step := _last_step(run)) < steps:
            record.add(step, now - began, sample)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(SAMPLE_SECONDS)
        return True
    return False


def _last_step(run: RunFolder) -> int:
    """The newest step of which there is a line."""
    return max((line["step"] for line in read_metrics_lines(run.path)), default=0)
