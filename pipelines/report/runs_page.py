"""The page that compares several runs: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from pipelines.errors import InputError
from pipelines.evaluation.base import figure_named
from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.files.run_folder import RunFolder
from pipelines.report.comparison import (
    Comparison,
    Link,
    compare,
    is_number,
    link,
    read_lines,
    shown,
    smoothed,
    thinned,
)
from pipelines.report.page_parts import (
    Chart,
    duration,
    read_if_there,
    read_record,
    render,
    short_duration,
    whole,
)
from pipelines.report.run_charts import (
    FEWEST_POINTS,
    FEWEST_SMOOTHED,
    LOGGED,
    PARTS,
    TimeSpent,
    figures_by_step,
    time_spent,
)
from pipelines.report.run_page import KEPT, WallTime, moment, total_seconds, wall_times
from pipelines.report.svg_charts import RUNS, STEP, VARIABLES, Curve, chart
from pipelines.report.verdict import NOT_MEASURED, Verdict, verdict
from pipelines.runs.job_records import JobsRecord, read_jobs
from pipelines.settings.load import read_tree

KEY = "RUN"
MOST_RUNS = 12
"""With more, the curves of one chart would look alike."""
_LONGEST_NAME = 29
_OF_THE_FOLDER = ("run.folder", "run.overwrite", "training.resume")
"""Place and kind of start do not describe a run."""
_MAX_POINTS = 400
_SMOOTHED_SHARE = 0.02
_WIDE, _NARROW, _USUAL = (10.0, 3.2), (5.2, 3.0), (5.2, 2.5)
_DASH = (3.0, 1.5)
_UNITS = {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
_FEWEST_OF_UNIT = 5
"""With fewer of a unit of time, the axis takes the next smaller one."""
_SHARE = "% of the steps"
_MUCH_LONGER = 4


@dataclass(frozen=True)
class RecordedRun:
    """A run as its folder records it.

    Attributes:
        name: From its folder; see :func:`run_names`.
        settings: By dotted keys, without secrets.
        verdict: On its model, against its start; None if unknown.
        sets: Digests of its evaluation sets, by name.
        training: The figures of the training itself; empty before its end.
    """

    name: str
    folder: RunFolder
    settings: Mapping[str, Any]
    environment: Mapping[str, str]
    lines: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]
    comparisons: Sequence[Comparison]
    verdict: Verdict | None
    sets: Mapping[str, str]
    training: Mapping[str, Any]
    jobs: JobsRecord

    @property
    def has_finished(self) -> bool:
        """Whether it has ended, and left a model."""
        return bool(self.training) and self.folder.has_model


def check_run(folder: Location) -> None:
    """Refuse a folder without a run.

    Raises:
        InputError: The folder is missing, or holds no run.
    """
    if not folder.is_dir():
        raise InputError(KEY, f"there is no folder {folder}", "Name the folder of a run")
    if not all(mark.is_file() for mark in RunFolder(folder).marks):
        raise InputError(
            KEY,
            f"{folder} holds no run",
            "Name the folder of a training, with its config.yaml and environment.json",
        )


def check_runs(folders: Sequence[Location]) -> None:
    """Refuse folders for a comparison.

    Raises:
        InputError: One holds no run, one is named twice, or they are too many.
    """
    if len(folders) > MOST_RUNS:
        raise InputError(
            KEY,
            f"one chart cannot show {len(folders)} runs",
            f"Name at most {MOST_RUNS}",
        )
    seen = set()
    for folder in folders:
        check_run(folder)
        place = folder.resolve()
        if place in seen:
            raise InputError(KEY, f"{folder} is named twice", "Name each run once")
        seen.add(place)


def read_runs(folders: Sequence[Location]) -> list[RecordedRun]:
    """Read runs, in the given order."""
    names = run_names([str(folder.absolute()) for folder in folders])
    return [_read(folder, name) for folder, name in zip(folders, names, strict=True)]


def _read(folder: Location, name: str) -> RecordedRun:
    run = RunFolder(folder)
    figures: Mapping[str, Any] = read_record(run.metrics)
    return RecordedRun(
        name=name,
        folder=run,
        settings=dict(_flat(read_if_there(run.config, partial(read_tree, recorded=True)) or {})),
        environment=read_record(run.environment),
        lines=read_if_there(run.step_metrics, read_lines) or [],
        evaluations=read_if_there(run.evaluations, read_lines) or [],
        comparisons=compare(figures),
        verdict=verdict(figures),
        sets=figures.get("measured", {}).get("sets", {}),
        training=figures.get("training", {}),
        jobs=read_jobs(folder),
    )


def run_names(paths: Sequence[str]) -> list[str]:
    """Return the last parts of distinct paths, as many as make all differ; long ones shortened."""
    parts = [path.rstrip("/").split("/") for path in paths]
    names = list(paths)
    for count in range(1, max(map(len, parts))):
        tails = ["/".join(path[-count:]) for path in parts]
        if len(set(tails)) == len(tails):
            names = tails
            break
    # Shortened names may coincide, and then the long ones stay.
    short = [_shortened(shown(name)) for name in names]
    return short if len(set(short)) == len(short) else names


def _shortened(name: str) -> str:
    """Leave out the middle of a long name: people number runs at the end."""
    if len(name) <= _LONGEST_NAME:
        return name
    half = (_LONGEST_NAME - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


class Row(NamedTuple):
    """A line of a table with a column for each run, with values for people.

    ``is_marked`` marks differences from the first run's value.
    """

    key: str
    values: tuple[str, ...]
    is_marked: bool = False


def differences(runs: Sequence[Mapping[str, Any]], without: Sequence[str] = ()) -> list[Row]:
    """Return the different and missing values between runs, in the first run's order."""
    rows = (
        Row(
            key,
            tuple(_as_in_settings(run[key]) if key in run else NOT_MEASURED for run in runs),
            True,
        )
        for key in dict.fromkeys(key for run in runs for key in run)
        if key not in without
    )
    return [row for row in rows if len(set(row.values)) > 1]


