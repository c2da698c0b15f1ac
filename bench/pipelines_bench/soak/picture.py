"""What was counted in a soak, a row of panels for each engine, as an SVG document."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipelines.report.svg_charts import BLUE, INK, ORANGE, ROSE, TEAL, VIOLET, whole_numbers
from pipelines_bench.soak.record import STEPS, Record
from pipelines_bench.soak.watching import (
    CHILDREN,
    DRIVER,
    DRIVER_JAVA,
    FILES,
    HEAP,
    LEFT_OVER,
    MEMORY,
    SESSION,
    SOCKETS,
    THREADS,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS: Mapping[str, str] = {
    MEMORY: "memory, MiB",
    HEAP: "Java's live heap, MiB",
    THREADS: "threads",
    FILES: "open files",
    SOCKETS: "sockets",
}
_SESSION_PANELS: Mapping[str, str] = {name: name for name in LEFT_OVER}
_COLOURS: Mapping[str, str] = {
    DRIVER: BLUE,
    DRIVER_JAVA: ORANGE,
    "executors, Java": TEAL,
    "executors, Python": VIOLET,
    CHILDREN: ROSE,
    SESSION: INK,
}
_SIZE = (2.2, 1.3)
_HEAD = 0.6
_POINTS = 60
_ROOM = 1.15


def soak_picture(records: Sequence[Record]) -> str:
    """A row for each record, a panel for each quantity, and a line for each role.

    Args:
        records: All of steps, or all of runs.
    """
    from pipelines.report.svg_charts import picture_of

    rows = [(record, _PANELS) for record in records]
    rows += [(one, _SESSION_PANELS) for one in records if SESSION in one.series]

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(rows), len(_PANELS), squeeze=False)
        for number, ((record, panels), row) in enumerate(zip(rows, grid, strict=True)):
            for (quantity, title), axes in zip(panels.items(), row, strict=True):
                _panel(axes, record, quantity)
                if number == 0 or panels is not _PANELS:
                    axes.set_title(title, loc="left", fontsize=9)
            if panels is _PANELS and len(records) > 1:
                row[0].set_ylabel(record.case.replace("-", "\n"), color=INK, fontsize=9)
        for axes in grid[-1]:
            axes.set_xlabel(f"{records[0].axis}s", fontsize=9)
        _legend(figure, records)

    size = (_SIZE[0] * len(_PANELS), _HEAD + _SIZE[1] * len(rows))
    text = picture_of(f"Soak by {records[0].axis}s", size, draw)
    # A hundredth of a point cannot be seen, and takes half of the file.
    return re.sub(r"(\d\.\d\d)\d+", r"\1", text)


def _panel(axes: Axes, record: Record, quantity: str) -> None:
    highest = 0.0
    for role in sorted(record.series):
        if quantity not in record.series[role] or kind_of(role) not in _COLOURS:
            continue
        places, values = thinned(*record.points(role, quantity))
        axes.plot(places, values, color=_COLOURS[kind_of(role)], linewidth=1.3)
        highest = max(highest, *values) if values else highest
    if not axes.lines:
        axes.set_axis_off()
    axes.set_ylim(0, _ROOM * highest or 1)
    axes.set_xlim(0, record.places[-1])
    axes.xaxis.set_major_locator(whole_numbers(4))
    axes.yaxis.set_major_locator(whole_numbers(3))
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")


def kind_of(role: str) -> str:
    """The role without the number of an executor."""
    return re.sub(r"^executor \w+", "executors", role)


def thinned(places: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most sixty points: the medians of those that lie beside one another, bends alone."""
    if not places:
        return [], []
    parts = min(len(places), _POINTS)
    x, y = (
        [float(np.median(part)) for part in np.array_split(np.asarray(of_all), parts)]
        for of_all in (places, values)
    )
    kept = [
        number
        for number in range(parts)
        if number in (0, parts - 1) or not y[number - 1] == y[number] == y[number + 1]
    ]
    return [x[number] for number in kept], [y[number] for number in kept]


def _legend(figure: Figure, records: Sequence[Record]) -> None:
    from matplotlib.lines import Line2D

    seen = {kind_of(role) for record in records for role in record.series}
    names = {
        name: "worker of local" if name == CHILDREN and records[0].axis == STEPS else name
        for name in _COLOURS
        if name in seen - {SESSION}
    }
    lines = [Line2D([], [], color=_COLOURS[name], linewidth=1.8) for name in names]
    figure.legend(lines, list(names.values()), loc="outside upper left", ncols=len(lines))
