"""What was counted in a soak, a row of panels for each engine, as an SVG document."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipelines.benchmarks.soak.record import STEPS, Record
from pipelines.benchmarks.soak.watching import (
    CHILDREN,
    DRIVER,
    DRIVER_JAVA,
    FILES,
    HEAP,
    MEMORY,
    SOCKETS,
    THREADS,
)
from pipelines.report.style import BLUE, ORANGE, ROSE, TEAL, VIOLET, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS: Mapping[str, str] = {
    MEMORY: "memory without Java's heap, MiB",
    HEAP: "Java's heap, alive, MiB",
    THREADS: "threads",
    FILES: "open files",
    SOCKETS: "sockets",
}
_COLOURS: Mapping[str, str] = {
    DRIVER: BLUE,
    DRIVER_JAVA: ORANGE,
    "executors, Java": TEAL,
    "executors, Python": VIOLET,
    CHILDREN: ROSE,
}
_SIZE = (2.25, 1.25)
_HEAD = 0.6
_POINTS = 60
_ROOM = 1.15


def soak_picture(records: Sequence[Record]) -> str:
    """A row for each record, a panel for each quantity, and a line for each role.

    Args:
        records: All of steps, or all of runs.
    """
    from pipelines.report.svg_pictures import picture_of

    def draw(figure: Figure) -> None:
        rows = figure.subplots(len(records), len(_PANELS), squeeze=False, sharex="row")
        for record, row in zip(records, rows, strict=True):
            for quantity, axes in zip(_PANELS, row, strict=True):
                _panel(axes, record, quantity)
            row[0].set_ylabel(record.case, color="black", fontsize=9)
        for title, axes in zip(_PANELS.values(), rows[0], strict=True):
            axes.set_title(title, loc="left", fontsize=9)
        for axes in rows[-1]:
            axes.set_xlabel(f"{records[0].axis}s", fontsize=9)
        _legend(figure, records)

    size = (_SIZE[0] * len(_PANELS), _HEAD + _SIZE[1] * len(records))
    return picture_of(f"Soak by {records[0].axis}s", size, draw)


def _panel(axes: Axes, record: Record, quantity: str) -> None:
    highest = 0.0
    for role in sorted(record.series):
        colour = _COLOURS.get(kind_of(role))
        if colour is None or quantity not in record.series[role]:
            continue
        places, values = thinned(*record.points(role, quantity))
        axes.plot(places, values, color=colour, linewidth=1.3)
        highest = max(highest, *values) if values else highest
    axes.set_ylim(0, _ROOM * highest or 1)
    axes.margins(x=0.01)
    axes.xaxis.set_major_locator(whole_numbers(4))
    axes.yaxis.set_major_locator(whole_numbers(3))
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")


def kind_of(role: str) -> str:
    """The role without the number of an executor."""
    return re.sub(r"^executor \w+", "executors", role)


def thinned(places: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most sixty points: the median of those that lie beside one another."""
    if not places:
        return [], []
    parts = min(len(places), _POINTS)
    return (
        [float(np.median(part)) for part in np.array_split(np.asarray(places), parts)],
        [float(np.median(part)) for part in np.array_split(np.asarray(values), parts)],
    )


def _legend(figure: Figure, records: Sequence[Record]) -> None:
    from matplotlib.lines import Line2D

    seen = {kind_of(role) for record in records for role in record.series}
    names = {
        name: "worker of local" if name == CHILDREN and records[0].axis == STEPS else name
        for name in _COLOURS
        if name in seen
    }
    lines = [Line2D([], [], color=_COLOURS[name], linewidth=1.8) for name in names]
    figure.legend(lines, list(names.values()), loc="outside upper left", ncols=len(lines))
