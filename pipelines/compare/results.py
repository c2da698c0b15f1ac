"""The results of a comparison: a table, figures, files, and a page."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from pipelines.compare.advice import Summary, efficiency
from pipelines.compare.prediction import Projection
from pipelines.compare.strategy import Strategy
from pipelines.compare.trial import Reading

FIGURE = "ndcg@10"
SET = "retrieval"

Row = Mapping[str, Any]
COLUMNS: Mapping[str, str] = {
    "strategy": "strategy",
    "workers": "workers",
    "examples_per_second": "examples/s",
    "lowest": "lowest",
    "highest": "highest",
    "tokens_per_second": "tokens/s",
    "efficiency": "efficiency",
    "examples_per_cpu_second": "examples/CPU-s",
    "of_matrix_rate": "of the matrix rate",
    "communication": "communication",
    "megabytes_per_step": "MB/step",
    "gigabytes": "memory, GB",
    "loss": "loss",
    "loss_at_equal_time": "loss, equal time",
    "gain": "nDCG@10",
    "gain_low": "from",
    "gain_high": "to",
}
"""The figures of a strategy, and their headings in tables."""
SHARES = ("efficiency", "of_matrix_rate", "communication")


@dataclass(frozen=True, kw_only=True)
class Results:
    """The results of a comparison.

    Attributes:
        summaries: Of the readings, in the order of the strategies.
        rates: Operations per second of a core on matrix products alone, by precision.
        operations_per_token: Of the training.
        projections: The predicted rates of more workers.
        advice: The recommendation, in sentences.
        missing: The reasons for missing strategies, by name.
    """

    readings: Sequence[Reading]
    summaries: Sequence[Summary]
    strategies: Mapping[str, Strategy]
    rates: Mapping[str, float]
    operations_per_token: float
    projections: Sequence[Projection]
    advice: Sequence[str]
    missing: Mapping[str, str]

    def rows(self) -> list[Row]:
        """Return a row of :data:`COLUMNS` for each summary; None for unknown figures."""
        shares = efficiency(self.summaries)
        moment = self.equal_time()
        return [self._row(summary, shares, moment) for summary in self.summaries]

    def equal_time(self) -> float:
        """Return the seconds of the fastest training, for the comparison of all losses."""
        return min(
            statistics.median(reading.curve[-1][1] for reading in self.of(summary))
            for summary in self.summaries
        )

    def of(self, summary: Summary) -> list[Reading]:
        """Return the readings of a summary."""
        key = (summary.strategy, summary.workers)
        return [reading for reading in self.readings if (reading.strategy, reading.workers) == key]

    def _row(self, summary: Summary, shares: Mapping[tuple[str, int], float], moment: float) -> Row:
        readings = self.of(summary)
        tokens = statistics.median(reading.tokens_per_second for reading in readings)
        rate = self.rates.get(self.strategies[summary.strategy].training["precision"])
        # The rate is one core's, and each worker has one thread.
        used = tokens * self.operations_per_token / summary.workers
        sent = _median([reading.bytes_per_step for reading in readings])
        return {
            "strategy": summary.strategy,
            "workers": summary.workers,
            "examples_per_second": summary.examples_per_second,
            "lowest": summary.spread[0],
            "highest": summary.spread[1],
            "tokens_per_second": tokens,
            "efficiency": shares.get((summary.strategy, summary.workers)),
            "examples_per_cpu_second": _median(
                [reading.examples_per_cpu_second for reading in readings]
            ),
            "of_matrix_rate": None if rate is None else used / rate,
            "communication": summary.communication,
            "megabytes_per_step": None if sent is None else sent / 1e6,
            "gigabytes": statistics.median(reading.own_bytes for reading in readings) / 1e9,
            "loss": summary.loss,
            "loss_at_equal_time": _median([loss_at(reading, moment) for reading in readings]),
            **_gain(readings),
        }

    def table(self) -> Table:
        """Return the most useful columns for a terminal; the files have all columns."""
        further = ("efficiency", "of_matrix_rate", "communication", "gigabytes", "loss")
        heads = ({**COLUMNS, "gigabytes": "GB"}[name] for name in further)
        table = Table("strategy", "workers", "examples/s", *heads)
        for row in self.rows():
            rate = f"{formatted('rate', row['examples_per_second'])} {_between(row)}"
            cells = (formatted(name, row[name]) for name in further)
            table.add_row(row["strategy"], str(row["workers"]), rate, *cells)
        return table

    def markdown(self) -> str:
        """Return the table, and the advice."""
        lines = [_line(COLUMNS.values()), _line("---" for _ in COLUMNS)]
        lines += [_line(formatted(name, row[name]) for name in COLUMNS) for row in self.rows()]
        return "\n".join([*lines, "", *self.advice, ""])

    def comma_separated(self) -> str:
        """Return all figures unrounded, under their names."""
        text = io.StringIO()
        writer = csv.DictWriter(text, [*COLUMNS], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows())
        return text.getvalue()

    def figures(self) -> dict[str, Any]:
        """Return the content of the line of JSON."""
        return {
            "strategies": [
                {
                    name: round(value, 5) if isinstance(value, float) else value
                    for name, value in row.items()
                }
                for row in self.rows()
            ],
            "matrix_operations_per_second": {
                precision: round(rate) for precision, rate in self.rates.items()
            },
            "predicted": [
                {
                    "strategy": projection.strategy,
                    "network": projection.network,
                    "examples_per_second": {
                        str(workers): round(rate, 1) for workers, rate in projection.rates.items()
                    },
                    "pays_until": projection.pays_until,
                }
                for projection in self.projections
            ],
            "advice": [*self.advice],
        }


def loss_at(reading: Reading, moment: float) -> float | None:
    """Return the loss at a moment of the training, in seconds, from the smoothed curve.

    None before the first point of that curve.
    """
    _, seconds, losses = smooth_curve(reading)
    loss = float(np.interp(moment, seconds, losses, left=np.nan))
    return None if np.isnan(loss) else loss


def smooth_curve(reading: Reading) -> tuple[list[float], list[float], list[float]]:
    """Return examples, seconds and losses, smoothed over a tenth of the steps.

    Losses of single steps vary with their batches. A mean stands at the end of its last step.
    """
    examples, seconds, losses = zip(*reading.curve, strict=True)
    window = max(1, len(losses) // 10)
    smooth = np.convolve(losses, np.ones(window) / window, "valid").tolist()
    return [*map(float, examples[window - 1 :])], [*seconds[window - 1 :]], smooth


def _gain(readings: Sequence[Reading]) -> dict[str, float | None]:
    """Return the gain on held-out pairs, in points; None without an evaluation."""
    for reading in readings:
        # None for trials without an evaluation: only the last round has one.
        figures = reading.figures or {}
        try:
            before, after = (float(figures[when][SET][FIGURE]) for when in ("before", "after"))
            interval = figures["interval"][SET][FIGURE]
            low, high = float(interval["low"]), float(interval["high"])
        except KeyError:
            continue
        return {"gain": after - before, "gain_low": low, "gain_high": high}
    return {"gain": None, "gain_low": None, "gain_high": None}


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if len(known) == len(values) else None


def formatted(name: str, value: Any) -> str:
    """Format a figure."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    if name in SHARES:
        return f"{100 * value:.0f} %"
    if name.startswith("gain"):
        return f"{value:+.2f}"
    if name.startswith("loss"):
        return f"{value:.3f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _between(row: Row) -> str:
    """Format the range over several rounds; empty for a single value."""
    low, high = formatted("rate", row["lowest"]), formatted("rate", row["highest"])
    return "" if low == high else f"({low} to {high})"


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"
