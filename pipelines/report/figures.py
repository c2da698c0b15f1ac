"""What the page and the terminal show, as plain values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from pipelines.evaluation.metrics import COUNTS, better_direction

Figures = Mapping[str, Mapping[str, float]]
"""Figures by evaluation and metric, as :func:`pipelines.evaluation.stage.evaluate` gives them."""

LOST = ("dropped", "quarantined")
"""Kinds of funnel lines that name a reason for which rows are not kept."""

_LABELS = {"ndcg": "nDCG", "mrr": "MRR", "map": "MAP", "ap": "AP", "f1": "F1"}

Line = TypeVar("Line")


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
    """

    evaluation: str
    basis: str
    metric: str
    before: float | None
    after: float | None
    better: Literal["higher", "lower"] | None = "higher"

    @property
    def verdict(self) -> str:
        """`better` or `worse`; empty where nothing has changed that can be seen, or is known."""
        difference = self.difference
        if self.better is None or difference is None or not abs(difference) >= 0.005:
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


def compare(before: Figures, after: Figures) -> list[Comparison]:
    """A line for each figure that is in either, in the order in which they were measured."""
    lines = []
    for evaluation in {**before, **after}:
        old, new = before.get(evaluation, {}), after.get(evaluation, {})
        both = {**old, **new}
        basis = ", ".join(
            f"{both[name]:,.0f} {name}" for name in COUNTS if is_number(both.get(name))
        )
        lines += [
            Comparison(
                evaluation,
                basis,
                metric_label(metric),
                old.get(metric),
                new.get(metric),
                better_direction(metric),
            )
            for metric in both
            if metric not in COUNTS and is_number(both[metric])
        ]
    return lines


def smoothed(values: Sequence[float], span: float) -> list[float]:
    """The mean around each place, with weights of a bell curve; at the ends, of what is there.

    Values that are not finite count nowhere, and where there are no others the mean is NaN.

    Source: Nadaraya, "On estimating regression", Theory of Probability and its Applications
    9(1), 1964.

    Args:
        values: Equally far apart.
        span: Standard deviation of the weights, in places.
    """
    given = np.asarray(values, float)
    is_finite = np.isfinite(given)
    reach = math.ceil(3 * span)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / span) ** 2)
    places = slice(reach, reach + len(given))
    total = np.convolve(np.where(is_finite, given, 0.0), weights)[places]
    weight = np.convolve(is_finite.astype(float), weights)[places]
    return [float(a / b) if b > 0 else math.nan for a, b in zip(total, weight, strict=True)]


def grouped(lines: Sequence[Line], most: int) -> list[Sequence[Line]]:
    """At most so many groups of neighbours: all of equally many, the last of fewer.

    Args:
        lines: In their order.
        most: Groups that a picture can show.
    """
    size = max(1, math.ceil(len(lines) / most))
    return [lines[start : start + size] for start in range(0, len(lines), size)]


def thinned(lines: Sequence[Mapping[str, Any]], most: int) -> list[dict[str, float]]:
    """At most so many lines: each the mean of a group; see :func:`grouped`.

    Args:
        lines: With what is to be shown; what is no number, or not in all of them, is left out.
        most: Lines that a picture can show.
    """
    names = [name for name in lines[0] if all(is_number(line.get(name)) for line in lines)]
    return [
        {name: math.fsum(line[name] for line in group) / len(group) for name in names}
        for group in grouped(lines, most)
    ]


def is_number(value: object) -> bool:
    """Whether JSON gave a number; true and false are none, NaN is one."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl`` or its like; half a line at the end is dropped.

    A run that was killed leaves one.

    Raises:
        ValueError: Another line is no JSON.
    """
    lines = path.read_text(encoding="utf-8").split("\n")
    # What follows the last line end is empty, or half a line.
    return [json.loads(line) for line in lines[:-1] if line.strip()]


@dataclass(frozen=True)
class FunnelBar:
    """A bar of the funnel picture.

    Attributes:
        kind: `in`, `dropped`, `quarantined` or `kept`.
        name: What happened, for people.
        rows: How many.
        start: Where the bar begins, as a share of the level's rows.
        share: How long it is, as a share of the level's rows.
    """

    kind: str
    name: str
    rows: int
    start: float
    share: float


def funnel_bars(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[FunnelBar]]:
    """The bars of every level: what is lost is taken off the right end, what is kept is left.

    Args:
        lines: The content of ``funnel.json``; see :mod:`pipelines.corpus.funnel`.
    """
    levels: dict[str, list[FunnelBar]] = {}
    for level in dict.fromkeys(line["level"] for line in lines):
        own = [line for line in lines if line["level"] == level]
        entered = max(sum(line["rows"] for line in own if line["kind"] == "in"), 1)
        left, kept = entered, 0
        bars = levels.setdefault(level, [])
        for line in own:
            kind, rows = line["kind"], line["rows"]
            name = line.get("reason") or line.get("stage", "")
            if kind in LOST:
                left -= rows
            start = left if kind in LOST else kept if kind == "kept" else 0
            kept += rows if kind == "kept" else 0
            bars.append(FunnelBar(kind, name, rows, start / entered, rows / entered))
    return levels


def metric_label(metric: str) -> str:
    """The name of a metric, for people."""
    kind, at, rank = metric.partition("@")
    words = kind.replace("_", " ")
    return _LABELS.get(kind, words[:1].upper() + words[1:]) + at + rank
