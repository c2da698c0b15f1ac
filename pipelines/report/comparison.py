"""The figures of a model before and after training, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipelines.evaluation.base import figure_named
from pipelines.evaluation.intervals import CANNOT_BE_TOLD, Interval
from pipelines.evaluation.sets import Role
from pipelines.report.series import is_number

Figures = Mapping[str, Mapping[str, float]]
"""Figures by evaluation and metric, as :func:`pipelines.evaluation.stage.evaluate` gives them."""


_UNSEEN = 0.005


@dataclass(frozen=True)
class Comparison:
    """A figure of one evaluation before and after training.

    Attributes:
        evaluation: `retrieval`, or the name of a file.
        basis: On how much it was measured, in words.
        metric: Its name, for people.
        before: Times 100; None where it was not measured.
        after: The same.
        better: Where a better model has it; None for what says nothing of quality.
        interval: Where the difference lies; None where that is not known. See
            :mod:`pipelines.evaluation.intervals`.
        role: What the set says of a model; None in figures of which that is not known.
        items: Queries or pairs that were measured; 0 where that is not known.
    """

    evaluation: str
    basis: str
    metric: str
    before: float | None
    after: float | None
    better: Literal["higher", "lower"] | None = "higher"
    interval: Interval | None = None
    role: Role | None = None
    items: int = 0

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `cannot be told`; empty where the interval is unknown.

        What cannot be seen in two decimals is no difference.
        """
        difference = self.difference
        if self.better is None or difference is None or self.interval is None:
            return ""
        if abs(difference) <= _UNSEEN:
            return CANNOT_BE_TOLD
        return self.interval.told(lower_is_better=self.better == "lower")

    @property
    def places(self) -> tuple[float, float] | None:
        """Before and after on a track from 0 to 100; None where they do not lie on it."""
        if self.before is None or self.after is None:
            return None
        on_track = all(0 <= value <= 100 for value in (self.before, self.after))
        return (self.before, self.after) if on_track and self.better == "higher" else None

    @property
    def difference(self) -> float | None:
        """After minus before, in points."""
        if self.before is None or self.after is None:
            return None
        return self.after - self.before


def compare(figures: Mapping[str, Any]) -> list[Comparison]:
    """A line for each figure that is in either, in the order in which they were measured.

    Args:
        figures: As ``metrics.json`` has them: of the start under `before`, of the trained model
            under `after`, and where they are known `interval` and `sets`. See
            :class:`pipelines.evaluation_job.Measured`.
    """
    before, after = figures.get("before", {}), figures.get("after", {})
    intervals, sets = figures.get("interval", {}), figures.get("sets", {})
    lines = []
    for evaluation in {**before, **after}:
        old, new = before.get(evaluation, {}), after.get(evaluation, {})
        both = {**old, **new}
        known = {name: figure_named(name) for name in both if is_number(both[name])}
        basis = ", ".join(
            f"{both[name]:,.0f} {figure.label}" for name, figure in known.items() if figure.is_count
        )
        counts = [int(both[name]) for name, figure in known.items() if figure.is_count]
        lines += [
            Comparison(
                evaluation,
                basis,
                figure.label,
                old.get(metric),
                new.get(metric),
                figure.better,
                _interval(intervals.get(evaluation, {}).get(metric)),
                _role(sets.get(evaluation)),
                next(iter(counts), 0),
            )
            for metric, figure in known.items()
            if not figure.is_count
        ]
    return lines


def _interval(known: Mapping[str, float] | None) -> Interval | None:
    return None if known is None else Interval(**known)


def _role(known: Mapping[str, str] | None) -> Role | None:
    return None if known is None else Role(known["role"])
