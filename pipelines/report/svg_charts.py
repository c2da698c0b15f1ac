"""Charts as SVG text for HTML pages.

The values travel as JSON in an attribute of the picture, and ``values.js`` shows them at the
pointer, or step by step with the keyboard.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, FuncFormatter, MaxNLocator, PercentFormatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes


BLUE = "#1d4ed8"
PALE_BLUE = "#93c5fd"
ORANGE = "#c2410c"
TEAL = "#0f766e"
VIOLET = "#7c3aed"
ROSE = "#be185d"
OLIVE = "#4d7c0f"
GREY = "#a1a1aa"
INK, SOFT, AXIS, LINE = "#1f2937", "#4b5563", "#9ca3af", "#e5e7eb"

SERIES = (BLUE, ORANGE, TEAL, VIOLET, PALE_BLUE, GREY)
"""Colours of the curves of one picture, in this order."""

RUNS = (BLUE, ORANGE, TEAL, VIOLET, ROSE, OLIVE)
"""Colours of compared runs, in this order; thin lines of each show in light and in dark."""

PARTS = {
    "arithmetic": BLUE,
    "communication": ORANGE,
    "arithmetic_and_communication": VIOLET,
    "data": TEAL,
    "other": GREY,
}
"""The parts of a worker's time."""

VARIABLES = {
    BLUE: "--blue",
    PALE_BLUE: "--pale-blue",
    ORANGE: "--orange",
    TEAL: "--teal",
    VIOLET: "--violet",
    ROSE: "--rose",
    OLIVE: "--olive",
    GREY: "--grey",
    INK: "--ink",
    SOFT: "--soft",
    AXIS: "--axis",
    LINE: "--line",
}
"""CSS variables of the colours: a page has its own shades, light or dark."""


def whole_numbers(most: int | None = None) -> MaxNLocator:
    """Return ticks at whole numbers only, a single one where the axis is short.

    Matplotlib prefers two ticks to whole ones, and they look alike when rounded. ``most`` counts
    the intervals between ticks; None leaves them to matplotlib.
    """
    return MaxNLocator(nbins="auto" if most is None else most, integer=True, min_n_ticks=1)


_DIGITS = 5
"""Significant digits of a value; with all of them a page of curves would be twice as large."""


@dataclass(frozen=True)
class Series:
    """The readable values of one curve, bar or layer; only finite ones are shown.

    ``label`` is empty if the title of the picture says it.
    """

    label: str
    colour: str
    places: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True)
class Readings:
    """The readable values of a picture.

    The horizontal ``axis`` counts `step`, say. ``shares`` are shown in per cent. Values are
    ``marked`` if they are heights on the picture.
    """

    axis: str
    series: Sequence[Series]
    shares: bool = False
    marked: bool = True

    def as_json(self, axes: Axes, size: tuple[float, float]) -> str:
        """Return the readings, with the axes' place in a picture of this size, in its units."""
        (width, height), box = size, axes.get_position()
        area = [box.x0 * width, (1 - box.y1) * height, box.x1 * width, (1 - box.y0) * height]
        places = [list(of_series.places) for of_series in self.series]
        is_shared = bool(places) and all(of_series == places[0] for of_series in places)
        shared = places[0] if is_shared else None
        reading: dict[str, Any] = {
            "axis": self.axis,
            "area": [round(edge, 1) for edge in area],
            "x": _numbers(axes.get_xlim()),
            "y": _numbers(axes.get_ylim()),
            "shares": self.shares,
            "marked": self.marked,
            "series": [
                {
                    "label": series.label,
                    "colour": _in_colour_of_the_page(series.colour),
                    "values": _numbers(series.values),
                    **({} if shared is not None else {"places": _numbers(series.places)}),
                }
                for series in self.series
            ],
        }
        if shared is not None:
            reading["places"] = _numbers(shared)
        return json.dumps(reading, separators=(",", ":"), ensure_ascii=False)

    def summary(self, name: str) -> str:
        """Return a text alternative: the first and last value of each series."""
        return ". ".join(filter(None, [name, *map(self._ends, self.series)]))

    def _ends(self, series: Series) -> str:
        pairs = zip(series.places, series.values, strict=True)
        known = [(place, value) for place, value in pairs if math.isfinite(value)]
        if not known:
            return ""
        # A single point is both ends.
        ends = dict.fromkeys((known[0], known[-1]))
        readings = ", ".join(f"{self._value(value)} at {_plain(place)}" for place, value in ends)
        return f"{series.label or self.axis}: {readings}"

    def _value(self, value: float) -> str:
        return f"{100 * value:.3g} %" if self.shares else _plain(value)


