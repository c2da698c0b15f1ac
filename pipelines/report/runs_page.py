"""The page that shows several runs beside one another: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.report.comparison import Comparison
from pipelines.report.differences import Row, differences, setting_differences
from pipelines.report.history import (
    KEPT,
    WallTime,
    moment,
    short_duration,
    total_seconds,
    wall_times,
)
from pipelines.report.links import Link, link
from pipelines.report.page_parts import duration, render, whole
from pipelines.report.recorded_runs import RecordedRun, read_runs
from pipelines.report.run_charts import TimeSpent, time_spent
from pipelines.report.runs_charts import RunKey, comparison_charts, run_keys
from pipelines.report.series import is_number
from pipelines.report.tables import NOT_MEASURED
from pipelines.report.timing import PARTS

TEMPLATE = "runs.html"


@dataclass(frozen=True)
class RunHead:
    """A run at the head of a column.

    Attributes:
        name: For people.
        key: How its curves look.
        report: Its own report, if there is one.
    """

    name: str
    key: RunKey
    report: Link | None


@dataclass(frozen=True)
class FigureLine:
    """A figure of one run; of another run it may have been measured on something else.

    Attributes:
        run: The number of the run.
        figure: Before and after its training.
        basis: On how much it was measured, where that is not the same for all runs.
    """

    run: int
    figure: Comparison
    basis: str


@dataclass(frozen=True)
class FigureGroup:
    """A figure of all runs that have it.

    Attributes:
        evaluation: Where it comes from.
        metric: Its name, for people.
        basis: On how much it was measured, where that is the same for all.
        better: Where a better model has it.
        is_of_other_data: Whether runs are known to have measured it on different data.
        lines: A line for each run that has it.
    """

    evaluation: str
    metric: str
    basis: str
    better: Literal["higher", "lower"] | None
    is_of_other_data: bool
    lines: tuple[FigureLine, ...]


def write_comparison(folders: Sequence[Location], target: Location) -> Location:
    """Writes a page that compares runs; returns its path.

    Args:
        folders: Of the runs; see :func:`pipelines.report.recorded_runs.check_runs`.
        target: The file.
    """
    runs = read_runs(folders)
    times = [time_spent(run.lines) for run in runs]
    page = render(
        TEMPLATE,
        {
            "name": f"{len(runs)} runs compared",
            "kind": "comparison of runs",
            "sentence": "Each against its own start, and their trainings over each other",
            "scores": [],
            "tiles": {},
            "heads": _heads(runs, target),
            "overview": _overview(runs),
            "figures": figure_groups(runs),
            "charts": comparison_charts(runs),
            "settings": setting_differences([run.settings for run in runs]),
            "walls": _walls(runs),
            "times": times,
            "parts": _parts(times),
            "environment": differences([run.environment for run in runs]),
        },
    )
    storage.write_text(target, page)
    return target


def figure_groups(runs: Sequence[RecordedRun]) -> list[FigureGroup]:
    """The figures of all runs, evaluation by evaluation, as the first run that has them has it."""
    found: dict[str, dict[str, list[tuple[int, Comparison]]]] = {}
    for number, run in enumerate(runs):
        for figure in run.comparisons:
            metrics = found.setdefault(figure.evaluation, {})
            metrics.setdefault(figure.metric, []).append((number, figure))
    return [_group(runs, figures) for metrics in found.values() for figures in metrics.values()]


def _group(runs: Sequence[RecordedRun], figures: Sequence[tuple[int, Comparison]]) -> FigureGroup:
    _, first = figures[0]
    digests = {runs[number].sets.get(first.evaluation) for number, _ in figures} - {None}
    is_alike = all(figure.basis == first.basis for _, figure in figures)
    lines = [
        FigureLine(number, figure, "" if is_alike else figure.basis) for number, figure in figures
    ]
    return FigureGroup(
        evaluation=first.evaluation,
        metric=first.metric,
        basis=first.basis if is_alike else "",
        better=first.better,
        is_of_other_data=len(digests) > 1,
        lines=tuple(lines),
    )


def _heads(runs: Sequence[RecordedRun], target: Location) -> list[RunHead]:
    return [
        RunHead(
            run.name,
            key,
            link(run.name, run.folder.report, target) if run.folder.report.is_file() else None,
        )
        for run, key in zip(runs, run_keys(len(runs)), strict=True)
    ]


def _overview(runs: Sequence[RecordedRun]) -> list[Row]:
    """What each run is; a line that says nothing of any run is left out."""
    told = [_told(run) for run in runs]
    rows = [Row(key, tuple(one[key] or NOT_MEASURED for one in told)) for key in told[0]]
    return [row for row in rows if set(row.values) != {NOT_MEASURED}]


def _told(run: RecordedRun) -> dict[str, str]:
    jobs = run.jobs.jobs
    last = run.lines[-1]["step"] if run.lines else 0
    wall = total_seconds(wall_times(run.jobs))
    engine, mode, workers = (
        run.settings.get(f"training.{key}", "") for key in ("engine", "mode", "workers")
    )
    return {
        "State": "finished" if run.has_finished else f"not finished, step {last:,}",
        "Against its start": _word(run),
        "Trained by": f"{engine} ({mode}), {workers} workers" if engine else "",
        "Began": moment(jobs[0].began) if jobs else "",
        "Host": ", ".join(dict.fromkeys(job.host for job in jobs)),
        "Commit": ", ".join(dict.fromkeys(job.commit for job in jobs if job.commit)),
        "Steps": _number(run.training, "steps", whole),
        "Examples": _number(run.training, "examples", whole),
        "Final loss": _number(run.training, "final_loss", lambda value: f"{value:.4f}"),
        "Training time": _number(run.training, "seconds", duration),
        "All stages": short_duration(wall) if wall else "",
        "Examples/s": _number(run.training, "examples_per_second", whole),
    }


def _word(run: RecordedRun) -> str:
    if run.verdict is None:
        return ""
    notes = {
        "held-out pairs": run.verdict.is_proxy,
        "doubted, see its report": run.verdict.is_doubted,
    }
    told = ", ".join(note for note, holds in notes.items() if holds)
    return f"{run.verdict.word} ({told})" if told else run.verdict.word


def _number(figures: Mapping[str, Any], key: str, form: Callable[[float], str]) -> str:
    return form(figures[key]) if is_number(figures.get(key)) else ""


def _walls(runs: Sequence[RecordedRun]) -> list[Row]:
    """What each stage of each run took by the clock, and all of them."""
    of_runs = [{time.name: time for time in wall_times(run.jobs)} for run in runs]
    names = dict.fromkeys(name for times in of_runs for name in times)
    rows = [Row(name, tuple(_took(times.get(name)) for times in of_runs)) for name in names]
    wholes = [total_seconds(list(times.values())) for times in of_runs]
    totals = tuple(short_duration(one) if one else NOT_MEASURED for one in wholes)
    return [*rows, Row("all", totals)] if rows else []


def _took(time: WallTime | None) -> str:
    if time is None:
        return NOT_MEASURED
    if time.is_kept:
        return KEPT
    took = short_duration(time.seconds)
    return f"{took} ({time.note})" if time.note else took


def _parts(times: Sequence[TimeSpent | None]) -> dict[str, str]:
    """The parts of workers' time that any run has, in their order."""
    known = {part for time in times if time is not None for part in time.parts}
    return {part: name for part, name in PARTS.items() if part in known}
