"""Measures feeding: the same TensorFlowOnSpark run with three feeds in turn.

The three runs make the same steps on the same lanes; only where their granules come from
differs. ``memory`` reads all of them before its first step, so that its rate is that of the
step alone. The machine's speed drifts, so the three are run in turn for several rounds, and
each round gives its own ratios, of which the median counts.
"""

from __future__ import annotations

import statistics
from typing import Any

from rich.table import Table

from pipelines.compare.comparison import prepared
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.settings import Config
from pipelines_bench.rates import training_rate

FEEDS = ("memory", "lanes", "spark")
ROUNDS = 3
STEPS = 80


def measure(config: Config, data: str | None) -> dict[str, Any]:
    """Runs the comparison.

    Args:
        config: Its engine, feed and number of steps are replaced.
        data: See :func:`pipelines.compare.comparison.prepared`.

    Returns:
        ``spark_fed_ratio`` and ``lane_fed_ratio``: examples per second over those of the step
        fed from memory, the median of the rounds; and the rates of every run.
    """
    config = prepared(config, data)
    rates: dict[str, list[float]] = {feed: [] for feed in FEEDS}
    for round_number in range(ROUNDS):
        # Another order each round, so that none always runs when the machine is warm or throttled.
        for feed in FEEDS[round_number:] + FEEDS[:round_number]:
            next_part(f"round {round_number + 1} of {ROUNDS}, {feed}")
            rate = training_rate(config, STEPS, engine="tensorflowonspark", feed=feed)
            rates[feed].append(rate)
    ratios = {
        feed: statistics.median(
            fed / memory for fed, memory in zip(rates[feed], rates["memory"], strict=True)
        )
        for feed in FEEDS
    }
    _print(rates, ratios)
    return {
        "spark_fed_ratio": round(ratios["spark"], 4),
        "lane_fed_ratio": round(ratios["lanes"], 4),
        "steps": STEPS,
        "examples_per_second": {
            feed: [round(rate, 1) for rate in values] for feed, values in rates.items()
        },
    }


def _print(rates: dict[str, list[float]], ratios: dict[str, float]) -> None:
    table = Table("fed from", "examples/s (median)", "all rounds", "over memory (median)")
    for feed, values in rates.items():
        table.add_row(
            feed,
            f"{statistics.median(values):.1f}",
            ", ".join(f"{value:.1f}" for value in values),
            f"{ratios[feed]:.3f}",
        )
    Screen().print(table)