def summarised(series: Sequence[Series]) -> list[Series]:
    """Return the lowest and highest value at each place, of curves without labels."""
    places, colour = series[0].places, series[0].colour
    columns = [
        [value for value in column if math.isfinite(value)] or [math.nan]
        for column in zip(*(curve.values for curve in series), strict=True)
    ]
    return [
        Series("lowest", colour, places, [min(column) for column in columns]),
        Series("highest", colour, places, [max(column) for column in columns]),
    ]


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _in_colour_of_the_page(colour: str) -> str:
    return f"var({VARIABLES[colour]})" if colour in VARIABLES else colour


def _numbers(values: Sequence[float]) -> list[float | int | None]:
    return [_number(value) for value in values]


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None  # JSON has no other word for it.
    rounded = float(f"{value:.{_DIGITS}g}") if abs(value) < 10**_DIGITS else round(value)
    return int(rounded) if rounded == int(rounded) else rounded


_STYLE = {
    # Text stays text, in the fonts of the reader, and not paths.
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10.5,
    "axes.edgecolor": AXIS,
    "axes.labelcolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": LINE,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "text.color": INK,
    "legend.frameon": False,
    # Matplotlib would read a dollar in a name as the start of a formula.
    "text.parse_math": False,
}
# The page's own background shows through.
_CLEAR = {"figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none"}
_MAX_DIGITS = 8
_POINTS = 72
"""Units of a view box to the inch."""


def picture_of(
    name: str,
    size: tuple[float, float],
    draw: Callable[[Figure], None],
    readings: Readings | None = None,
) -> str:
    """Return an `<svg>` element in the style of the page, as wide as its container.

    Args:
        name: Its title; also keeps the ids of several pictures in one page apart.
        size: Width and height in inches.
        draw: Draws into a figure; the first axes hold the readable values.
        readings: None for a picture by itself, in fixed colours.
    """
    # A fixed salt: matplotlib's ids, and so the page, are the same each time.
    style = _STYLE | {"svg.hashsalt": name} | ({} if readings is None else _CLEAR)
    with mpl.rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        canvas = FigureCanvasSVG(figure)
        draw(figure)
        text = io.StringIO()
        # `savefig` would draw everything twice, the first time for the layout alone.
        canvas.print_svg(text, metadata={"Date": None, "Creator": None})
    if readings is None:
        return _inline(text.getvalue(), name)
    view = (_POINTS * size[0], _POINTS * size[1])
    picture = _inline(
        text.getvalue(),
        name,
        f' data-values="{escape(readings.as_json(figure.axes[0], view))}"',
        f"<title>{escape(readings.summary(name))}</title>",
    )
    return re.sub(
        r": (#[0-9a-f]{6})\b", lambda found: f": {_in_colour_of_the_page(found[1])}", picture
    )


def ticks_of(shares: bool) -> Formatter:
    """Return the ticks of an axis of shares, or of other numbers."""
    return PercentFormatter(1.0, decimals=None, symbol=" %") if shares else DistinctTicks()


class DistinctTicks(Formatter):
    """Numbers with as many digits as different ticks need."""

    def __call__(self, value: float, position: int | None = None) -> str:
        """Format a single number."""
        return number_tick(value)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Format the numbers of an axis."""
        for digits in range(3, _MAX_DIGITS):
            ticks = [number_tick(value, digits) for value in values]
            if len(set(ticks)) == len(set(values)):
                break
        return ticks


def whole_tick(value: float, _: object = None) -> str:
    """Format a number without decimals."""
    return f"{value:,.0f}"


def number_tick(value: float, digits: int | None = None) -> str:
    """Format a number with so many significant digits, 3 by default."""
    return (
        f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits or 3}g}".replace("e-0", "e-")
    )


def _inline(document: str, name: str, further: str = "", title: str = "") -> str:
    """Return only the element, without a size in points: that would fix its width."""
    _, _, rest = document.partition("<svg")
    attributes, _, content = rest.partition(">")
    # Groups are numbered anew in each picture (`axes_1`), and nothing refers to them.
    content = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", content)
    view = attributes.partition('viewBox="')[2].partition('"')[0]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{view}" role="img" aria-label="{escape(name)}"{further}>{title}{content}'
    )


_ROOM = 1.06
"""The vertical axis over the highest value, so that a level line does not lie on the edge."""
_LETTERS_PER_INCH = 9
_KEY_LETTERS = 6
"""The width of a legend's line and margins, in letters."""
STEP = "step"
"""The horizontal axis of most pictures."""
FEWEST_OF_A_LINE = 3
"""Fewer values are drawn as dots."""


