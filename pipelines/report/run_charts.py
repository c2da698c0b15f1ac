"""The charts of a run's page, from its logged lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipelines.evaluation.base import figure_named
from pipelines.report.comparison import grouped, is_number, shown, smoothed, thinned
from pipelines.report.page_parts import Bar, Chart, whole
from pipelines.report.svg_charts import BLUE, ORANGE, PALE_BLUE, SERIES, Curve, chart, stack
from pipelines.report.svg_charts import PARTS as PART_COLOURS

PARTS = {
    "arithmetic": "arithmetic",
    "communication": "communication",
    "arithmetic_and_communication": "arithmetic and communication",
    "data": "waiting for data",
    "other": "everything else",
}
"""The parts of a worker's seconds in a line, in the order of the page."""
LOGGED = {
    "Learning rate": "learning_rate",
    "Gradient norm, before clipping": "gradient_norm",
    "Examples/s": "examples_per_second",
    "Tokens/s": "tokens_per_second",
}
"""Columns of ``metrics.jsonl`` with a chart of their own, by its title."""
MAX_WORKERS = 16
"""Bars of single workers; of more, the page shows the ones that computed longest."""
MAX_NAMED_CURVES = 4
FEWEST_POINTS = 3
FEWEST_SMOOTHED = 8
"""With fewer logged lines each is marked, and nothing is smoothed."""
_SMOOTHED_SHARE = 0.015
_MAX_POINTS = 1000
_MAX_AREAS = 150
_WIDE, _NARROW = (10.0, 3.0), (5.2, 2.9)
_NO_FIGURES = {"step", "epoch", "seconds"}

Lines = Sequence[Mapping[str, Any]]
"""Lines of ``metrics.jsonl``."""


@dataclass(frozen=True)
class WorkerTime:
    """The time of a worker, or of several together.

    Attributes:
        rank: None for several workers.
        seconds: Of its life, once it was ready; summed over several workers.
        parts: Seconds by part, of :data:`PARTS`.
    """

    rank: int | None
    examples: float
    seconds: float
    parts: Mapping[str, float]

    @classmethod
    def of(cls, rank: int | None, lines: Lines) -> WorkerTime:
        """Return the totals of lines of ``workers``."""
        return cls(
            rank=rank,
            examples=math.fsum(line["examples"] for line in lines),
            seconds=math.fsum(line["seconds"] for line in lines),
            parts={
                part: math.fsum(line.get(part, 0.0) for line in lines)
                for part in PARTS
                if any(part in line for line in lines)
            },
        )

    @property
    def shares(self) -> dict[str, float]:
        """The parts as shares of the time."""
        total = max(math.fsum(self.parts.values()), 1e-12)
        return {part: seconds / total for part, seconds in self.parts.items()}

    @property
    def computed(self) -> float:
        """Seconds of arithmetic, with communication if not timed apart."""
        both = ("arithmetic", "arithmetic_and_communication")
        return math.fsum(self.parts.get(part, 0.0) for part in both)

    @property
    def examples_per_second(self) -> float:
        """Examples per wall-clock second; NaN for no time."""
        return self.examples / self.seconds if self.seconds > 0 else math.nan

    @property
    def arithmetic_pace(self) -> float:
        """Examples per second of arithmetic; NaN if unknown."""
        seconds = self.parts.get("arithmetic", 0.0)
        return self.examples / seconds if seconds > 0 else math.nan


def worker_times(lines: Lines) -> list[WorkerTime]:
    """Return the totals of each worker, by rank; none if the run did not measure them."""
    of_ranks: dict[int, list[Mapping[str, Any]]] = {}
    for worker in _workers(lines):
        of_ranks.setdefault(worker["rank"], []).append(worker)
    return [WorkerTime.of(rank, of_ranks[rank]) for rank in sorted(of_ranks)]


def together(lines: Lines) -> WorkerTime:
    """Return the totals of all workers."""
    return WorkerTime.of(None, _workers(lines))


def _workers(lines: Lines) -> Lines:
    return [worker for line in lines for worker in line.get("workers", ())]


def shares_by_group(groups: Sequence[Lines]) -> dict[str, list[float]]:
    """Return the shares of all workers' time by part, a number for each group."""
    by_group = [together(group).shares for group in groups]
    return {
        part: [group.get(part, 0.0) for group in by_group]
        for part in PARTS
        if any(part in group for group in by_group)
    }


