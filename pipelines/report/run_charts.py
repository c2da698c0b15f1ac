"""The pictures of a run's page, from the lines that it logged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipelines.evaluation.base import figure_named
from pipelines.report.comparison import grouped, is_number, shown, smoothed, thinned
from pipelines.report.page_parts import Chart, per_cent, whole
from pipelines.report.svg_charts import BLUE, ORANGE, PALE_BLUE, SERIES
from pipelines.report.svg_charts import PARTS as PART_COLOURS

PARTS = {
    "arithmetic": "arithmetic",
    "communication": "communication",
    "arithmetic_and_communication": "arithmetic and communication",
    "data": "waiting for data",
    "other": "everything else",
}
"""The parts of a worker's seconds that a line may hold, in the order in which they are shown."""

Lines = Sequence[Mapping[str, Any]]
"""Of ``metrics.jsonl``."""


@dataclass(frozen=True)
class WorkerTime:
    """What a worker did in a run, or several did together.

    Attributes:
        rank: Its number; None where it is of all of them.
        examples: That it trained on.
        tokens: Of these.
        seconds: Of its life, from when it was ready.
        parts: Seconds by part, of :data:`PARTS`.
    """

    rank: int | None
    examples: float
    tokens: float
    seconds: float
    parts: Mapping[str, float]

    @property
    def computed(self) -> float:
        """Seconds of arithmetic, with what was not timed apart from it."""
        return math.fsum(
            self.parts.get(part, 0.0) for part in ("arithmetic", "arithmetic_and_communication")
        )

    @property
    def examples_per_second(self) -> float:
        """By the clock; NaN where no time has passed."""
        return self.examples / self.seconds if self.seconds > 0 else math.nan

    @property
    def own_pace(self) -> float:
        """Examples a second of arithmetic alone; NaN where that is not known."""
        seconds = self.parts.get("arithmetic", 0.0)
        return self.examples / seconds if seconds > 0 else math.nan


def worker_times(lines: Lines) -> list[WorkerTime]:
    """The totals of each worker, by rank; none where the run did not measure them."""
    of_ranks: dict[int, list[Mapping[str, Any]]] = {}
    for line in lines:
        for worker in line.get("workers", ()):
            of_ranks.setdefault(worker["rank"], []).append(worker)
    return [_sum(rank, of_ranks[rank]) for rank in sorted(of_ranks)]


def together(workers: Sequence[WorkerTime]) -> WorkerTime:
    """The sum over all workers, so that its seconds are more than the clock's."""
    return WorkerTime(
        rank=None,
        examples=math.fsum(worker.examples for worker in workers),
        tokens=math.fsum(worker.tokens for worker in workers),
        seconds=math.fsum(worker.seconds for worker in workers),
        parts={
            part: math.fsum(worker.parts.get(part, 0.0) for worker in workers)
            for part in PARTS
            if any(part in worker.parts for worker in workers)
        },
    )


def shares(time: WorkerTime) -> dict[str, float]:
    """The parts of a time as shares of it."""
    whole = max(math.fsum(time.parts.values()), 1e-12)
    return {part: seconds / whole for part, seconds in time.parts.items()}


def shares_by_group(groups: Sequence[Lines]) -> dict[str, list[float]]:
    """The shares of all workers' time by part, a number for each group; none if not measured."""
    by_group = [shares(together(worker_times(group))) for group in groups]
    return {
        part: [group.get(part, 0.0) for group in by_group]
        for part in PARTS
        if any(part in group for group in by_group)
    }


def paces_by_group(groups: Sequence[Lines], *, own: bool) -> dict[int, list[float]]:
    """Examples a second of each worker, a number for each group; NaN where it had no part.

    Args:
        groups: Lines of the run that are next to one another.
        own: Whether a second is one of its own arithmetic, and not one of the clock.
    """
    by_group = [{worker.rank: worker for worker in worker_times(group)} for group in groups]
    ranks = sorted({rank for group in by_group for rank in group if rank is not None})
    return {rank: [_pace(group.get(rank), own=own) for group in by_group] for rank in ranks}


def _pace(worker: WorkerTime | None, *, own: bool) -> float:
    if worker is None:
        return math.nan
    return worker.own_pace if own else worker.examples_per_second


def _sum(rank: int, lines: Lines) -> WorkerTime:
    return WorkerTime(
        rank=rank,
        examples=math.fsum(line["examples"] for line in lines),
        tokens=math.fsum(line["tokens"] for line in lines),
        seconds=math.fsum(line["seconds"] for line in lines),
        parts={
            part: math.fsum(line.get(part, 0.0) for line in lines)
            for part in PARTS
            if any(part in line for line in lines)
        },
    )


