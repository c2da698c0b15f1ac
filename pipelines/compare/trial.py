"""One training of a strategy in separate processes, and its reading."""

from __future__ import annotations

import logging
import math
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.compare.processes import (
    Usage,
    measure_command,
    own_environment,
    stage_command,
)
from pipelines.errors import PipelineError
from pipelines.files import storage
from pipelines.files.run_folder import RunFolder
from pipelines.runs.step_metrics import read_metrics_lines
from pipelines.settings import Config
from pipelines.training.collectives.interfaces import SOCKETS_ONLY

logger = logging.getLogger(__name__)

DEADLINE_SECONDS = 1800.0
WARM_UP = 0.2
"""Share of the steps before the measured ones: frameworks compile, caches fill."""
WARM_UP_STEPS = 16
"""The minimum, up to half of the steps: oneDNN compiles kernels for each new number of rows in
TensorFlow, over a few dozen steps."""

LOOPBACK = "lo"

Command = Callable[[Config, Path], list[str]]
"""Returns the command line of a training; its settings are written to the file."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The figures of a trial.

    Attributes:
        strategy: Its name.
        workers: Number of training workers.
        round: Of the comparison, from 0.
        seconds: Of the whole command, from start to end.
        cpu_seconds: Of all its processes.
        own_bytes: Peak memory of all its processes, see :class:`pipelines.compare.processes.Usage`.
        examples_per_second: After the warm-up, like all further rates.
        tokens_per_second: Without padding.
        examples_per_cpu_second: By the CPU time of the workers; None if unknown.
        communication: Share of the workers' time spent on transfers or on waiting for others; None
            if the engine cannot separate it from arithmetic.
        bytes_per_step: Through the loopback interface, so of everything on this machine; None with
            too few steps, without such an interface, or with executors elsewhere.
        step_seconds: The seconds of each worker's steps, in order; empty if the engine does not
            report them.
        exchange: Their seconds of transfers or of waiting for others; empty if the engine cannot
            separate them from arithmetic.
        curve: Examples, seconds since the first step began, and loss, step by step.
        figures: Of the evaluation, by set and metric; empty without one.
    """

    strategy: str
    workers: int
    round: int
    seconds: float
    cpu_seconds: float
    own_bytes: int
    examples_per_second: float
    tokens_per_second: float
    examples_per_cpu_second: float | None = None
    communication: float | None = None
    bytes_per_step: float | None = None
    step_seconds: tuple[tuple[float, ...], ...] = ()
    exchange: tuple[tuple[float, ...], ...] = ()
    curve: tuple[tuple[int, float, float], ...] = ()
    figures: Mapping[str, Any] | None = None

    @property
    def key(self) -> tuple[str, int, int]:
        """Return the unique key of the trial in its comparison."""
        return (self.strategy, self.workers, self.round)

    @property
    def computing(self) -> tuple[tuple[float, ...], ...]:
        """Return the seconds of each worker's steps without the exchange; empty if unknown."""
        return tuple(
            tuple(seconds - exchanged for seconds, exchanged in zip(*steps, strict=True))
            for steps in zip(self.step_seconds, self.exchange, strict=False)
        )


def reading_of(values: Mapping[str, Any]) -> Reading:
    """Return a reading from its JSON."""
    lists = ("step_seconds", "exchange", "curve")
    return Reading(**{**values, **{name: tuple(map(tuple, values[name])) for name in lists}})


