"""What jobs show in a terminal: the figures of an evaluation, and what a search found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pipelines.errors import printable
from pipelines.evaluation.intervals import BETTER, CANNOT_BE_TOLD, WORSE
from pipelines.report.comparison import Comparison, compare
from pipelines.report.verdict import MIXED

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from pipelines.search.text_search import Hit

NOT_MEASURED = "–"  # noqa: RUF001 - a dash, as tables have it
VERDICT_STYLES = {BETTER: "bold green", WORSE: "bold red", MIXED: "bold", CANNOT_BE_TOLD: "bold"}
_ANY_WIDTH = 1000
_COLOURS = {BETTER: "green", WORSE: "red", CANNOT_BE_TOLD: "", "": ""}


def metrics_table(figures: Mapping[str, Any], width: int | None = None) -> Table:
    """A line for each figure, before and after training, with the difference.

    Green and red are what the verdict calls better and worse: the first figure of each set alone
    is tested. Behind a difference stands its interval.

    Args:
        figures: As ``metrics.json`` has them; see :func:`pipelines.report.comparison.compare`.
        width: Characters of the screen. Where not all columns have room, the lines of an evaluation
            stand below its name; None if they have.
    """
    from rich.measure import Measurement

    from pipelines.progress.screen import Screen

    lines = compare(figures)
    table = _one_row_each(lines)
    screen = Screen(width=_ANY_WIDTH)
    if width is not None and Measurement.get(screen, screen.options, table).maximum > width:
        table = _below_names(lines)
    table.caption = None if lines else "nothing was measured"
    if any(line.interval for line in lines):
        table.caption = (
            "(95 % interval, by paired bootstrap); of each set the first figure is tested, and "
            "coloured where it is better or worse"
        )
    return table


def _one_row_each(lines: Sequence[Comparison]) -> Table:
    from rich.table import Table

    table = Table()
    table.add_column("evaluation", overflow="fold")
    table.add_column("measured on")
    _add_figures(table)
    for evaluation, group in groupby(lines, lambda line: line.evaluation):
        for place, line in enumerate(group):
            names = ("", "") if place else (_cell(evaluation), _cell(line.basis))
            table.add_row(*names, _cell(line.metric), *_figures(line))
        table.add_section()
    return table


def _below_names(lines: Sequence[Comparison]) -> Table:
    from rich.table import Table

    table = Table()
    _add_figures(table, named="evaluation and metric")
    for evaluation, group in groupby(lines, lambda line: line.evaluation):
        for place, line in enumerate(group):
            if not place:
                table.add_row(_cell(evaluation, "bold"))
                table.add_row(_cell(line.basis))
            table.add_row(_cell(f"  {line.metric}"), *_figures(line))
        table.add_section()
    return table


def _add_figures(table: Table, named: str = "metric") -> None:
    table.add_column(named, no_wrap=named == "metric", overflow="fold")
    for name in ("before", "after", "difference"):
        table.add_column(name, justify="right", no_wrap=True)


def _figures(line: Comparison) -> tuple[str, str, Text]:
    return points(line.before), points(line.after), _coloured(line)


def _cell(text: str, style: str = "") -> Text:
    """Any text as it is: brackets are no markup, and no sign of it steers the terminal."""
    from rich.text import Text

    return Text(printable(text), style)


def hits_table(queries: Sequence[str], hits: Sequence[Hit]) -> Table:
    """A line for each row that was found; the query stands before its first one.

    Args:
        queries: What was asked.
        hits: Query by query, the best first.
    """
    from rich.table import Table

    table = Table()
    several = len(queries) > 1
    if several:
        table.add_column("query")
    table.add_column("cosine", justify="right")
    is_hybrid = any(hit.by_vectors or hit.by_words for hit in hits)
    if is_hybrid:
        table.add_column("by vectors", justify="right")
        table.add_column("by words", justify="right")
    has_keys = any(hit.key is not None for hit in hits)
    table.add_column("key" if has_keys else "row", justify="left" if has_keys else "right")
    table.add_column("text", overflow="fold")
    for hit, following in zip(hits, [*hits[1:], None], strict=True):
        asked = [_cell(queries[hit.query] if hit.rank == 1 else "")] if several else []
        text = _cell("" if hit.text is None else hit.text)
        is_last = following is None or following.query != hit.query
        row = _cell(f"{hit.position:,}" if hit.key is None else hit.key)
        ranks = [_rank(hit.by_vectors), _rank(hit.by_words)] if is_hybrid else []
        cosine = f"{hit.cosine:.4f}"
        table.add_row(*asked, cosine, *ranks, row, text, end_section=several and is_last)
    return table


def _rank(rank: int | None) -> str:
    return "" if rank is None else str(rank)


def points(value: float | None) -> str:
    """A figure to two decimals; a dash where it was not measured."""
    return NOT_MEASURED if value is None else f"{value:.2f}"


def signed_points(value: float | None) -> str:
    """A difference to two decimals, with its sign."""
    return NOT_MEASURED if value is None else f"{value:+.2f}"


def told_interval(line: Comparison) -> str:
    """Where a difference lies, and what that says; empty where it is not known."""
    if line.interval is None or line.difference is None:
        return ""
    ends = f"{signed_points(line.interval.low)} to {signed_points(line.interval.high)}"
    doubt = f", but {line.doubt}" if line.doubt else ""
    return f"{ends}, {line.verdict}{doubt}" if line.verdict else ends


def _coloured(line: Comparison) -> Text:
    """A difference with its interval, short enough for a narrow terminal."""
    from rich.text import Text

    told = signed_points(line.difference)
    if line.interval is not None:
        told += f" ({points(line.interval.low)} to {points(line.interval.high)})"
    return Text(told, "" if line.doubt and line.verdict == BETTER else _COLOURS[line.verdict])
