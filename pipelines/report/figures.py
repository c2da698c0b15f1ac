"""What the page and the terminal show, as plain values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Figures = Mapping[str, Mapping[str, float]]
"""Figures by evaluation and metric, as :func:`pipelines.evaluation.stage.evaluate` gives them."""

COUNTS = ("queries", "documents", "pairs")
"""What an evaluation counts; the rest of its figures are measured."""

LOST = ("dropped", "quarantined")
"""Kinds of funnel lines that name a reason for which rows are not kept."""

_LABELS = {"ndcg": "nDCG", "mrr": "MRR"}


@dataclass(frozen=True)
class Comparison:
    """A figure of one evaluation before and after training.

    Attributes:
        evaluation: `retrieval`, or the name of a file.
        basis: On how much it was measured, in words.
        metric: Its name, for people.
        before: Times 100; None where it was not measured.
        after: The same.
    """

    evaluation: str
    basis: str
    metric: str
    before: float | None
    after: float | None

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
        basis = ", ".join(f"{both[name]:,.0f} {name}" for name in COUNTS if name in both)
        lines += [
            Comparison(evaluation, basis, _label(metric), old.get(metric), new.get(metric))
            for metric in both
            if metric not in COUNTS
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


def thinned(lines: Sequence[Mapping[str, float]], most: int) -> list[dict[str, float]]:
    """At most so many lines: each the mean of equally many neighbours, the last of fewer.

    Args:
        lines: Of equal keys.
        most: Lines that a picture can show.
    """
    size = max(1, math.ceil(len(lines) / most))
    groups = (lines[start : start + size] for start in range(0, len(lines), size))
    return [
        {name: math.fsum(line[name] for line in group) / len(group) for name in group[0]}
        for group in groups
    ]


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The lines of ``metrics.jsonl``; a last line that a killed run left half written is dropped.

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


def _label(metric: str) -> str:
    kind, at, rank = metric.partition("@")
    return _LABELS.get(kind, kind.capitalize()) + at + rank
