"""Metrics of the steps on the driver: workers' records become metrics lines and figures.

A worker reports its own part of a step. A step, shared or made by one worker, is complete with the
records of all its granules, from each worker of their replica.
"""

from __future__ import annotations

import json
import logging
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NotRequired, Protocol, runtime_checkable

from pydantic import ConfigDict
from typing_extensions import TypedDict

from pipelines.errors import PipelineError
from pipelines.files import records, storage
from pipelines.files.locations import Location
from pipelines.files.run_folder import RunFolder
from pipelines.files.storage import LineLog
from pipelines.progress import WorkProgress
from pipelines.runs.job_records import read_restarts
from pipelines.runs.run import Restart, Staleness, TrainingOutcome, TrainingRun

logger = logging.getLogger(__name__)


TRAINED = "trained"
"""The key with the trained model and its figures where a run keeps its start."""
_OF_EVALUATION = (
    *("after", "interval", "sets", "measured"),
    *("signs", "overlap", "doubts", TRAINED),
)
_OF_TRAINING = ("training", "model", "weight_change")
OnMetrics = Callable[[dict[str, Any]], None]
"""Called on the driver with each metrics line of a run; see :class:`StepMetrics`."""


class _Step(TypedDict):
    """The keys of a line for a continued log."""

    step: int
    precision: NotRequired[str | None]


class MetricsLine(_Step):
    """The keys read back from every line, among others."""

    loss: float
    seconds: float
    cpu_seconds: NotRequired[float | None]


def read_metrics_lines(run_folder: Location) -> Iterator[dict[str, Any]]:
    """Read the whole metrics lines; none without a file.

    Raises:
        DamagedFileError: A line has another form.
    """
    return _read(run_folder, MetricsLine)


def last_logged_step(run_folder: Location) -> int:
    """Return the step of the last metrics line; 0 without one."""
    return max((line["step"] for line in _read(run_folder, _Step)), default=0)


def is_logged(step: int, last_line: int, log_every: int) -> bool:
    """Return whether the steps before a checkpoint are in a log up to ``last_line``."""
    # Lines come at multiples of `log_every`; the steps after the last multiple have none yet.
    return last_line >= step // log_every * log_every


def _read(run_folder: Location, kind: type) -> Iterator[dict[str, Any]]:
    return records.read_lines(RunFolder(run_folder).step_metrics, kind, torn=True)


class MetricsLog:
    """Writes ``metrics.jsonl`` and shows a progress bar; a context manager on the driver.

    It drops an earlier file's lines of repeated steps.
    """

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self._lines = LineLog(RunFolder(run.run_folder).step_metrics)
        self._keep_lines_to(run.first_step)
        self._warn_of_gap()
        self._logged = run.first_step
        known = list(_read(run.run_folder, _Step))
        self._precision = known[-1].get("precision") if known else None
        self._progress = WorkProgress(
            "training",
            run.last_step,
            run.first_step,
            "step {done}/{total}  {text}",
            "starting the workers",
        )

    def __enter__(self) -> MetricsLog:
        self._progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)
        self._lines.flush()

    def add(self, line: dict[str, Any]) -> None:
        """Take a metrics line; drop later ones, since a run repeats their steps after a loss."""
        if line["step"] <= self._logged:
            self._keep_lines_to(line["step"] - 1)
        self._logged = line["step"]
        self._warn_of_precision(line.get("precision"))
        self._lines.add(json.dumps(line))
        rate = f"{line['examples_per_second']:.1f} examples/s"
        self._progress.show(line["step"], f"loss {line['loss']:.4f}  {rate}")

    def step_done(self, step: int) -> None:
        """Show the number of completed steps."""
        self._progress.move(step)
        if self._run.is_checkpointed(step):
            # A run resumed from this checkpoint does not repeat the lines before it.
            self._lines.flush()

    def checkpoint_saved(self) -> None:
        """Flush the lines before a checkpoint, whose step may be unknown."""
        self._lines.flush()

    def _warn_of_gap(self) -> None:
        """Warn if a killed job's last lines were never written."""
        first, last = self._run.first_step, last_logged_step(self._run.run_folder)
        if not is_logged(first, last, self._run.config.training.log_every):
            logger.warning(
                "metrics.jsonl lacks steps %d to %d: the earlier job was killed before it wrote"
                " their lines",
                last + 1,
                first,
            )

    def _warn_of_precision(self, precision: str | None) -> None:
        """Warn of a change of the precision, a possible effect of ``auto``."""
        if None not in (precision, self._precision) and precision != self._precision:
            logger.warning(
                "the precision changes from %s to %s at this step (training.precision)",
                self._precision,
                precision,
            )
        self._precision = precision or self._precision

    def _keep_lines_to(self, step: int) -> None:
        path = RunFolder(self._run.run_folder).step_metrics

        def is_before(line: str) -> bool:
            found = records.read_line(path, line.encode(), _Step, torn=True)
            return found is not None and found["step"] <= step

        self._lines.keep(is_before)