def _as_in_settings(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, list | tuple):
        return shown(f"[{', '.join(map(_as_in_settings, value))}]")
    return shown(f"{value:g}" if isinstance(value, float) else str(value))


class RunKey(NamedTuple):
    """A run's colour and line: dashed if another run has the same colour."""

    colour: str
    is_dashed: bool

    @property
    def variable(self) -> str:
        """The colour's CSS variable."""
        return VARIABLES[self.colour]


class Points(NamedTuple):
    """The points of a curve, if a run has any."""

    places: Sequence[float] = ()
    values: Sequence[float] = ()


def run_keys(count: int) -> list[RunKey]:
    """Return the keys of so many runs, at most two for each colour."""
    return [RunKey(RUNS[number % len(RUNS)], number >= len(RUNS)) for number in range(count)]


def comparison_charts(runs: Sequence[RecordedRun]) -> list[Chart]:
    """Draw loss over steps and over time, rates, and the first figure of each evaluation.

    If a run is many times as long as another, all but the first two are over the share of a run's
    steps: over the steps, the short one would be a vertical line.
    """
    names = [run.name for run in runs]
    lines = [thinned(run.lines, _MAX_POINTS) if run.lines else [] for run in runs]
    losses = [_loss(of_run) for of_run in lines]
    charts = [_chart("Loss", names, losses, from_zero=False, wide=True), _time_chart(runs)]
    lasts = [run.lines[-1]["step"] for run in runs if run.lines]
    is_long = bool(lasts) and max(lasts) > _MUCH_LONGER * min(lasts)
    axis = _SHARE if is_long else STEP

    def placed(points: Sequence[Points]) -> list[Points]:
        if not is_long:
            return list(points)
        return [_by_share(run, of_run) for run, of_run in zip(runs, points, strict=True)]

    if is_long:
        title = "Loss by share of the steps"
        charts.append(_chart(title, names, placed(losses), from_zero=False, axis=axis))
    charts += [
        _chart(title, names, placed([_logged(of_run, key) for of_run in lines]), axis=axis)
        for title, key in LOGGED.items()
    ]
    charts += [
        _chart(title, names, placed(points), from_zero=False, dots=True, axis=axis)
        for title, points in _measured(runs).items()
    ]
    return [drawn for drawn in charts if drawn is not None]