@dataclass(frozen=True)
class Curve:
    """One line of a chart; ``label`` is for the legend.

    Attributes:
        width: Of the line, in points.
        steps: The places of its values, if not the steps of the chart.
        dash: Lengths of line and gap, in widths of the line; empty for a solid line.
    """

    values: Sequence[float]
    colour: str = BLUE
    label: str = ""
    width: float = 1.8
    steps: Sequence[float] | None = None
    dash: tuple[float, ...] = ()

    def places(self, steps: Sequence[float]) -> Sequence[float]:
        """Return the places of its values, in a chart of these steps."""
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
    """Draw curves; see :func:`picture_of`.

    ``steps`` are the horizontal axis of curves without their own places; a curve has as many values
    as places. ``shares`` are shown in per cent, ``dots`` mark each value, for few of them.
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
        axes.margins(x=0.01)
        if from_zero:
            values = [value for curve in curves for value in curve.values if math.isfinite(value)]
            # Of zeros only, matplotlib chooses the top: an axis from 0 to 0 has no height.
            axes.set_ylim(0, _ROOM * max((*values, 0.0)) or None)
        _count(axes, axis, shares=shares)
        labels = [curve.label for curve in curves if curve.label]
        if labels and legend:
            legend_above(axes, _legend_columns(labels, size[0]))

    return picture_of(name, size, draw, Readings(axis, _series(curves, steps, axis), shares))


def _count(axes: Axes, axis: str, *, shares: bool) -> None:
    axes.set_xlabel(axis)
    axes.xaxis.set_major_locator(whole_numbers(6))
    axes.xaxis.set_major_formatter(FuncFormatter(whole_tick))
    axes.yaxis.set_major_formatter(ticks_of(shares))


def legend_above(axes: Axes, columns: int = 1) -> None:
    """Put the legend above the picture, at the right."""
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=columns, borderpad=0)


def _series(curves: Sequence[Curve], steps: Sequence[float], axis: str) -> list[Series]:
    """Return the readings of labelled or single curves, else the range of the unlabelled."""

    def series_of(curve: Curve) -> Series:
        places = curve.places(steps)
        # The step of several logged lines is their mean, perhaps a fraction.
        read = [round(place) for place in places] if axis == STEP else places
        return Series(curve.label, curve.colour, read, curve.values)

    unnamed = [series_of(curve) for curve in curves if not curve.label]
    named = [series_of(curve) for curve in curves if curve.label]
    return named + (summarised(unnamed) if len(unnamed) > 1 else unnamed)


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """Return the number that fits side by side: too wide a legend pushes the axes aside."""
    taken = sum(len(label) + _KEY_LETTERS for label in labels)
    return len(labels) if taken <= _LETTERS_PER_INCH * width else math.ceil(len(labels) / 2)


def histogram(
    name: str,
    counts: Mapping[int, int],
    edges: Sequence[int],
    *,
    labels: tuple[str, str],
    edge_label: str,
    size: tuple[float, float] = (10, 3),
) -> str:
    """Draw how often each whole number occurs; see :func:`picture_of`.

    ``counts`` are by number; not all numbers are negative. Lines are drawn right of ``edges``, and
    ``edge_label`` names them in the legend.
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
            legend_above(axes)

    bars = Series(labels[1], PALE_BLUE, range(last + 1), heights)
    return picture_of(name, size, draw, Readings("length", [bars]))


def stack(
    name: str,
    steps: Sequence[float],
    layers: Mapping[str, tuple[Sequence[float], str]],
    *,
    size: tuple[float, float] = (10, 3),
) -> str:
    """Draw stacked shares over the steps, the lowest layer (values, colour) first."""

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
        _count(axes, STEP, shares=True)

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
    """Draw how values are spread, as shares of their number, between ascending bin edges."""
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
        legend_above(axes, len(shapes))

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
    """Draw panels of values over sizes that double, side by side, as a whole SVG document."""

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
