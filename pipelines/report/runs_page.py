"""The page that shows several runs beside one another: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pipelines.evaluation.base import figure_named
from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.report.comparison import Comparison, Link, is_number, link, shown, smoothed, thinned
from pipelines.report.page_parts import Chart, duration, render, whole
from pipelines.report.recorded_runs import RecordedRun, read_runs
from pipelines.report.run_charts import FEWEST_POINTS, FEWEST_SMOOTHED, PARTS, TimeSpent, time_spent
from pipelines.report.run_page import (
    KEPT,
    WallTime,
    moment,
    short_duration,
    total_seconds,
    wall_times,
)
from pipelines.report.svg_charts import RUNS, VARIABLES
from pipelines.report.verdict import NOT_MEASURED

_OF_THE_FOLDER = ("run.folder", "run.overwrite", "training.resume")
"""Where a run is, and whether it was begun or continued, says nothing of what it is."""


@dataclass(frozen=True)
class Row:
    """A line of a table that has a column for each run.

    Attributes:
        key: What it is of.
        values: Of each run, for people.
        groups: Of each run a number, and runs of equal values have equal ones; empty where it says
            nothing that they differ.
    """

    key: str
    values: tuple[str, ...]
    groups: tuple[int, ...] = ()


def differences(runs: Sequence[Mapping[str, Any]], without: Sequence[str] = ()) -> list[Row]:
    """What is not the same in all runs, in the order in which the first one has it.

    Args:
        runs: Values by key; one that a run does not have is a difference, too.
        without: Keys that are left out.
    """
    keys = dict.fromkeys(key for run in runs for key in run)
    found = []
    for key in keys:
        values = tuple(_told_difference(run[key]) if key in run else NOT_MEASURED for run in runs)
        if len(set(values)) > 1 and key not in without:
            numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
            found.append(Row(key, values, tuple(numbers[value] for value in values)))
    return found


def setting_differences(runs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The same of settings, but for those that differ in any two runs."""
    return differences(runs, _OF_THE_FOLDER)


def _told_difference(value: Any) -> str:
    """A value as a settings file has it."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, list | tuple):
        return shown(f"[{', '.join(map(_told_difference, value))}]")
    return shown(f"{value:g}" if isinstance(value, float) else str(value))


_MAX_POINTS = 400
_SMOOTHED_SHARE = 0.02
_WIDE, _NARROW, _USUAL = (10.0, 3.2), (5.2, 3.0), (5.2, 2.5)
_DASH = (3.0, 1.5)
_UNITS = {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
_FEWEST_OF_UNIT = 5
"""Of fewer of a unit of time the next smaller one is taken."""

_LOGGED = {
    "Learning rate": "learning_rate",
    "Gradient norm, before clipping": "gradient_norm",
    "Examples/s": "examples_per_second",
    "Tokens/s": "tokens_per_second",
}
STEP, SHARE = "step", "% of the steps"
_MUCH_LONGER = 4
_NO_FIGURES = ("step", "epoch", "seconds")


@dataclass(frozen=True)
class RunKey:
    """How a run is drawn.

    Attributes:
        colour: Of its curves.
        is_dashed: Whether another run has the same colour.
    """

    colour: str
    is_dashed: bool

    @property
    def variable(self) -> str:
        """What style sheets call the colour."""
        return VARIABLES[self.colour]


@dataclass(frozen=True)
class Points:
    """What a curve goes through; empty where a run does not have it."""

    places: Sequence[float] = ()
    values: Sequence[float] = ()


def run_keys(count: int) -> list[RunKey]:
    """Of so many runs, at most twice as many as there are colours."""
    return [RunKey(RUNS[number % len(RUNS)], number >= len(RUNS)) for number in range(count)]


def comparison_charts(runs: Sequence[RecordedRun]) -> list[Chart]:
    """Loss over steps and over time, rates, and the first figure of each evaluation.

    Where a run is many times as long as another one, all but the first two are over the share of
    its steps that a run has made: over the steps, the short one would be a vertical line.
    """
    names = [run.name for run in runs]
    lines = [thinned(run.lines, _MAX_POINTS) if run.lines else [] for run in runs]
    losses = [_loss(of_run) for of_run in lines]
    charts = [
        _chart("Loss", names, losses, from_zero=False, wide=True),
        _time_chart(runs),
    ]
    lasts = [run.lines[-1]["step"] for run in runs if run.lines]
    is_long = bool(lasts) and max(lasts) > _MUCH_LONGER * min(lasts)
    axis = SHARE if is_long else STEP

    def placed(points: Sequence[Points]) -> list[Points]:
        pairs = zip(runs, points, strict=True)
        return [_by_share(run, one) for run, one in pairs] if is_long else list(points)

    if is_long:
        title = "Loss by the share of the steps"
        charts.append(_chart(title, names, placed(losses), from_zero=False, axis=axis))
    charts += [
        _chart(title, names, placed([_logged(of_run, key) for of_run in lines]), axis=axis)
        for title, key in _LOGGED.items()
    ]
    charts += [
        _chart(title, names, placed(points), from_zero=False, dots=True, axis=axis)
        for title, points in _measured(runs).items()
    ]
    return [chart for chart in charts if chart is not None]


def _by_share(run: RecordedRun, points: Points) -> Points:
    """The same at per cent of the run's last step, instead of at steps."""
    whole = run.lines[-1]["step"] if run.lines else max(points.places, default=1)
    return Points([100 * place / max(whole, 1) for place in points.places], points.values)


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
    """A curve for each run that has one; None where no run has."""
    from pipelines.report.svg_charts import Curve, chart

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
    note = "Smoothed where a run has logged many lines."
    return Chart(title, draw(title, size=_WIDE), wide=True, narrow=narrow, note=note)


