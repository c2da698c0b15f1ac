"""The page of a comparison: rates side by side, and the predicted rates of more workers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.ticker import FuncFormatter, NullFormatter

from pipelines.compare import advice as rule
from pipelines.compare.advice import Summary, efficiency, workers_in_words
from pipelines.compare.prediction import COUNTS, NETWORKS, TABLE_COUNTS, Projection
from pipelines.compare.results import COLUMNS, Results, formatted, smooth_curve
from pipelines.compare.strategy import PAPER
from pipelines.files import storage
from pipelines.report.page_parts import Bar, Chart, duration, per_cent, render, whole
from pipelines.report.svg_charts import RUNS, Curve, Readings, Series, chart, picture_of, whole_tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST = len(RUNS)
"""The most lines of a panel, one per colour."""
_WIDTH, _HEAD, _ROW = 9.6, 1.2, 0.3


def comparison_picture(results: Results) -> str:
    """Return an SVG document: rates by strategy, and predictions, if there are any."""
    names = [*dict.fromkeys(summary.strategy for summary in results.summaries)]
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
    counts = sorted({summary.workers for summary in found})
    height = 0.8 / len(counts)
    for number, (workers, colour) in enumerate(zip(counts, RUNS, strict=False)):
        group = [summary for summary in found if summary.workers == workers]
        # The bars of a strategy share 0.8 of its row, around the tick.
        offset = (number + 0.5) * height - 0.4
        places = [names.index(summary.strategy) + offset for summary in group]
        rates = [summary.examples_per_second for summary in group]
        label = workers_in_words(workers)
        axes.barh(places, rates, height, color=colour, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set_xlabel("examples/s")
    axes.xaxis.set_major_formatter(FuncFormatter(whole_tick))
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(counts), borderpad=0)


def fastest_of(found: Sequence[Projection], network: str) -> list[Projection]:
    """Return the fastest on a network with the most workers, at most one per colour."""
    group = [projection for projection in found if projection.network == network]
    return sorted(group, key=lambda projection: -projection.rates[max(COUNTS)])[:MOST]


def draw_predictions(axes: Axes, found: Sequence[Projection]) -> None:
    """Draw predicted rates over numbers of workers."""
    for projection, colour in zip(found, RUNS, strict=False):
        rates = [projection.rates[count] for count in COUNTS]
        axes.plot(COUNTS, rates, color=colour, label=projection.strategy, linewidth=1.8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(COUNTS[::3], [str(count) for count in COUNTS[::3]])
    axes.yaxis.set_major_formatter(FuncFormatter(whole_tick))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("workers")
    axes.set_ylabel("examples/s")
    axes.legend(loc="upper left", borderpad=0)


CSV, MARKDOWN = "strategies.csv", "strategies.md"
PICTURE, PAGE = "strategies.svg", "strategies.html"
CONCLUDED = (
    "The paper, with GPT-2 in PyTorch on GPUs, concludes that distributed parameter servers with "
    "mixed precision are the fastest on one node, and Horovod with mixed precision the most robust "
    "on one or several."
)


def write_results(results: Results, folder: Path) -> Path:
    """Write the table as CSV and Markdown, a picture, and the page; return the page's path."""
    storage.write_text(folder / CSV, results.comma_separated())
    storage.write_text(folder / MARKDOWN, results.markdown())
    storage.write_text(folder / PICTURE, comparison_picture(results))
    storage.write_text(folder / PAGE, strategies_page(results))
    return folder / PAGE


def strategies_page(results: Results) -> str:
    """Return the page as HTML."""
    fastest = max(results.summaries, key=lambda summary: summary.examples_per_second)
    rows = results.rows()
    return render(
        "strategies.html",
        {
            "name": "Strategies compared",
            "kind": "comparison of strategies",
            "sentence": "The same lanes, seed and examples a step, in turn on this machine",
            "scores": [],
            "tiles": {
                "strategies": len({summary.strategy for summary in results.summaries}),
                "trainings": len(results.readings),
                f"examples/s, {fastest.strategy}": whole(fastest.examples_per_second),
            },
            "advice": results.advice,
            "rule": rule_points(),
            "rates": rate_bars(results.summaries),
            "charts": _charts(results),
            "scale": scale_charts(results.projections),
            "told": TABLE_COUNTS,
            "projections": [
                {
                    "name": projection.strategy,
                    "network": projection.network,
                    "rates": [whole(projection.rates[count]) for count in TABLE_COUNTS],
                    "until": _until(projection.pays_until),
                }
                for projection in results.projections
            ],
            "paper": paper_lines(results),
            "source": PAPER,
            "concluded": CONCLUDED,
            "columns": COLUMNS.values(),
            "rows": [[formatted(name, row[name]) for name in COLUMNS] for row in rows],
            "moment": duration(results.equal_time()),
            "missing": results.missing,
        },
    )