def _by_share(run: RecordedRun, points: Points) -> Points:
    """Return the points at per cent of the run's last step, instead of at steps."""
    last = run.lines[-1]["step"] if run.lines else max(points.places, default=1)
    return Points([100 * place / max(last, 1) for place in points.places], points.values)


def _chart(
    title: str,
    names: Sequence[str],
    points: Sequence[Points],
    *,
    from_zero: bool = True,
    wide: bool = False,
    dots: bool = False,
    axis: str = STEP,
) -> Chart | None:
    """Draw a curve for each run with points; None if no run has any."""
    curves = [
        Curve(of_run.values, key.colour, name, 1.8, of_run.places, _DASH if key.is_dashed else ())
        for of_run, key, name in zip(points, run_keys(len(names)), names, strict=True)
        if of_run.places
    ]
    if not curves:
        return None
    draw = partial(chart, steps=(), curves=curves, from_zero=from_zero, axis=axis, legend=False)
    draw = partial(draw, dots=dots or all(len(c.values) < FEWEST_SMOOTHED for c in curves))
    if not wide:
        return Chart(title, draw(title, size=_USUAL))
    narrow = draw(f"{title}, narrow", size=_NARROW)
    note = f"Losses of runs with {FEWEST_SMOOTHED} or more logged lines are smoothed."
    return Chart(title, draw(title, size=_WIDE), wide=True, narrow=narrow, note=note)


def _loss(lines: Sequence[Mapping[str, float]]) -> Points:
    """Return the loss by step, smoothed unless there are few lines."""
    points = _logged(lines, "loss")
    if len(points.values) < FEWEST_SMOOTHED:
        return points
    return Points(points.places, smoothed(points.values, _SMOOTHED_SHARE * len(points.values)))


def _logged(lines: Sequence[Mapping[str, float]], key: str) -> Points:
    if not lines or key not in lines[0]:
        return Points()
    return Points([line["step"] for line in lines], [line[key] for line in lines])


def _time_chart(runs: Sequence[RecordedRun]) -> Chart | None:
    """Draw the loss by the training time, in a unit for people."""
    lines = [_with_time(run.lines) for run in runs]
    longest = max((line["time"] for of_run in lines for line in of_run), default=0.0)
    long_enough = (unit for unit, size in _UNITS.items() if longest >= _FEWEST_OF_UNIT * size)
    unit = next(long_enough, "seconds")
    points = []
    for of_run in lines:
        few = thinned(of_run, _MAX_POINTS) if of_run else []
        points.append(Points([line["time"] / _UNITS[unit] for line in few], _loss(few).values))
    title, axis = "Loss by training time", f"{unit} of training"
    return _chart(title, [run.name for run in runs], points, from_zero=False, axis=axis)


