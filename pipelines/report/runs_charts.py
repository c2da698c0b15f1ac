"""Curves of several runs over each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipelines.evaluation.base import figure_named
from pipelines.report.page_parts import Chart
from pipelines.report.recorded_runs import RecordedRun
from pipelines.report.run_charts import FEWEST_POINTS, FEWEST_SMOOTHED
from pipelines.report.series import is_number, smoothed, thinned
from pipelines.report.style import RUNS, VARIABLES
from pipelines.report.text import shown

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