class Wire:
    """Counts the bytes of the loopback interface during the steps of a run."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._seen: list[tuple[int, int]] = []

    def look(self) -> None:
        """Note the last step and the bytes so far, if there is another step."""
        import psutil

        step = _last_step(self._run)
        if step and (not self._seen or step != self._seen[-1][0]):
            loopback = psutil.net_io_counters(pernic=True).get(LOOPBACK)
            if loopback is not None:
                self._seen.append((step, loopback.bytes_sent))

    def bytes_per_step(self, first: int) -> float | None:
        """Return the mean bytes per step, from a step to the last; None if unknown."""
        settled = [(step, sent) for step, sent in self._seen if step >= first]
        if len(settled) < 2:
            return None
        (before, sent), (after, sent_then) = settled[0], settled[-1]
        return (sent_then - sent) / (after - before) or None


def _last_step(run: RunFolder) -> int:
    if not run.step_metrics.is_file():
        return 0
    return max((line["step"] for line in read_metrics_lines(run.path)), default=0)


def run_trial(
    config: Config,
    strategy: str,
    round_number: int,
    folder: Path,
    *,
    command: Command,
    step_examples: int,
    evaluated: bool,
) -> Reading:
    """Train in a folder; the caller removes it.

    The strategy's configuration has prepared lanes and writes a line of metrics for each step.

    Raises:
        PipelineError: The training failed, or did not end in time.
    """
    placed = config.run.model_copy(update={"folder": str(folder / "run"), "overwrite": True})
    config = config.model_copy(update={"run": placed})
    run = RunFolder.of(config)
    wire = Wire(run)
    # For leftover files of libraries. Not in the trial's folder, since Unix sockets among them need
    # short paths.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        usage = measure_command(
            command(config, folder / "job.yaml"),
            # Predictions need the bytes that workers on several hosts exchange.
            environment=own_environment() | {"TMPDIR": temporary, SOCKETS_ONLY: "1"},
            deadline_seconds=DEADLINE_SECONDS,
            on_look=wire.look,
            log=folder / "train.log",
        )
    lines = [*read_metrics_lines(run.path)]
    if len(lines) != config.training.max_steps:
        raise PipelineError(f"it made {len(lines)} steps, not {config.training.max_steps}")
    # An unset master is local, on this machine.
    is_local = config.spark.conf.get("master", "local").startswith("local")
    return read_trial(
        lines,
        usage,
        step_examples,
        strategy=strategy,
        workers=config.training.workers,
        round=round_number,
        bytes_per_step=wire.bytes_per_step(settled_step(len(lines))) if is_local else None,
        figures=_evaluated(config, folder) if evaluated else None,
    )


def _evaluated(config: Config, folder: Path) -> Mapping[str, Any] | None:
    """Evaluate the model; after a failure warn and return None, since the rates stay valid."""
    try:
        measure_command(
            stage_command("evaluate", config, folder / "evaluate.yaml"),
            environment=own_environment(),
            deadline_seconds=DEADLINE_SECONDS,
            log=folder / "evaluate.log",
        )
        metrics: dict[str, Any] = storage.read_json(RunFolder.of(config).metrics)
    except PipelineError as error:
        logger.warning("strategies: the evaluation of its model failed: %s", error)
        return None
    return {name: metrics[name] for name in ("before", "after", "interval") if name in metrics}


def settled_step(steps: int) -> int:
    """Return the last step of the warm-up."""
    return max(1, min(max(WARM_UP_STEPS, round(WARM_UP * steps)), steps // 2))


def settled_steps(steps: int) -> int:
    """Return the number of measured steps."""
    return steps - settled_step(steps)


def read_trial(
    lines: Sequence[Mapping[str, Any]], usage: Usage, step_examples: int, **fields: Any
) -> Reading:
    """Return the reading of a run from ``metrics.jsonl``, with a line for each step.

    `usage` covers its processes; `fields` are further fields of the reading.
    """
    settled = lines[settled_step(len(lines)) :]
    before = lines[settled_step(len(lines)) - 1]["seconds"]
    seconds = max(lines[-1]["seconds"] - before, 1e-9)
    known = [line["cpu_seconds"] for line in settled if "cpu_seconds" in line]
    cpu = math.fsum(known) if len(known) == len(settled) else 0.0
    workers = [worker for line in settled for worker in line["workers"]]
    rate = step_examples * len(settled) / seconds
    per_example = [line["tokens_per_second"] / line["examples_per_second"] for line in settled]
    return Reading(
        seconds=usage.seconds,
        cpu_seconds=usage.cpu_seconds,
        own_bytes=usage.own_bytes,
        examples_per_second=rate,
        # All lines have the same number of examples.
        tokens_per_second=statistics.fmean(per_example) * rate,
        examples_per_cpu_second=step_examples * len(settled) / cpu if cpu else None,
        communication=_share(workers),
        step_seconds=_by_rank(workers, "seconds"),
        exchange=_by_rank(workers, "communication"),
        curve=tuple(
            (step_examples * line["step"], line["seconds"], line["loss"]) for line in lines
        ),
        **fields,
    )


def _share(workers: Sequence[Mapping[str, Any]]) -> float | None:
    if not workers or not all("communication" in worker for worker in workers):
        return None
    seconds = math.fsum(worker["seconds"] for worker in workers)
    return math.fsum(worker["communication"] for worker in workers) / max(seconds, 1e-9)


def _by_rank(workers: Sequence[Mapping[str, Any]], part: str) -> tuple[tuple[float, ...], ...]:
    """Return the seconds of a part of each worker's steps; empty if a value is missing."""
    if not all(part in worker for worker in workers):
        return ()
    ranks = sorted({worker["rank"] for worker in workers})
    return tuple(
        tuple(worker[part] for worker in workers if worker["rank"] == rank) for rank in ranks
    )
