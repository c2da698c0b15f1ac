"""What a trial of a strategy has shown, of values that a test names."""

from __future__ import annotations

from pipelines.compare.trial import Reading


def reading(strategy="torch", workers=1, rate=100.0, loss=1.0, **told) -> Reading:
    """Of twenty steps, half a second each, with the same loss in all of them."""
    values = {"round": 0, "seconds": 9.0, "cpu_seconds": 9.0, "own_bytes": 1}
    values |= {"examples_per_second": rate, "tokens_per_second": 9 * rate}
    values["curve"] = tuple((8 * step, step / 2, loss) for step in range(1, 21))
    return Reading(strategy=strategy, workers=workers, **(values | told))