class _Model(TypedDict, total=False):
    step: int


class _Record(TypedDict, total=False):
    """The key read back from ``metrics.json``, among others."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc] # as pydantic has it

    model: _Model


def update_run_metrics(folder: Location, figures: Mapping[str, Any]) -> None:
    """Update the record of a run with figures by names such as ``training`` and ``after``."""
    storage.write_json(RunFolder(folder).metrics, _read_metrics(folder) | dict(figures))


def model_step(folder: Location) -> int | None:
    """Return the step of the model's state; None if unknown."""
    step: int | None = _read_metrics(folder).get("model", {}).get("step")
    return step


def forget_earlier_model(folder: Location) -> None:
    """Remove the figures of a run's model: they are outdated once the run goes on."""
    _forget(folder, _OF_TRAINING + _OF_EVALUATION)


def forget_evaluation(folder: Location) -> None:
    """Remove the figures that an evaluation of an earlier model has written."""
    _forget(folder, _OF_EVALUATION)


def _forget(folder: Location, names: Sequence[str]) -> None:
    known = _read_metrics(folder)
    if known:
        left = {name: known[name] for name in known if name not in names}
        storage.write_json(RunFolder(folder).metrics, left)
    RunFolder(folder).samples.unlink(missing_ok=True)
    RunFolder(folder).observations.unlink(missing_ok=True)


def training_figures(
    run: TrainingRun, outcome: TrainingOutcome, seconds_before: float
) -> dict[str, Any]:
    """Return the figures of the training from its first step on, also after a resume.

    ``metrics.jsonl`` is complete to the last step. ``seconds_before`` comes from
    :func:`seconds_to`.
    """
    figures: dict[str, Any] = {
        "steps": run.first_step + outcome.steps,
        "examples": run.first_step * run.examples_per_step + outcome.examples,
        "seconds": round(seconds_before + outcome.seconds, 2),
        "examples_per_second": round(outcome.examples_per_second, 2),
        **_figures_of_lines(run, list(read_metrics_lines(run.run_folder))),
    }
    if outcome.precision is not None:
        figures["precision"] = outcome.precision
    if outcome.staleness is not None:
        figures["staleness_mean"] = round(outcome.staleness.mean, 3)
        figures["staleness_max"] = outcome.staleness.most
    if restarts := read_restarts(run.run_folder):
        figures["restarts"] = [asdict(restart) for restart in restarts]
    return figures


def logged_figures(run: TrainingRun) -> dict[str, Any] | None:
    """Return the figures of a training from its log, if the driver died after the last step.

    None if the record already has them, or without a log.
    """
    lines = list(read_metrics_lines(run.run_folder))
    if not lines or "training" in _read_metrics(run.run_folder):
        return None
    examples = run.last_step * run.examples_per_step
    seconds = seconds_to(run.run_folder, run.last_step)
    return {
        "steps": run.last_step,
        "examples": examples,
        "seconds": round(seconds, 2),
        "examples_per_second": round(examples / max(seconds, 1e-9), 2),
        **_figures_of_lines(run, lines),
    }


