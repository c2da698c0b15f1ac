"""Pictures as SVG text to put into a page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, FuncFormatter, MaxNLocator, PercentFormatter

_STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10.5,
    "axes.edgecolor": "#9ca3af",
    "axes.labelcolor": "#4b5563",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e5e7eb",
    "xtick.color": "#4b5563",
    "ytick.color": "#4b5563",
    "text.color": "#1f2937",
    "legend.frameon": False,
}
BLUE, PALE_BLUE, ORANGE = "#1d4ed8", "#93c5fd", "#c2410c"


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
) -> str:
    """An `<svg>` element that takes the width of what it is put into.

    Args:
        name: What it shows; also keeps the ids of several charts in one page apart.
        steps: The horizontal axis.
        curves: Of as many values as there are steps.
        size: Width and height in inches, for the proportions.
        shares: Whether values are shares, to be shown in per cent.
        from_zero: Whether the vertical axis begins at zero.
    """

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for curve in curves:
            # A single point makes no line, so it is shown as a dot.
            axes.plot(
                steps,
                curve.values,
                color=curve.colour,
                label=curve.label or None,
                linewidth=curve.width,
                marker="o" if len(steps) == 1 else None,
            )
        axes.set_xlabel("step")
        axes.margins(x=0.01)
        if from_zero:
            axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axes.xaxis.set_major_formatter(FuncFormatter(_whole))
        axes.yaxis.set_major_formatter(_values(shares))
        if any(curve.label for curve in curves):
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(curves), borderpad=0)

    return _picture(name, size, draw)


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
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axes.yaxis.set_major_formatter(FuncFormatter(_whole))
        if edges:
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderpad=0)

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
            axes.yaxis.set_major_formatter(FuncFormatter(_number))

    return _picture(name, (4.6 * len(panels), 3), draw)


def _picture(name: str, size: tuple[float, float], draw: Callable[[Figure], None]) -> str:
    """Draws in the style of the page."""
    with mpl.rc_context(_STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(text.getvalue(), name)


def _values(shares: bool) -> Formatter:
    return PercentFormatter(1.0, decimals=None, symbol=" %") if shares else FuncFormatter(_number)


def _whole(value: float, _: object = None) -> str:
    return f"{value:,.0f}"


def _number(value: float, _: object = None) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}".replace("e-0", "e-")


def _inline(document: str, name: str) -> str:
    """The element alone, without the size in points that would fix its width."""
    _, _, rest = document.partition("<svg")
    attributes, _, content = rest.partition(">")
    # Groups are numbered anew in each picture (`axes_1`), and nothing refers to them.
    content = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", content)
    view = attributes.partition('viewBox="')[2].partition('"')[0]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{view}" role="img" aria-label="{name}">{content}'
    )
