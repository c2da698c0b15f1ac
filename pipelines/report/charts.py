"""Curves over steps as SVG text to put into a page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
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
    with mpl.rc_context(_STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
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
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_major_formatter(_values(shares))
        if any(curve.label for curve in curves):
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(curves), borderpad=0)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(text.getvalue(), name)


def _values(shares: bool) -> Formatter:
    return PercentFormatter(1.0, decimals=None, symbol=" %") if shares else FuncFormatter(_number)


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