def _with_time(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add to lines the seconds of all attempts: each attempt counts from its own first step."""
    timed, before, last = [], 0.0, 0.0
    for line in lines:
        if not is_number(line.get("seconds")):
            return []
        before += last if line["seconds"] < last else 0.0
        last = line["seconds"]
        timed.append(dict(line, time=before + last))
    return timed


def _measured(runs: Sequence[RecordedRun]) -> dict[str, list[Points]]:
    """Return the first figure of each evaluation by title, if a run has measured it often."""
    found: dict[str, list[Points]] = {}
    first: dict[str, str] = {}
    for number, run in enumerate(runs):
        for evaluation, of_metric in figures_by_step(run.evaluations).items():
            metric = first.setdefault(evaluation, next(iter(of_metric)))
            if values := of_metric.get(metric):
                title = f"{shown(evaluation)}, {figure_named(shown(metric)).label}"
                steps = sorted(values)
                of_runs = found.setdefault(title, [Points()] * len(runs))
                of_runs[number] = Points(steps, [values[step] for step in steps])
    return {
        title: of_runs
        for title, of_runs in found.items()
        if max(len(points.places) for points in of_runs) >= FEWEST_POINTS
    }


class RunHead(NamedTuple):
    """The head of a run's column, with a link to its report, if any."""

    name: str
    key: RunKey
    report: Link | None


class FigureGroup(NamedTuple):
    """A figure of all runs with it; ``first`` is the first run's.

    ``lines`` have the number of each run, and its figure before and after training. A group
    ``is_of_other_data`` if runs are known to have measured it on different data.
    """

    first: Comparison
    lines: tuple[tuple[int, Comparison], ...]
    is_of_other_data: bool

    @property
    def basis(self) -> str:
        """The number of measured items, in words; empty unless the same for all runs."""
        is_alike = all(figure.basis == self.first.basis for _, figure in self.lines)
        return self.first.basis if is_alike else ""


def write_comparison(folders: Sequence[Location], target: Location) -> Location:
    """Write a page that compares runs, see :func:`check_runs`; return its path."""
    runs = read_runs(folders)
    times = [time_spent(run.lines) for run in runs]
    page = render(
        "runs.html",
        {
            "name": f"{len(runs)} runs compared",
            "kind": "comparison of runs",
            "sentence": "Each run against its own start, and all trainings in one chart",
            "scores": [],
            "tiles": {},
            "heads": _heads(runs, target),
            "overview": _overview(runs),
            "figures": figure_groups(runs),
            "unmeasured": [run.name for run in runs if not run.comparisons],
            "charts": comparison_charts(runs),
            "settings": differences([run.settings for run in runs], _OF_THE_FOLDER),
            "walls": _walls(runs),
            "times": times,
            "parts": _parts(times),
            "environment": differences([run.environment for run in runs]),
        },
    )
    storage.write_text(target, page)
    return target


def figure_groups(runs: Sequence[RecordedRun]) -> list[FigureGroup]:
    """Return the figures of all runs, evaluation by evaluation, ordered as in the first run."""
    found: dict[str, dict[str, list[tuple[int, Comparison]]]] = {}
    for number, run in enumerate(runs):
        for figure in run.comparisons:
            metrics = found.setdefault(figure.evaluation, {})
            metrics.setdefault(figure.metric, []).append((number, figure))
    groups = []
    for evaluation, metrics in found.items():
        for lines in metrics.values():
            digests = {runs[number].sets.get(evaluation) for number, _ in lines} - {None}
            groups.append(FigureGroup(lines[0][1], tuple(lines), len(digests) > 1))
    return groups


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
    """Describe each run in a column; a line without a value for any run is left out."""
    columns = [_described(run) for run in runs]
    rows = [
        Row(key, tuple(column[key] or NOT_MEASURED for column in columns)) for key in columns[0]
    ]
    return [row for row in rows if set(row.values) != {NOT_MEASURED}]


def _described(run: RecordedRun) -> dict[str, str]:
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
    remark = ", ".join(note for note, holds in notes.items() if holds)
    return f"{run.verdict.word} ({remark})" if remark else run.verdict.word


def _number(figures: Mapping[str, Any], key: str, form: Callable[[float], str]) -> str:
    return form(figures[key]) if is_number(figures.get(key)) else ""


def _walls(runs: Sequence[RecordedRun]) -> list[Row]:
    """Return the wall-clock time of each stage of each run, and the totals."""
    of_runs = [{time.name: time for time in wall_times(run.jobs)} for run in runs]
    names = dict.fromkeys(name for times in of_runs for name in times)
    rows = [Row(name, tuple(_took(times.get(name)) for times in of_runs)) for name in names]
    sums = [total_seconds(list(times.values())) for times in of_runs]
    totals = tuple(short_duration(seconds) if seconds else NOT_MEASURED for seconds in sums)
    return [*rows, Row("all", totals)] if rows else []


def _took(time: WallTime | None) -> str:
    if time is None:
        return NOT_MEASURED
    if time.is_kept:
        return KEPT
    took = short_duration(time.seconds)
    return f"{took} ({time.note})" if time.note else took


def _parts(times: Sequence[TimeSpent | None]) -> dict[str, str]:
    known = {part for time in times if time is not None for part in time.parts}
    return {part: name for part, name in PARTS.items() if part in known}
