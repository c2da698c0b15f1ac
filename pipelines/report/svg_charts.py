"""Pictures as SVG text to put into a page."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, FuncFormatter, PercentFormatter

from pipelines.report.style import (
    AXIS,
    BLUE,
    INK,
    LINE,
    ORANGE,
    PALE_BLUE,
    SOFT,
    VARIABLES,
    whole_numbers,
)

_STYLE = {
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
_ROOM = 1.06
"""The vertical axis over the highest value, so that a level line does not lie on the edge."""
_LETTERS_PER_INCH = 9
_KEY_LETTERS = 6
"""What a legend's line and its margins take, in letters."""
_MAX_DIGITS = 8
FEWEST_OF_A_LINE = 3
"""Of fewer values there are dots."""


@dataclass(frozen=True)
class Curve:
    """One line of a chart; ``label`` shows in the legend, where it is not empty."""

    values: Sequence[float]
    colour: str = BLUE
    label: str = ""
    width: float = 1.8


def chart(
    name: str,
    steps: Sequence[float],
    curves: Sequence[Curve],
    *,
    size: tuple[float, float] = (5.2, 2.5),
    shares: bool = False,
    from_zero: bool = True,
    dots: bool = False,
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
    """

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for curve in curves:
            axes.plot(
                steps,
                curve.values,
                color=curve.colour,
                label=curve.label or None,
                linewidth=curve.width,
                # Two points are always on a line, so the line would say nothing.
                linestyle="none" if len(steps) < FEWEST_OF_A_LINE else "solid",
                marker="o" if dots or len(steps) < FEWEST_OF_A_LINE else None,
                markersize=4.5,
            )
        axes.set_xlabel("step")
        axes.margins(x=0.01)
        if from_zero:
            axes.set_ylim(0, _ROOM * max((*_finite(curves), 0.0)) or None)
        axes.xaxis.set_major_locator(whole_numbers(6))
        axes.xaxis.set_major_formatter(FuncFormatter(_whole))
        axes.yaxis.set_major_formatter(_values(shares))
        labels = [curve.label for curve in curves if curve.label]
        if labels:
            columns = _legend_columns(labels, size[0])
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=columns, borderpad=0)

    return _picture(name, size, draw)


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

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        heights = [counts.get(number, 0) for number in range(last + 1)]
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
        axes.yaxis.set_major_formatter(FuncFormatter(_whole))
        if edges:
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderpad=0)

    return _picture(name, size, draw)


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
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(whole_numbers(6))
        axes.xaxis.set_major_formatter(FuncFormatter(_whole))
        axes.yaxis.set_major_formatter(_values(shares=True))

    return _picture(name, size, draw)


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

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for shape in shapes:
            heights, _ = np.histogram(shape.values, edges)
            axes.stairs(
                heights / max(len(shape.values), 1),
                edges,
                fill=shape.fill,
                color=shape.colour,
                label=shape.label,
                linewidth=1.8,
            )
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(bottom=0)
        axes.set_xlabel(label)
        axes.yaxis.set_major_formatter(_values(shares=True))
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(shapes), borderpad=0)

    return _picture(name, size, draw)


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
            axes.set_xticks(sizes, [_number(size) for size in sizes])
            axes.set_ylim(0, 1.15 * max(panel.values))
            axes.yaxis.set_major_formatter(_DistinctTicks())

    return _picture(name, (4.6 * len(panels), 3), draw, alone=True)


def _picture(
    name: str, size: tuple[float, float], draw: Callable[[Figure], None], *, alone: bool = False
) -> str:
    """Draws in the style of the page; a standalone picture has fixed colours."""
    style = _STYLE | {"svg.hashsalt": name} | ({} if alone else _CLEAR)
    with mpl.rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    picture = _inline(text.getvalue(), name)
    return picture if alone else _in_colours_of_the_page(picture)


def _in_colours_of_the_page(picture: str) -> str:
    def replaced(found: re.Match[str]) -> str:
        variable = VARIABLES.get(found[1])
        return f": var({variable})" if variable else found[0]

    return re.sub(r": (#[0-9a-f]{6})\b", replaced, picture)


def _values(shares: bool) -> Formatter:
    return PercentFormatter(1.0, decimals=None, symbol=" %") if shares else _DistinctTicks()


class _DistinctTicks(Formatter):
    """Numbers with as many digits as it takes for all ticks to differ."""

    def __call__(self, value: float, position: int | None = None) -> str:
        return _number(value)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        for digits in range(3, _MAX_DIGITS):
            ticks = [_number(value, digits) for value in values]
            if len(set(ticks)) == len(set(values)):
                break
        return ticks


def _whole(value: float, _: object = None) -> str:
    return f"{value:,.0f}"


def _number(value: float, digits: int | None = None) -> str:
    """With so many significant digits, 3 by default."""
    return (
        f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits or 3}g}".replace("e-0", "e-")
    )


def _inline(document: str, name: str) -> str:
    """The element alone, without the size in points that would fix its width."""
    _, _, rest = document.partition("<svg")
    attributes, _, content = rest.partition(">")
    # Groups are numbered anew in each picture (`axes_1`), and nothing refers to them.
    content = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", content)
    view = attributes.partition('viewBox="')[2].partition('"')[0]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{view}" role="img" aria-label="{escape(name)}">{content}'
    )