MAX_WORKERS = 16
"""Bars of single workers; of more, those are shown that computed longest."""
MAX_NAMED_CURVES = 4
FEWEST_POINTS = 3
FEWEST_SMOOTHED = 8
"""Of fewer logged lines each is marked, and nothing is smoothed."""
_SMOOTHED_SHARE = 0.015
_MAX_POINTS = 1000
_MAX_AREAS = 150
_WIDE, _NARROW = (10.0, 3.0), (5.2, 2.9)


@dataclass(frozen=True)
class Piece:
    """A part of a bar: the part's name, its share for people, and where it is on the track."""

    part: str
    share: str
    left: str
    width: str


@dataclass(frozen=True)
class TimeBar:
    """A worker's time, or all workers', in pieces; figures are for people."""

    name: str
    pieces: tuple[Piece, ...]
    examples_per_second: str
    own_pace: str


@dataclass(frozen=True)
class TimeSpent:
    """Where the time went.

    Attributes:
        parts: Names of the parts for people, by what style sheets call them.
        total: Of all workers.
        workers: Of each.
        left_out: How many workers are not shown.
        apart: Whether communication was timed apart from arithmetic.
        charts: Over the steps.
    """

    parts: Mapping[str, str]
    total: TimeBar
    workers: tuple[TimeBar, ...]
    left_out: int
    apart: bool
    charts: tuple[Chart, ...]


def training_charts(logged: Lines) -> list[Chart]:
    """Loss, that of each source, learning rate, rates, padding, and staleness if there was any."""
    if not logged:
        return []
    from pipelines.report.svg_charts import Curve, chart

    lines = thinned(logged, _MAX_POINTS)

    def column(name: str) -> list[float]:
        return [line[name] for line in lines]

    steps, losses = column("step"), column("loss")
    span = max(1.0, _SMOOTHED_SHARE * len(lines))
    few = len(lines) < FEWEST_SMOOTHED
    curves = [Curve(losses)]
    if not few:
        curves = [Curve(losses, PALE_BLUE, "logged", 1.2)]
        curves.append(Curve(smoothed(losses, span), BLUE, "smoothed"))
    loss = partial(chart, steps=steps, curves=curves, from_zero=False, dots=few)
    single = {
        "Learning rate": "learning_rate",
        "Gradient norm, before clipping": "gradient_norm",
        "Examples/s": "examples_per_second",
        "Tokens/s": "tokens_per_second",
        "Staleness, updates (mean)": "staleness_mean",
    }
    if not any(line.get("staleness_max") for line in lines):
        del single["Staleness, updates (mean)"]
    shares_of = {"padding": ("padding, of slots", BLUE), "data_wait": ("wait, of time", ORANGE)}
    waste = [
        Curve(column(key), colour, label)
        for key, (label, colour) in shares_of.items()
        if key in lines[0]
    ]
    charts = [
        Chart(
            "Loss",
            loss("Loss", size=_WIDE),
            wide=True,
            narrow=loss("Loss, narrow", size=_NARROW),
            note=_thinning(logged),
        )
    ]
    charts += _source_charts(logged)
    charts += [
        Chart(title, chart(title, steps, [Curve(column(key))], dots=few))
        for title, key in single.items()
        # A run may have gone on by an engine, or a release, that tells something else.
        if all(key in line for line in lines)
    ]
    if waste:
        title = "Padding and data wait"
        charts.append(Chart(title, chart(title, steps, waste, shares=True, dots=few)))
    return charts


def _thinning(logged: Lines) -> str:
    """What a point of a curve is; empty where it is a line of the log."""
    size = len(grouped(logged, _MAX_POINTS)[0])
    return "" if size == 1 else f"A point is the mean of {size} logged lines, here and below."


def _source_charts(logged: Lines) -> list[Chart]:
    """The loss of each source of several; on a scale of its own, since losses differ in kind."""
    from pipelines.report.svg_charts import Curve, chart

    names = sorted({name for line in logged for name in line.get("sources", {})})
    charts = []
    for name in names:
        found = [line for line in logged if name in line.get("sources", {})]
        groups = grouped(found, _MAX_POINTS)
        told = [[line["sources"][name] for line in group] for group in groups]
        losses = [
            math.fsum(one["loss"] * one["steps"] for one in group)
            / sum(one["steps"] for one in group)
            for group in told
        ]
        steps = [math.fsum(line["step"] for line in group) / len(group) for group in groups]
        title = f"Loss of {shown(name)}"
        few = len(losses) < FEWEST_SMOOTHED
        drawn = chart(title, steps, [Curve(losses)], from_zero=False, dots=few)
        charts.append(Chart(title, drawn))
    return charts


