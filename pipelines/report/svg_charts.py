"""Pictures as SVG text to put into a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from pipelines.report.readings import Readings, Series, summarised
from pipelines.report.style import BLUE, ORANGE, PALE_BLUE, whole_numbers
from pipelines.report.svg_pictures import (
    DistinctTicks,
    number_tick,
    picture_of,
    ticks_of,
    whole_tick,
)

_ROOM = 1.06
"""The vertical axis over the highest value, so that a level line does not lie on the edge."""
_LETTERS_PER_INCH = 9
_KEY_LETTERS = 6
"""What a legend's line and its margins take, in letters."""
STEP = "step"
"""What the horizontal axis counts in most pictures."""
FEWEST_OF_A_LINE = 3
"""Of fewer values there are dots."""


@dataclass(frozen=True)
class Curve:
    """One line of a chart.

    Attributes:
        values: In their order.
        colour: Of :mod:`pipelines.report.style`.
        label: Shows in the legend, where it is not empty.
        width: Of the line, in points.
        steps: Where its values are, if not at the steps of the chart.
        dash: Lengths of line and gap, in widths of the line; empty where it is not broken.
    """

    values: Sequence[float]
    colour: str = BLUE
    label: str = ""
    width: float = 1.8
    steps: Sequence[float] | None = None
    dash: tuple[float, ...] = ()

    def places(self, steps: Sequence[float]) -> Sequence[float]:
        """Where its values are, in a chart of these steps."""
        return steps if self.steps is None else self.steps


def chart(
    name: str,
    steps: Sequence[float],
    curves: Sequence[Curve],
    *,
    size: tuple[float, float] = (5.2, 2.5),
    shares: bool = False,
    from_zero: bool = True,
    dots: bool = False,
    axis: str = STEP,
    legend: bool = True,
) -> str:
    """An `<svg>` element that takes the width of what it is put into.

    Args:
        name: What it shows; also keeps the ids of several charts in one page apart.
        steps: The horizontal axis.
        curves: Of as many values as there are steps.
        size: Width and height in inches, for the proportions.
        shares: Whether values are shares, to be shown in per cent.
        from_zero: Whether the vertical axis begins at zero.
        dots: Whether each value is marked, for few of them.
        axis: What the horizontal axis counts.
        legend: Whether the names of the curves stand on the picture.
    """

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for curve in curves:
            places = curve.places(steps)
            # Two points are always on a line, so the line would say nothing.
            has_line = len(places) >= FEWEST_OF_A_LINE
            axes.plot(
                places,
                curve.values,
                color=curve.colour,
                label=curve.label or None,
                linewidth=curve.width,
                linestyle=((0, curve.dash) if curve.dash else "solid") if has_line else "none",
                marker="o" if dots or not has_line else None,
                markersize=4.5,
            )
        axes.set_xlabel(axis)
        axes.margins(x=0.01)
        if from_zero:
            axes.set_ylim(0, _ROOM * max((*_finite(curves), 0.0)) or None)
        axes.xaxis.set_major_locator(whole_numbers(6))
        axes.xaxis.set_major_formatter(FuncFormatter(whole_tick))
        axes.yaxis.set_major_formatter(ticks_of(shares))
        labels = [curve.label for curve in curves if curve.label]
        if labels and legend:
            columns = _legend_columns(labels, size[0])
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=columns, borderpad=0)

    return picture_of(name, size, draw, Readings(axis, _series(curves, steps, axis), shares))


def _series(curves: Sequence[Curve], steps: Sequence[float], axis: str) -> list[Series]:
    """What can be read off curves: each that has a name, or is alone."""

    def series_of(curve: Curve) -> Series:
        places = curve.places(steps)
        # That of several logged lines is their mean.
        read = [round(place) for place in places] if axis == STEP else places
        return Series(curve.label, curve.colour, read, curve.values)

    unnamed = [series_of(curve) for curve in curves if not curve.label]
    named = [series_of(curve) for curve in curves if curve.label]
    return named + (summarised(unnamed) if len(unnamed) > 1 else unnamed)


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """As many as fit beside one another: a legend that is too wide pushes the axes aside."""
    taken = sum(len(label) + _KEY_LETTERS for label in labels)
    return len(labels) if taken <= _LETTERS_PER_INCH * width else math.ceil(len(labels) / 2)


def _finite(curves: Sequence[Curve]) -> list[float]:
    return [value for curve in curves for value in curve.values if math.isfinite(value)]