def _loss(lines: Sequence[Mapping[str, float]]) -> Points:
    """The loss by step, smoothed unless there are few lines."""
    points = _logged(lines, "loss")
    if len(points.values) < FEWEST_SMOOTHED:
        return points
    return Points(points.places, smoothed(points.values, _SMOOTHED_SHARE * len(points.values)))


def _logged(lines: Sequence[Mapping[str, float]], key: str) -> Points:
    if not lines or key not in lines[0]:
        return Points()
    return Points([line["step"] for line in lines], [line[key] for line in lines])


def _time_chart(runs: Sequence[RecordedRun]) -> Chart | None:
    """The loss by the time that the training took, in a unit for people."""
    lines = [_with_time(run.lines) for run in runs]
    longest = max((line["time"] for of_run in lines for line in of_run), default=0.0)
    long_enough = (unit for unit, size in _UNITS.items() if longest >= _FEWEST_OF_UNIT * size)
    unit = next(long_enough, "seconds")
    points = []
    for of_run in lines:
        few = thinned(of_run, _MAX_POINTS) if of_run else []
        places = [line["time"] / _UNITS[unit] for line in few]
        points.append(Points(places, _loss(few).values))
    title, axis = "Loss by the time of training", f"{unit} of training"
    names = [run.name for run in runs]
    return _chart(title, names, points, from_zero=False, axis=axis)


def _with_time(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Lines with the seconds of all tries, each of which counts from its own first step."""
    timed, before, last = [], 0.0, 0.0
    for line in lines:
        if not is_number(line.get("seconds")):
            return []
        before += last if line["seconds"] < last else 0.0
        last = line["seconds"]
        timed.append(dict(line, time=before + last))
    return timed


def _measured(runs: Sequence[RecordedRun]) -> dict[str, list[Points]]:
    """The first figure of each evaluation over the steps, where a run has measured it often."""
    found: dict[str, list[Points]] = {}
    first: dict[str, str] = {}
    for number, run in enumerate(runs):
        for name, values in _by_metric(run.evaluations).items():
            evaluation, metric = name
            if first.setdefault(evaluation, metric) != metric:
                continue
            title = f"{shown(evaluation)}, {figure_named(shown(metric)).label}"
            of_runs = found.setdefault(title, [Points()] * len(runs))
            of_runs[number] = Points(sorted(values), [values[step] for step in sorted(values)])
    return {
        title: of_runs
        for title, of_runs in found.items()
        if max(len(points.places) for points in of_runs) >= FEWEST_POINTS
    }


def _by_metric(lines: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], dict[float, float]]:
    """Values by step, of each evaluation and metric that has a direction."""
    found: dict[tuple[str, str], dict[float, float]] = {}
    for line in lines:
        if not is_number(line.get("step")) or "evaluation" not in line:
            continue
        for metric, value in line.items():
            if is_number(value) and metric not in _NO_FIGURES and figure_named(metric).better:
                name = (str(line["evaluation"]), metric)
                found.setdefault(name, {})[line["step"]] = value
    return found


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
