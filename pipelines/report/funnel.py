"""The funnel of a corpus as bars: what each level of the cleaning has kept and dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LOST = ("dropped", "quarantined")
"""Kinds of funnel lines that name a reason for which rows are not kept."""


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
