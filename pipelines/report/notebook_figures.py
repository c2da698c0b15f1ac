"""Pictures for notebooks, as matplotlib figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import StrMethodFormatter

from pipelines.lanes.files import LaneManifest
from pipelines.report.page_parts import funnel_levels
from pipelines.report.svg_charts import whole_numbers

_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#9ca3af",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "font.size": 10,
    "grid.color": "#e5e7eb",
    "legend.frameon": False,
    # Matplotlib would read a dollar in a text as the start of a formula.
    "text.parse_math": False,
}
_SERIES = ("#1d4ed8", "#c2410c", "#0f766e", "#7c3aed", "#be185d", "#a16207")
_CURVES = ("#93c5fd", "#c2410c", "#1e3a8a", "#fbbf24", "#0f766e", "#1f2937")
_GREY, _PALE = "#a1a1aa", "#93c5fd"
_KINDS = {"in": _PALE, "dropped": "#c2410c", "quarantined": "#7c3aed", "kept": "#1d4ed8"}
_WIDTH = 9.0
_LONGEST_NAME = 34


def funnel_figure(lines: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the lines of ``corpus/funnel.json``, losses at the right end."""
    levels = funnel_levels(lines, with_kinds=False)
    heights = [len(bars) for bars in levels.values()]
    with mpl.rc_context(_STYLE):
        # Not pyplot: it keeps all its figures in memory until they are closed.
        figure = Figure(
            figsize=(_WIDTH, 0.27 * sum(heights) + 0.45 * len(heights) + 0.3), layout="constrained"
        )
        places = figure.subplots(len(levels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (level, bars) in zip(places, levels.items(), strict=True):
            for place, bar in enumerate(bars):
                axes.barh(place, bar.length, left=bar.start, color=_KINDS[bar.kind], height=0.7)
                axes.text(1.01, place, bar.rows, va="center")
            axes.set_title(level, fontweight="bold")
            axes.set_yticks(range(len(bars)), [bar.name for bar in bars])
            axes.invert_yaxis()
            axes.set_xlim(0, 1)
            axes.set_xticks([])
            axes.spines[:].set_visible(False)
            axes.tick_params(left=False)
        kinds = dict.fromkeys(bar.kind for bars in levels.values() for bar in bars)
        patches = [Patch(color=_KINDS[kind], label=kind) for kind in kinds]
        figure.legend(handles=patches, loc="outside lower center", ncols=len(patches))
    return figure


def rows_figure(manifest: LaneManifest) -> Figure:
    """Draw the padded length of the granules of each row, in the order of the lane files."""
    lengths = np.repeat(
        [segment.length for segment in manifest.segments],
        [segment.rows for segment in manifest.segments],
    )
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 2.6), layout="constrained")
        axes = figure.add_subplot()
        axes.stairs(lengths, fill=True, color=_PALE)
        axes.set_xlabel(f"row (one granule from each of the {manifest.lanes} lanes)")
        axes.set_ylabel("tokens per text")
        axes.margins(x=0)
        axes.grid(axis="y")
        axes.xaxis.set_major_locator(whole_numbers())
    return figure


def curves_figure(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """Draw loss curves (steps, losses), the first as the widest line, so that equal ones show."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 3.6), layout="constrained")
        axes = figure.add_subplot()
        for place, (name, (steps, losses)) in enumerate(curves.items()):
            axes.plot(
                steps,
                losses,
                label=name,
                color=_CURVES[place % len(_CURVES)],
                linewidth=1.5 + 2.5 * (len(curves) - 1 - place),
                solid_capstyle="butt",
                # A single point makes no line.
                marker="o" if len(steps) == 1 else None,
            )
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        axes.grid(axis="y")
        axes.xaxis.set_major_locator(whole_numbers())
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.legend()
    return figure


def map_figure(
    vectors: np.ndarray, groups: Sequence[Sequence[int]], marked: Mapping[str, np.ndarray]
) -> Figure:
    """Draw vectors in the plane of their first two principal components.

    Source: Pearson, "On lines and planes of closest fit to systems of points in space",
    Philosophical Magazine 2(11), 1901.

    Args:
        vectors: [texts, dimensions], of two dimensions at least.
        groups: Indices of texts in one colour, for the first few non-empty groups.
        marked: Further vectors [dimensions], by name, shown as stars in the same plane.
    """
    middle = vectors.mean(axis=0)
    _, _, directions = np.linalg.svd(vectors - middle, full_matrices=False)
    plane = directions[:2].T
    points = (vectors - middle) @ plane
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 5.4), layout="constrained")
        axes = figure.add_subplot()
        axes.scatter(
            points[:, 0], points[:, 1], s=10, color=_GREY, alpha=0.5, linewidths=0, label="a text"
        )
        coloured = zip((group for group in groups if len(group)), _SERIES, strict=False)
        for number, (group, colour) in enumerate(coloured, start=1):
            label = f"group {number}, {len(group)} texts"
            of_group = points[list(group)]
            axes.scatter(
                of_group[:, 0], of_group[:, 1], s=26, color=colour, linewidths=0, label=label
            )
        for name, vector in marked.items():
            x, y = (vector - middle) @ plane
            axes.scatter(x, y, s=110, marker="*", color="#1f2937", zorder=3)
            short = name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "…"
            axes.annotate(
                short,
                (x, y),
                xytext=(7, 4),
                textcoords="offset points",
                # Points below would make it hard to read.
                bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1},
            )
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_xlabel("first principal component")
        axes.set_ylabel("second principal component")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure
