"""How a picture is drawn as SVG text to put into a page: its style, its ticks, its values."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from html import escape

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, PercentFormatter

from pipelines.report.readings import Readings
from pipelines.report.style import AXIS, INK, LINE, SOFT, VARIABLES

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
_MAX_DIGITS = 8
_POINTS = 72
"""To the inch, the units of a view box."""


def picture_of(
    name: str,
    size: tuple[float, float],
    draw: Callable[[Figure], None],
    readings: Readings | None = None,
) -> str:
    """An `<svg>` element in the style of the page.

    Args:
        name: What it shows; also keeps the ids of several pictures in one page apart.
        size: Width and height in inches.
        draw: Draws into a figure; what can be read off is in its first axes.
        readings: What can be read off. None: the picture stands alone, in fixed colours.
    """
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
    return _in_colours_of_the_page(picture)


def _in_colours_of_the_page(picture: str) -> str:
    def replaced(found: re.Match[str]) -> str:
        variable = VARIABLES.get(found[1])
        return f": var({variable})" if variable else found[0]

    return re.sub(r": (#[0-9a-f]{6})\b", replaced, picture)


def ticks_of(shares: bool) -> Formatter:
    """Of a vertical axis of shares, or of other numbers."""
    return PercentFormatter(1.0, decimals=None, symbol=" %") if shares else DistinctTicks()


class DistinctTicks(Formatter):
    """Numbers with as many digits as it takes for all ticks to differ."""

    def __call__(self, value: float, position: int | None = None) -> str:
        """A single number."""
        return number_tick(value)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """The numbers of an axis."""
        for digits in range(3, _MAX_DIGITS):
            ticks = [number_tick(value, digits) for value in values]
            if len(set(ticks)) == len(set(values)):
                break
        return ticks


def whole_tick(value: float, _: object = None) -> str:
    """A number without what is behind the point."""
    return f"{value:,.0f}"


def number_tick(value: float, digits: int | None = None) -> str:
    """With so many significant digits, 3 by default."""
    return (
        f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits or 3}g}".replace("e-0", "e-")
    )


def _inline(document: str, name: str, further: str = "", title: str = "") -> str:
    """The element alone, without the size in points that would fix its width.

    Args:
        document: As matplotlib writes it.
        name: For people.
        further: Attributes.
        title: The first element within.
    """
    _, _, rest = document.partition("<svg")
    attributes, _, content = rest.partition(">")
    # Groups are numbered anew in each picture (`axes_1`), and nothing refers to them.
    content = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", content)
    view = attributes.partition('viewBox="')[2].partition('"')[0]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{view}" role="img" aria-label="{escape(name)}"{further}>{title}{content}'
    )