def paces_by_group(groups: Sequence[Lines], *, of_arithmetic: bool) -> dict[int, list[float]]:
    """Return examples per second by rank, a number for each group; NaN for an absent rank.

    ``groups`` are consecutive lines of the run. Seconds are those ``of_arithmetic`` of the worker,
    else of the clock.
    """
    by_group = [
        {
            worker.rank: worker.arithmetic_pace if of_arithmetic else worker.examples_per_second
            for worker in worker_times(group)
        }
        for group in groups
    ]
    ranks = sorted({rank for group in by_group for rank in group if rank is not None})
    return {rank: [group.get(rank, math.nan) for group in by_group] for rank in ranks}


def training_charts(logged: Lines) -> list[Chart]:
    """Draw loss, that of each source, rates, padding, and staleness if any."""
    if not logged:
        return []
    lines = thinned(logged, _MAX_POINTS)

    def column(name: str) -> list[float]:
        return [line[name] for line in lines]

    steps, losses = column("step"), column("loss")
    few = len(lines) < FEWEST_SMOOTHED
    curves = [Curve(losses)]
    if not few:
        span = max(1.0, _SMOOTHED_SHARE * len(lines))
        curves = [Curve(losses, PALE_BLUE, "logged", 1.2)]
        curves.append(Curve(smoothed(losses, span), BLUE, "smoothed"))
    loss = partial(chart, steps=steps, curves=curves, from_zero=False, dots=few)
    size = len(grouped(logged, _MAX_POINTS)[0])
    note = "" if size == 1 else f"A point is the mean of {size} logged lines, here and below."
    narrow = loss("Loss, narrow", size=_NARROW)
    charts = [Chart("Loss", loss("Loss", size=_WIDE), wide=True, narrow=narrow, note=note)]
    charts += _source_charts(logged)
    single = dict(LOGGED)
    if any(line.get("staleness_max") for line in lines):
        single["Staleness, updates (mean)"] = "staleness_mean"
    charts += [
        Chart(title, chart(title, steps, [Curve(column(key))], dots=few))
        for title, key in single.items()
        # Another engine, or release, may have continued the run and logged other columns.
        if all(key in line for line in lines)
    ]
    shares_of = {
        "padding": ("padding, share of slots", BLUE),
        "data_wait": ("wait, share of time", ORANGE),
    }
    waste = [
        Curve(column(key), colour, label)
        for key, (label, colour) in shares_of.items()
        if key in lines[0]
    ]
    if waste:
        title = "Padding and data wait"
        charts.append(Chart(title, chart(title, steps, waste, shares=True, dots=few)))
    return charts


def _source_charts(logged: Lines) -> list[Chart]:
    """Draw the loss of each source on its own scale, since losses differ in kind."""
    charts = []
    for name in sorted({name for line in logged for name in line.get("sources", {})}):
        found = [line for line in logged if name in line.get("sources", {})]
        groups = grouped(found, _MAX_POINTS)
        losses = []
        for group in groups:
            logged_losses = [line["sources"][name] for line in group]
            steps = sum(logged_loss["steps"] for logged_loss in logged_losses)
            weighted = (known["loss"] * known["steps"] for known in logged_losses)
            losses.append(math.fsum(weighted) / steps)
        title = f"Loss of {shown(name)}"
        few = len(losses) < FEWEST_SMOOTHED
        places = list(map(_middle, groups))
        drawn = chart(title, places, [Curve(losses)], from_zero=False, dots=few)
        charts.append(Chart(title, drawn))
    return charts


def _middle(group: Lines) -> float:
    return math.fsum(line["step"] for line in group) / len(group)


def figures_by_step(lines: Lines) -> dict[str, dict[str, dict[float, float]]]:
    """Return figures with a direction by evaluation, metric and step, of ``evaluations.jsonl``."""
    found: dict[str, dict[str, dict[float, float]]] = {}
    for line in lines:
        if not is_number(line.get("step")) or "evaluation" not in line:
            continue
        for metric, value in line.items():
            is_known = is_number(value) and math.isfinite(value) and metric not in _NO_FIGURES
            if is_known and figure_named(metric).better:
                of_metric = found.setdefault(str(line["evaluation"]), {})
                of_metric.setdefault(metric, {})[line["step"]] = value
    return found