def _figures_of_lines(run: TrainingRun, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return losses, objectives, and CPU time if every line has it.

    Losses are means over the steps of a line, as on the console; the last step's loss would
    describe a single batch.
    """
    objectives = (config.objective.name for config in run.config.by_source())
    figures: dict[str, Any] = {
        "final_loss": float(lines[-1]["loss"]),
        "largest_loss": max(float(line["loss"]) for line in lines),
        "objectives": list(dict.fromkeys(objectives)),
    }
    if all("cpu_seconds" in line for line in lines):
        figures["cpu_seconds"] = round(math.fsum(line["cpu_seconds"] for line in lines), 2)
    return figures


def seconds_to(folder: Location, step: int) -> float:
    """Return the seconds of the steps up to one, over all tries, by ``metrics.jsonl``.

    A try counts its seconds from its own first step.
    """
    total = last = 0.0
    for line in read_metrics_lines(folder):
        if line["step"] > step:
            break
        if line["seconds"] < last:
            total += last
        last = line["seconds"]
    return total + last


def _read_metrics(folder: Location) -> dict[str, Any]:
    return dict(records.read_if_there(RunFolder(folder).metrics, _Record) or {})


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One worker's part of one step. Unmeasured figures are None.

    Attributes:
        loss: Mean over the worker's granules, or over the whole of a shared step.
        gradient_norm: Before clipping, of the worker's gradient for the update.
        padded_tokens: Tokens with padding.
        data_seconds: Seconds of waiting for these granules.
        seconds: From the beginning of the worker's first step to the end of this one.
        staleness: Updates between the computation of the gradient and its use; None if there are
            none by construction.
        rank: The worker's; None for a record of all workers.
        compute_seconds: Seconds of arithmetic and communication.
        communication_seconds: The part of these for transfers and waiting for others; None if
            inseparable from arithmetic.
        step_seconds: Seconds from the end of the worker's previous step to the end of this one.
        cpu_seconds: CPU time in ``step_seconds`` of all threads of the worker's process.
        precision: Of the worker's matrix multiplications.
        source: Number of the step's source.
    """

    step: int
    epoch: int
    loss: float
    learning_rate: float
    granules: int
    tokens: int
    padded_tokens: int
    data_seconds: float
    seconds: float
    gradient_norm: float | None = None
    staleness: int | None = None
    rank: int | None = None
    compute_seconds: float | None = None
    communication_seconds: float | None = None
    step_seconds: float = 0.0
    cpu_seconds: float | None = None
    precision: str | None = None
    source: int = 0


@runtime_checkable
class StepListener(Protocol):
    """A listener of metrics lines and of single steps."""

    def step_done(self, step: int) -> None:
        """Take the number of completed steps."""
        ...

    def checkpoint_saved(self) -> None:
        """Take note of a whole checkpoint; its steps were reported before."""
        ...


class StepMetrics:
    """Collects the records of a run; not thread-safe, its caller is.

    A metrics line covers the ``log_every`` steps before it; lines come in the order of the steps.
    ``on_line`` gets each line, and each step too if it is a :class:`StepListener`.
    """

    def __init__(self, run: TrainingRun, workers: int, on_line: OnMetrics) -> None:
        self._run = run
        self._workers = workers
        # All workers of a replica report the granules that they make together.
        self._reports = run.config.training.placement.per_replica
        self._on_line = on_line
        self._on_step = on_line if isinstance(on_line, StepListener) else None
        self._open: dict[int, list[StepRecord]] = {}
        self._next = run.first_step
        self._window: list[list[StepRecord]] = []
        self._window_began = 0.0
        # Compact arrays, since a run may have millions of steps.
        self._losses = array("d")
        self._ages = array("i")
        self._ages_until = array("q")
        self._seconds = 0.0
        self._settled: tuple[float, int] | None = None
        self._began: float | None = None
        self._restarts: list[Restart] = []
        self._precision: str | None = None

    @property
    def next_step(self) -> int:
        """The first incomplete step."""
        return self._next

    def checkpoint_saved(self) -> None:
        """Pass on a worker's saved checkpoint; its steps were reported before."""
        if self._on_step is not None:
            self._on_step.checkpoint_saved()

    def begin(self, now: float) -> float:
        """Return when the first worker was ready, on the driver's clock; the first call sets it."""
        if self._began is None:
            self._began = now
        return self._began

    def go_back(self, restart: Restart) -> None:
        """Forget steps before :attr:`next_step`, since the remaining workers repeat them."""
        self._restarts.append(restart)
        made = restart.step - self._run.first_step
        del self._losses[made:], self._ages_until[made:]
        del self._ages[self._ages_until[-1] if made else 0 :]
        self._open, self._window = {}, []
        self._next, self._workers, self._precision = restart.step, restart.workers, None
        if self._settled is not None and self._settled[1] > made:
            self._settled = None

    def add(self, record: StepRecord) -> None:
        """Take a worker's part, and pass on completed lines.

        Raises:
            PipelineError: Workers compute in different precisions.
        """
        self._precision = self._precision or record.precision
        if record.precision not in (None, self._precision):
            raise PipelineError(
                f"rank {record.rank} computes in {record.precision} and others in"
                f" {self._precision}, because each worker resolves precision auto alone in this"
                " mode. Set training.precision."
            )
        records = self._open.setdefault(record.step, [])
        records.append(record)
        while self._is_complete(self._next):
            self._close(self._open.pop(self._next))

    def outcome(self) -> TrainingOutcome:
        """Return the sums of the complete steps; pass on a last, partial line."""
        if self._window:
            self._log()
        steps, examples = len(self._losses), self._run.examples_per_step
        since, before = self._settled or (0.0, 0)
        if steps <= before:
            since, before = 0.0, 0
        return TrainingOutcome(
            steps=steps,
            examples=steps * examples,
            seconds=self._seconds,
            examples_per_second=(steps - before) * examples / max(self._seconds - since, 1e-9),
            losses=tuple(self._losses),
            staleness=_staleness(self._ages),
            restarts=tuple(self._restarts),
            precision=self._precision,
        )

    def _is_complete(self, step: int) -> bool:
        granules = sum(record.granules for record in self._open.get(step, ()))
        return granules == self._run.plan.granules_per_step * self._reports

    def _close(self, records: list[StepRecord]) -> None:
        """Count a complete step, the next in order."""
        weight = sum(record.granules for record in records)
        self._losses.append(sum(record.loss * record.granules for record in records) / weight)
        self._ages.extend(record.staleness for record in records if record.staleness is not None)
        self._ages_until.append(len(self._ages))
        self._seconds = max(self._seconds, *(record.seconds for record in records))
        self._window.append(records)
        self._next += 1
        if self._next % self._run.config.training.log_every == 0 or (
            self._next == self._run.last_step
        ):
            self._log()
        if self._on_step is not None:
            self._on_step.step_done(self._next)

    def _log(self) -> None:
        records = [record for step in self._window for record in step]
        steps = len(self._window)
        # Asynchronous workers may finish steps out of order, and several lines close at once:
        # the clock then shows no time between them, so the workers' own seconds are the bound.
        spent = sum(record.step_seconds for record in records) / self._workers
        seconds = max(self._seconds - self._window_began, spent, 1e-9)
        # All workers of a replica report the same tokens, so rates divide by their number.
        tokens = sum(record.tokens for record in records)
        ages = [record.staleness for record in records if record.staleness is not None]
        staleness, cpu_seconds = _staleness(ages), _total(records, "cpu_seconds")
        workers = self._workers_of(records)
        line = {
            "step": self._next,
            "epoch": records[-1].epoch,
            "loss": sum(self._losses[-steps:]) / steps,
            **self._of_sources(self._losses[-steps:]),
            "learning_rate": records[-1].learning_rate,
            **_gradient_norm(records),
            "examples_per_second": steps * self._run.examples_per_step / seconds,
            "tokens_per_second": tokens / self._reports / seconds,
            "padding": 1 - tokens / max(sum(record.padded_tokens for record in records), 1),
            "data_wait": sum(record.data_seconds for record in records) / seconds / self._workers,
            "seconds": self._seconds,
            **({} if cpu_seconds is None else {"cpu_seconds": round(cpu_seconds, 3)}),
            "staleness_mean": staleness.mean if staleness else 0.0,
            "staleness_max": staleness.most if staleness else 0,
            **({"precision": self._precision} if self._precision else {}),
            **_shares(workers),
            "workers": workers,
        }
        if self._settled is None:
            # Rates leave out the first line, since it includes the framework's start-up.
            self._settled = (self._seconds, len(self._losses))
        self._window_began = self._seconds
        self._window = []
        self._on_line(line)

    def _of_sources(self, losses: Sequence[float]) -> dict[str, Any]:
        """Return loss and number of steps of each of several sources."""
        by_source: dict[str, list[float]] = {}
        names = [source.name for source in self._run.config.corpus.sources]
        for of_step, loss in zip(self._window, losses, strict=True) if names else ():
            by_source.setdefault(names[of_step[0].source], []).append(loss)
        figures = {
            name: {"loss": sum(of_source) / len(of_source), "steps": len(of_source)}
            for name, of_source in sorted(by_source.items())
        }
        return {"sources": figures} if figures else {}

    def _workers_of(self, records: Sequence[StepRecord]) -> list[dict[str, Any]]:
        """Return the work and the seconds of each worker; empty if a record lacks them."""
        if any(record.rank is None or record.compute_seconds is None for record in records):
            return []
        ranks = sorted({record.rank for record in records if record.rank is not None})
        examples = self._run.manifest.granule
        by_rank = {rank: [record for record in records if record.rank == rank] for rank in ranks}
        return [
            _worker_line(rank, of_rank, examples, self._reports)
            for rank, of_rank in by_rank.items()
        ]


def _worker_line(
    rank: int, records: Sequence[StepRecord], examples: int, sharing: int
) -> dict[str, Any]:
    """Return the work of one worker, its seconds, and their parts.

    ``examples`` is the size of a granule; its ``sharing`` workers get equal parts of it.
    """
    seconds, data = _total(records, "step_seconds") or 0.0, _total(records, "data_seconds") or 0.0
    compute = _total(records, "compute_seconds") or 0.0
    communication = _total(records, "communication_seconds")
    parts = {"data": data}
    if communication is None:
        parts["arithmetic_and_communication"] = compute
    else:
        parts["arithmetic"] = max(0.0, compute - communication)
        parts["communication"] = communication
    parts["other"] = max(0.0, seconds - data - compute)
    return {
        "rank": rank,
        "examples": examples * sum(record.granules for record in records) // sharing,
        "tokens": sum(record.tokens for record in records) // sharing,
        "seconds": round(seconds, 6),
        **{name: round(part, 6) for name, part in parts.items()},
    }


def _total(records: Sequence[StepRecord], name: str) -> float | None:
    """Return the sum of a figure; None if a record lacks it."""
    figures = [getattr(record, name) for record in records]
    return None if None in figures else math.fsum(figures)


def _shares(workers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return arithmetic and communication as shares of all workers' time, if known."""
    seconds = max(math.fsum(worker["seconds"] for worker in workers), 1e-9)
    return {
        part: math.fsum(worker[part] for worker in workers) / seconds
        for part in ("arithmetic", "communication")
        if workers and all(part in worker for worker in workers)
    }


def _gradient_norm(records: Sequence[StepRecord]) -> dict[str, float]:
    """Return the mean of the finite norms, if any."""
    norms = [record.gradient_norm for record in records if record.gradient_norm is not None]
    # An infinite norm needs no figure: the next state is refused with the array's name.
    finite = [norm for norm in norms if math.isfinite(norm)]
    return {"gradient_norm": math.fsum(finite) / len(finite)} if finite else {}


def _staleness(ages: Sequence[int]) -> Staleness | None:
    return Staleness(mean=sum(ages) / len(ages), most=max(ages)) if ages else None