def evaluation_charts(lines: Lines) -> list[Chart]:
    """The figures of each evaluation over the steps; those outside 0 to 100 in charts of their own.

    What was measured before and after training alone stands in the table, and is no curve.

    Args:
        lines: Of ``evaluations.jsonl``: ``step``, ``evaluation``, and figures by metric.
    """
    curves: dict[str, dict[str, dict[float, float]]] = {}
    for line in lines:
        if is_number(line.get("step")) and "evaluation" in line:
            of_evaluation = curves.setdefault(shown(str(line["evaluation"])), {})
            for metric, value in _figures(line).items():
                label = figure_named(shown(metric)).label
                of_evaluation.setdefault(label, {})[line["step"]] = value
    charts = []
    for name, of_metric in curves.items():
        alone = {
            label: points
            for label, points in of_metric.items()
            if not all(0 <= value <= 100 for value in points.values())
        }
        on_scale = {label: points for label, points in of_metric.items() if label not in alone}
        groups = {name: on_scale}
        groups |= {f"{name}, {label}": {label: points} for label, points in alone.items()}
        charts += [
            _evaluation_chart(title, group)
            for title, group in groups.items()
            if len({step for points in group.values() for step in points}) >= FEWEST_POINTS
        ]
    return charts


def time_spent(logged: Lines) -> TimeSpent | None:
    """Where the workers' time went; None where the run did not measure it."""
    workers = worker_times(logged)
    if not workers:
        return None
    total = together(workers)
    apart = "arithmetic_and_communication" not in total.parts
    busiest = sorted(workers, key=lambda worker: -worker.computed)
    listed = sorted(busiest[:MAX_WORKERS], key=lambda worker: worker.rank or 0)
    rate = math.fsum(one.examples_per_second for one in workers)
    return TimeSpent(
        parts={part: PARTS[part] for part in total.parts},
        total=_time_bar("All workers", total, rate)
        if len(workers) > 1
        else _time_bar("The worker", total, rate, total.own_pace),
        workers=tuple(
            _time_bar(f"Worker {one.rank}", one, one.examples_per_second, one.own_pace)
            for one in listed
        )
        if len(workers) > 1
        else (),
        left_out=len(workers) - len(listed),
        apart=apart,
        charts=tuple(_time_charts(logged, own=apart)),
    )


def _figures(line: Mapping[str, Any]) -> dict[str, float]:
    """The figures in an evaluation's line that have a direction and are finite."""
    known = {"step", "epoch", "seconds"}
    return {
        name: value
        for name, value in line.items()
        if name not in known
        and figure_named(name).better
        and is_number(value)
        and math.isfinite(value)
    }


def _evaluation_chart(title: str, of_metric: Mapping[str, Mapping[float, float]]) -> Chart:
    from pipelines.report.svg_charts import Curve, chart

    shown_metrics = list(of_metric)[:MAX_NAMED_CURVES]
    steps = sorted({step for label in shown_metrics for step in of_metric[label]})
    curves = [
        Curve([of_metric[label].get(step, math.nan) for step in steps], colour, label)
        for label, colour in zip(shown_metrics, SERIES, strict=False)
    ]
    svg = chart(f"{title} over the steps", steps, curves, from_zero=False, dots=True)
    return Chart(f"{title} over the steps", svg)


def _time_bar(name: str, time: WorkerTime, rate: float, own_pace: float = math.nan) -> TimeBar:
    pieces, left = [], 0.0
    for part, share in shares(time).items():
        pieces.append(Piece(part, per_cent(share), f"{100 * left:.3f}%", f"{100 * share:.3f}%"))
        left += share
    return TimeBar(name, tuple(pieces), _rate(rate), _rate(own_pace))


def _rate(value: float) -> str:
    return whole(value) if math.isfinite(value) else ""


def _time_charts(logged: Lines, *, own: bool) -> list[Chart]:
    """Shares over the steps, and the workers' paces."""
    from pipelines.report.svg_charts import Curve, chart, stack

    groups = grouped(logged, _MAX_AREAS)
    steps = [math.fsum(line["step"] for line in group) / len(group) for group in groups]
    layers = {
        PARTS[part]: (values, PART_COLOURS[part])
        for part, values in shares_by_group(groups).items()
    }
    title = "Shares of the workers' time"
    paces = paces_by_group(groups, own=own)
    if len(paces) > MAX_NAMED_CURVES:
        curves = [Curve(values, PALE_BLUE, width=1.0) for values in paces.values()]
    else:
        curves = [
            Curve(values, colour, f"worker {rank}", 1.4)
            for (rank, values), colour in zip(paces.items(), SERIES, strict=False)
        ]
    pace_title = "Examples a second of arithmetic" if own else "Examples/s of each worker"
    note = (
        "Of each worker by itself. By the clock all are as fast as the slowest where they share a "
        "step."
        if own
        else ""
    )
    return [
        Chart(title, stack(title, steps, layers, size=(5.2, 2.5))),
        Chart(pace_title, chart(pace_title, steps, curves), note=note),
    ]