def evaluation_charts(lines: Lines) -> list[Chart]:
    """Draw the figures of each evaluation; those outside 0 to 100 in charts of their own.

    A figure measured only before and after training has no curve: the table shows it.
    """
    charts = []
    for evaluation, of_metric in figures_by_step(lines).items():
        name = shown(evaluation)
        on_scale: dict[str, Mapping[float, float]] = {}
        off_scale: dict[str, dict[str, Mapping[float, float]]] = {}
        for metric, points in of_metric.items():
            label = figure_named(shown(metric)).label
            if all(0 <= value <= 100 for value in points.values()):
                on_scale[label] = points
            else:
                off_scale[f"{name}, {label}"] = {label: points}
        charts += [
            _evaluation_chart(f"{title} over the steps", curves)
            for title, curves in {name: on_scale, **off_scale}.items()
            if len({step for points in curves.values() for step in points}) >= FEWEST_POINTS
        ]
    return charts


def _evaluation_chart(title: str, of_metric: Mapping[str, Mapping[float, float]]) -> Chart:
    named = list(of_metric)[:MAX_NAMED_CURVES]
    steps = sorted({step for label in named for step in of_metric[label]})
    curves = [
        Curve([of_metric[label].get(step, math.nan) for step in steps], colour, label)
        for label, colour in zip(named, SERIES, strict=False)
    ]
    return Chart(title, chart(title, steps, curves, from_zero=False, dots=True))


@dataclass(frozen=True)
class TimeBar:
    """The time of a worker, or of all, in pieces; figures are for people."""

    name: str
    pieces: tuple[Bar, ...]
    examples_per_second: str
    arithmetic_pace: str


@dataclass(frozen=True)
class TimeSpent:
    """The workers' time by part; ``parts`` have names for people, by their CSS names.

    ``left_out`` is the number of workers that are not shown. ``apart`` says whether communication
    was timed apart from arithmetic.
    """

    parts: Mapping[str, str]
    total: TimeBar
    workers: tuple[TimeBar, ...]
    left_out: int
    apart: bool
    charts: tuple[Chart, ...]


def time_spent(logged: Lines) -> TimeSpent | None:
    """Return the workers' time by part; None if the run did not measure it."""
    workers = worker_times(logged)
    if not workers:
        return None
    total = together(logged)
    apart = "arithmetic_and_communication" not in total.parts
    busiest = sorted(workers, key=lambda worker: -worker.computed)
    listed = sorted(busiest[:MAX_WORKERS], key=lambda worker: worker.rank or 0)
    several = len(workers) > 1
    rate = math.fsum(worker.examples_per_second for worker in workers)
    # Workers compute at the same time, so their examples per summed second would be no pace.
    pace = math.nan if several else total.arithmetic_pace
    bars = (
        _time_bar(
            f"Worker {worker.rank}", worker, worker.examples_per_second, worker.arithmetic_pace
        )
        for worker in listed
    )
    return TimeSpent(
        parts={part: PARTS[part] for part in total.parts},
        total=_time_bar("All workers" if several else "The worker", total, rate, pace),
        workers=tuple(bars) if several else (),
        left_out=len(workers) - len(listed),
        apart=apart,
        charts=tuple(_time_charts(logged, of_arithmetic=apart)),
    )


def _time_bar(name: str, time: WorkerTime, rate: float, arithmetic_pace: float) -> TimeBar:
    pieces, left = [], 0.0
    for part, share in time.shares.items():
        pieces.append(Bar(PARTS[part], "", left, share, part))
        left += share
    paces = (whole(value) if math.isfinite(value) else "" for value in (rate, arithmetic_pace))
    return TimeBar(name, tuple(pieces), *paces)


def _time_charts(logged: Lines, *, of_arithmetic: bool) -> list[Chart]:
    """Draw shares over the steps, and the workers' paces."""
    groups = grouped(logged, _MAX_AREAS)
    steps = list(map(_middle, groups))
    layers = {
        PARTS[part]: (values, PART_COLOURS[part])
        for part, values in shares_by_group(groups).items()
    }
    paces = paces_by_group(groups, of_arithmetic=of_arithmetic)
    if len(paces) > MAX_NAMED_CURVES:
        curves = [Curve(values, PALE_BLUE, width=1.0) for values in paces.values()]
    else:
        curves = [
            Curve(values, colour, f"worker {rank}", 1.4)
            for (rank, values), colour in zip(paces.items(), SERIES, strict=False)
        ]
    title = "Shares of the workers' time"
    pace_title = "Examples per second of arithmetic" if of_arithmetic else "Examples/s per worker"
    note = (
        "A line is the pace of one worker. Workers that share a step all take the time of the "
        "slowest."
        if of_arithmetic
        else ""
    )
    return [
        Chart(title, stack(title, steps, layers, size=(5.2, 2.5))),
        Chart(pace_title, chart(pace_title, steps, curves), note=note),
    ]
