"""How pictures look: their colours, what style sheets call them, and the ticks of their axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.ticker import MaxNLocator

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
"""Curves of one picture, in this order."""

RUNS = (BLUE, ORANGE, TEAL, VIOLET, ROSE, OLIVE)
"""Runs that are compared, in this order; thin lines in each can be seen in light and in dark."""

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
"""A page shows them in shades of its own: its reader may like it light or dark."""


def whole_numbers(most: int | None = None) -> MaxNLocator:
    """Ticks at whole numbers only, a single one where the axis is short.

    Matplotlib would rather have two ticks than whole ones, and all of them look alike when rounded.

    Args:
        most: Intervals between ticks; None: as matplotlib chooses.
    """
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins="auto" if most is None else most, integer=True, min_n_ticks=1)
