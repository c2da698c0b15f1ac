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
        missing: Why a strategy was left out, by name.
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
        """Return a row of :data:`COLUMNS` for each summary; None where a figure is not known."""
        shares = efficiency(self.summaries)
        moment = self.equal_time()
        return [self._row(one, shares, moment) for one in self.summaries]

    def equal_time(self) -> float:
        """Return the seconds of the fastest training, at which all losses are compared."""
        return min(
            statistics.median(one.curve[-1][1] for one in self.of(summary))
            for summary in self.summaries
        )

    def of(self, summary: Summary) -> list[Reading]:
        """Return the readings of a summary."""
        key = (summary.strategy, summary.workers)
        return [one for one in self.readings if (one.strategy, one.workers) == key]

    def _row(self, one: Summary, shares: Mapping[tuple[str, int], float], moment: float) -> Row:
        readings = self.of(one)
        tokens = statistics.median(each.tokens_per_second for each in readings)
        rate = self.rates.get(self.strategies[one.strategy].training["precision"])
        used = tokens * self.operations_per_token / one.workers
        sent = _median([each.bytes_per_step for each in readings])
        return {
            "strategy": one.strategy,
            "workers": one.workers,
            "examples_per_second": one.examples_per_second,
            "lowest": one.spread[0],
            "highest": one.spread[1],
            "tokens_per_second": tokens,
            "efficiency": shares.get((one.strategy, one.workers)),
            "examples_per_cpu_second": _median([e.examples_per_cpu_second for e in readings]),
            "of_matrix_rate": None if rate is None else used / rate,
            "communication": one.communication,
            "megabytes_per_step": None if sent is None else sent / 1e6,
            "gigabytes": statistics.median(each.own_bytes for each in readings) / 1e9,
            "loss": one.loss,
            "loss_at_equal_time": _median([loss_at(each, moment) for each in readings]),
            **_gain(readings),
        }

    def table(self) -> Table:
        """Return the columns that fit on a terminal; the files have all of them."""
        further = ("efficiency", "of_matrix_rate", "communication", "gigabytes", "loss")
        heads = ({**COLUMNS, "gigabytes": "GB"}[name] for name in further)
        table = Table("strategy", "workers", "examples/s", *heads)
        for row in self.rows():
            rate = f"{told('rate', row['examples_per_second'])} {_between(row)}"
            cells = (told(name, row[name]) for name in further)
            table.add_row(row["strategy"], str(row["workers"]), rate, *cells)
        return table

    def markdown(self) -> str:
        """Return the table, and the advice."""
        lines = [_line(COLUMNS.values()), _line("---" for _ in COLUMNS)]
        lines += [_line(told(name, row[name]) for name in COLUMNS) for row in self.rows()]
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
            "matrix_operations_per_second": {k: round(v) for k, v in self.rates.items()},
            "predicted": [
                {
                    "strategy": one.strategy,
                    "network": one.network,
                    "examples_per_second": {str(n): round(r, 1) for n, r in one.rates.items()},
                    "pays_until": one.pays_until,
                }
                for one in self.projections
            ],
            "advice": [*self.advice],
        }


def loss_at(reading: Reading, moment: float) -> float | None:
    """Return the loss after so many seconds of training, the mean of some steps before.

    None where fewer steps than that were made by then.
    """
    _, seconds, losses = smooth_curve(reading)
    loss = float(np.interp(moment, seconds, losses, left=np.nan))
    return None if np.isnan(loss) else loss


def smooth_curve(reading: Reading) -> tuple[list[float], list[float], list[float]]:
    """Return examples, seconds and losses, smoothed over a tenth of the steps.

    Losses of single steps are of other batches each. A mean stands at the end of its last step.
    """
    examples, seconds, losses = zip(*reading.curve, strict=True)
    window = max(1, len(losses) // 10)
    smooth = np.convolve(losses, np.ones(window) / window, "valid").tolist()
    return [*map(float, examples[window - 1 :])], [*seconds[window - 1 :]], smooth


def _gain(readings: Sequence[Reading]) -> dict[str, float | None]:
    """Return the gain on held-out pairs, in points; None where no model was evaluated."""
    for one in readings:
        figures = one.figures or {}
        try:
            before, after = (float(figures[when][SET][FIGURE]) for when in ("before", "after"))
            interval = figures["interval"][SET][FIGURE]
            low, high = float(interval["low"]), float(interval["high"])
        except KeyError:
            continue
        return {"gain": after - before, "gain_low": low, "gain_high": high}
    return {"gain": None, "gain_low": None, "gain_high": None}


def _median(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return statistics.median(known) if len(known) == len(values) else None


def told(name: str, value: Any) -> str:
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
    """Format the range over several rounds; empty where there is one."""
    low, high = told("rate", row["lowest"]), told("rate", row["highest"])
    return "" if low == high else f"({low} to {high})"


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"
