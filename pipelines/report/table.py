"""The evaluation in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.report.figures import Comparison, Figures, compare

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

NOT_MEASURED = "–"  # noqa: RUF001 - a dash, as tables have it
_COLOURS = {"better": "green", "worse": "red", "": ""}


def metrics_table(before: Figures, after: Figures) -> Table:
    """A line for each figure, before and after training, with the difference.

    Args:
        before: Figures by evaluation and metric of the start, times 100.
        after: The same of the trained model.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(caption=None if before or after else "nothing was measured")
    table.add_column("evaluation", overflow="fold")
    table.add_column("measured on")
    table.add_column("metric", no_wrap=True)
    for name in ("before", "after", "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    last = None
    for line in compare(before, after):
        is_new = line.evaluation != last
        if is_new and last is not None:
            table.add_section()
        last = line.evaluation
        table.add_row(
            # The name of a file may have brackets, which are markup in a plain string.
            Text(line.evaluation if is_new else ""),
            line.basis if is_new else "",
            Text(line.metric),
            points(line.before),
            points(line.after),
            _coloured(line),
        )
    return table


def points(value: float | None) -> str:
    """A figure to two decimals; a dash where it was not measured."""
    return NOT_MEASURED if value is None else f"{value:.2f}"


def signed_points(value: float | None) -> str:
    """A difference to two decimals, with its sign."""
    return NOT_MEASURED if value is None else f"{value:+.2f}"


def _coloured(line: Comparison) -> Text:
    from rich.text import Text

    return Text(signed_points(line.difference), _COLOURS[line.verdict])
