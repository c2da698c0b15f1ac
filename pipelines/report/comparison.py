"""The figures of a model before and after training, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pipelines.evaluation.base import figure_named
from pipelines.report.series import is_number

Figures = Mapping[str, Mapping[str, float]]
"""Figures by evaluation and metric, as :func:`pipelines.evaluation.stage.evaluate` gives them."""


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
        margin: How far the difference is to be from 0 to be more than chance, in points; None
            where that is not known. See :func:`pipelines.evaluation.intervals.margin`.
    """

    evaluation: str
    basis: str
    metric: str
    before: float | None
    after: float | None
    better: Literal["higher", "lower"] | None = "higher"
    margin: float | None = None

    @property
    def verdict(self) -> str:
        """`better` or `worse`; empty where the difference may be chance, or its margin is unknown.

        What cannot be seen in two decimals is no difference.
        """
        difference = self.difference
        if self.better is None or difference is None or self.margin is None:
            return ""
        if not abs(difference) > max(self.margin, 0.005):
            return ""
        return "better" if (difference > 0) != (self.better == "lower") else "worse"

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


def compare(before: Figures, after: Figures, margins: Figures | None = None) -> list[Comparison]:
    """A line for each figure that is in either, in the order in which they were measured.

    Args:
        before: Figures of the start.
        after: Figures of the trained model.
        margins: Of the differences, where they are known.
    """
    lines = []
    for evaluation in {**before, **after}:
        old, new = before.get(evaluation, {}), after.get(evaluation, {})
        both = {**old, **new}
        known = {name: figure_named(name) for name in both if is_number(both[name])}
        basis = ", ".join(
            f"{both[name]:,.0f} {figure.label}" for name, figure in known.items() if figure.is_count
        )
        lines += [
            Comparison(
                evaluation,
                basis,
                figure.label,
                old.get(metric),
                new.get(metric),
                figure.better,
                (margins or {}).get(evaluation, {}).get(metric),
            )
            for metric, figure in known.items()
            if not figure.is_count
        ]
    return lines
