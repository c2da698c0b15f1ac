"""A comparison drawn: rates side by side, and what more workers would make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.ticker import FuncFormatter, NullFormatter

from pipelines.benchmarks.strategies.advice import Summary, told_workers
from pipelines.benchmarks.strategies.projection import COUNTS, NETWORKS, Projection
from pipelines.benchmarks.strategies.results import Results
from pipelines.report.style import RUNS
from pipelines.report.svg_pictures import picture_of, whole_tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = len(RUNS)
"""Lines of a panel."""
_WIDTH, _HEAD, _ROW = 9.6, 1.2, 0.3


def comparison_picture(results: Results) -> str:
    """An SVG document: rates by strategy, and beside them what is predicted, if anything is."""
    names = [*dict.fromkeys(one.strategy for one in results.summaries)]
    panels = 1 + bool(results.projections)

    def draw(figure: Figure) -> None:
        left, *right = figure.subplots(1, panels, squeeze=False)[0]
        _draw_rates(left, results.summaries, names)
        for axes in right:
            network = next(iter(NETWORKS))
            draw_predictions(axes, fastest_of(results.projections, network))
            axes.set_title(f"more workers, {network}: predicted", loc="left", fontsize=10)

    size = (_WIDTH * panels / 2, max(_HEAD + _ROW * len(names), 3.0))
    return picture_of("Strategies compared", size, draw)


def _draw_rates(axes: Axes, found: Sequence[Summary], names: Sequence[str]) -> None:
    counts = sorted({one.workers for one in found})
    height = 0.8 / len(counts)
    for number, (workers, colour) in enumerate(zip(counts, RUNS, strict=False)):
        own = [one for one in found if one.workers == workers]
        places = [names.index(one.strategy) - 0.4 + (number + 0.5) * height for one in own]
        rates = [one.examples_per_second for one in own]
        label = told_workers(workers)
        axes.barh(places, rates, height, color=colour, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set_xlabel("examples/s")
    axes.xaxis.set_major_formatter(FuncFormatter(whole_tick))
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(counts), borderpad=0)


def fastest_of(found: Sequence[Projection], network: str) -> list[Projection]:
    """Of a network, those that are the fastest with most workers, as many as can be told apart."""
    own = [one for one in found if one.network == network]
    return sorted(own, key=lambda one: -one.rates[max(COUNTS)])[:MOST]


def draw_predictions(axes: Axes, found: Sequence[Projection]) -> None:
    """Draws predicted rates over numbers of workers."""
    for one, colour in zip(found, RUNS, strict=False):
        rates = [one.rates[count] for count in COUNTS]
        axes.plot(COUNTS, rates, color=colour, label=one.strategy, linewidth=1.8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(COUNTS[::3], [str(count) for count in COUNTS[::3]])
    axes.yaxis.set_major_formatter(FuncFormatter(whole_tick))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("workers")
    axes.set_ylabel("examples/s")
    axes.legend(loc="upper left", borderpad=0)