def _until(count: int) -> str:
    # Rates beyond the largest number are not predicted.
    return f"more than {count}" if count == max(COUNTS) else str(count)


def rule_points() -> list[str]:
    """Return the points of the rule of advice, from the docstring of its module."""
    # One text for readers of the code and of the page.
    text = inspect.cleandoc(rule.__doc__ or "")
    for name in ("LAST", "LOSS_ROOM", "ERRORS", "RATE_ROOM", "PAYS", "TRAVELS"):
        value = getattr(rule, name)
        shown = f"{value:g}" if name in ("ERRORS", "PAYS") else f"{100 * value:.0f} %"
        text = text.replace(f":data:`{name}`", shown)
    return [" ".join(point.split()) for point in re.split(r"\n\d\. ", text)[1:]]


def rate_bars(found: Sequence[Summary]) -> dict[str, list[Bar]]:
    """Return the rates by number of workers, the fastest first."""
    most = max(summary.examples_per_second for summary in found)
    shares = efficiency(found)
    bars: dict[str, list[Bar]] = {}
    for workers in sorted({summary.workers for summary in found}):
        group = [summary for summary in found if summary.workers == workers]
        group.sort(key=lambda summary: -summary.examples_per_second)
        title = "One worker" if workers == 1 else f"{workers} workers"
        bars[title] = [_bar(summary, most, shares) for summary in group]
    return bars


def _bar(summary: Summary, most: float, shares: Mapping[tuple[str, int], float]) -> Bar:
    share = shares.get((summary.strategy, summary.workers))
    label = "" if share is None or summary.workers == 1 else per_cent(share)
    rate = summary.examples_per_second
    return Bar(summary.strategy, whole(rate), 0.0, rate / most, "kept", label)


def _charts(results: Results) -> list[Chart]:
    """Draw losses over examples and over time, of the fastest strategies."""
    chosen = drawn_strategies(results.summaries)
    by_examples, by_time = [], []
    for summary, colour in zip(chosen, RUNS, strict=False):
        examples, seconds, losses = smooth_curve(results.of(summary)[-1])
        name = f"{summary.strategy}, {summary.workers}"
        by_examples.append(Curve(losses, colour, name, steps=examples))
        by_time.append(Curve(losses, colour, name, steps=seconds))
    return [
        Chart("Loss after examples", _drawn("Loss after examples", by_examples, "examples")),
        Chart("Loss after seconds", _drawn("Loss after seconds", by_time, "seconds")),
    ]


def drawn_strategies(found: Sequence[Summary]) -> list[Summary]:
    """Return the fastest strategies, each with its fastest number of workers."""
    return _fastest(found)[:MOST]


def _fastest(found: Sequence[Summary]) -> list[Summary]:
    best: dict[str, Summary] = {}
    for summary in sorted(found, key=lambda summary: -summary.examples_per_second):
        best.setdefault(summary.strategy, summary)
    return [*best.values()]


def _drawn(name: str, curves: Sequence[Curve], axis: str) -> str:
    places = curves[0].steps or ()
    return chart(name, places, curves, size=(5.2, 3.2), from_zero=False, axis=axis)


def scale_charts(found: Sequence[Projection]) -> list[Chart]:
    """Draw predicted rates over numbers of workers, a picture for each network."""
    return [
        Chart(network, _scale_picture(network, fastest))
        for network in NETWORKS
        if (fastest := fastest_of(found, network))
    ]


def _scale_picture(network: str, found: Sequence[Projection]) -> str:
    def draw(figure: Figure) -> None:
        draw_predictions(figure.add_subplot(), found)

    series = [
        Series(projection.strategy, colour, COUNTS, [projection.rates[count] for count in COUNTS])
        for projection, colour in zip(found, RUNS, strict=False)
    ]
    readings = Readings("workers", series, marked=False)
    return picture_of(f"Predicted rates, {network}", (5.2, 3.6), draw, readings)


def paper_lines(results: Results) -> list[dict[str, Any]]:
    """Return the strategies of the paper, each with its fastest number of workers."""
    strategies = results.strategies
    of_paper = [summary for summary in results.summaries if strategies[summary.strategy].paper]
    return [
        {
            "there": strategies[summary.strategy].paper,
            "here": summary.strategy,
            "workers": summary.workers,
            "rate": whole(summary.examples_per_second),
            "place": place,
        }
        for place, summary in enumerate(_fastest(of_paper), start=1)
    ]