def histogram(
    name: str,
    counts: Mapping[int, int],
    edges: Sequence[int],
    *,
    labels: tuple[str, str],
    edge_label: str,
    size: tuple[float, float] = (10, 3),
) -> str:
    """How often each whole number occurs, as an `<svg>` element like that of :func:`chart`.

    Args:
        name: See :func:`chart`.
        counts: Numbers, not all of them negative, to how often they occur.
        edges: Lines are drawn right of these numbers.
        labels: Of the two axes.
        edge_label: What the lines are, for the legend.
        size: See :func:`chart`.
    """
    last = max(*counts, *edges)
    heights = [counts.get(number, 0) for number in range(last + 1)]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.stairs(
            heights, [number - 0.5 for number in range(last + 2)], fill=True, color=PALE_BLUE
        )
        for place, edge in enumerate(edges):
            axes.axvline(
                edge + 0.5,
                color=ORANGE,
                linewidth=1.4,
                linestyle=(0, (4, 2)),
                label=None if place else edge_label,
            )
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        axes.set_xlim(min(counts) - 1, last + 1)
        axes.xaxis.set_major_locator(whole_numbers(12))
        axes.yaxis.set_major_locator(whole_numbers(5))
        axes.yaxis.set_major_formatter(FuncFormatter(whole_tick))
        if edges:
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderpad=0)

    bars = Series(labels[1], PALE_BLUE, range(last + 1), heights)
    return picture_of(name, size, draw, Readings("length", [bars]))


def stack(
    name: str,
    steps: Sequence[float],
    layers: Mapping[str, tuple[Sequence[float], str]],
    *,
    size: tuple[float, float] = (10, 3),
) -> str:
    """Shares of a whole over the steps, one on the other, as an `<svg>` like :func:`chart`'s.

    Args:
        name: See :func:`chart`.
        steps: The horizontal axis.
        layers: By name, the lowest first: as many values as there are steps, and a colour.
        size: See :func:`chart`.
    """

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        values = [layer for layer, _ in layers.values()]
        colours = [colour for _, colour in layers.values()]
        if len(steps) == 1:
            # A single moment has no area.
            base = 0.0
            for (share,), colour in zip(values, colours, strict=True):
                axes.bar(steps, [share], bottom=base, color=colour, width=1.0)
                base += share
            axes.set_xlim(steps[0] - 3, steps[0] + 3)
        else:
            axes.stackplot(steps, values, colors=colours, linewidth=0)
            axes.set_xlim(steps[0], steps[-1])
        axes.set_ylim(0, 1)
        axes.set_xlabel(STEP)
        axes.xaxis.set_major_locator(whole_numbers(6))
        axes.xaxis.set_major_formatter(FuncFormatter(whole_tick))
        axes.yaxis.set_major_formatter(ticks_of(shares=True))

    places = [round(step) for step in steps]
    # The highest first, as on the picture.
    series = [
        Series(label, colour, places, values)
        for label, (values, colour) in reversed(list(layers.items()))
    ]
    return picture_of(name, size, draw, Readings(STEP, series, shares=True, marked=False))


@dataclass(frozen=True)
class Distribution:
    """How often values occur, as a filled shape or as an outline."""

    values: Sequence[float]
    colour: str
    label: str
    fill: bool = True


def distributions(
    name: str,
    shapes: Sequence[Distribution],
    edges: Sequence[float],
    *,
    label: str,
    size: tuple[float, float] = (5.2, 2.5),
) -> str:
    """How values are spread, as shares of their number, as an `<svg>` like :func:`chart`'s.

    Args:
        name: See :func:`chart`.
        shapes: What is compared.
        edges: Of the bins, ascending.
        label: Of the horizontal axis.
        size: See :func:`chart`.
    """

    shares = [np.histogram(shape.values, edges)[0] / max(len(shape.values), 1) for shape in shapes]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for shape, heights in zip(shapes, shares, strict=True):
            axes.stairs(
                heights,
                edges,
                fill=shape.fill,
                color=shape.colour,
                label=shape.label,
                linewidth=1.8,
            )
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(bottom=0)
        axes.set_xlabel(label)
        axes.yaxis.set_major_formatter(ticks_of(shares=True))
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(shapes), borderpad=0)

    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    series = [
        Series(shape.label, shape.colour, middles, [float(share) for share in heights])
        for shape, heights in zip(shapes, shares, strict=True)
    ]
    return picture_of(name, size, draw, Readings(label, series, shares=True))


@dataclass(frozen=True)
class Panel:
    """One of several pictures over the same sizes."""

    title: str
    values: Sequence[float]


def scaling(name: str, sizes: Sequence[float], panels: Sequence[Panel], label: str) -> str:
    """What grows with a size, side by side over sizes that double, as a whole SVG document.

    Args:
        name: See :func:`chart`.
        sizes: The horizontal axis.
        panels: Of as many values as there are sizes.
        label: Of the horizontal axis.
    """

    def draw(figure: Figure) -> None:
        places = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, panel in zip(places, panels, strict=True):
            axes.plot(sizes, panel.values, color=BLUE, marker="o", linewidth=1.8)
            axes.set_title(panel.title, loc="left", fontsize=11)
            axes.set_xlabel(label)
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, [number_tick(size) for size in sizes])
            axes.set_ylim(0, 1.15 * max(panel.values))
            axes.yaxis.set_major_formatter(DistinctTicks())

    return picture_of(name, (4.6 * len(panels), 3), draw)
