"""The values of a picture, for the reader who points at it or walks through it by keyboard.

They travel as JSON in an attribute of the picture, and ``values.js`` shows them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelines.report.style import VARIABLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DIGITS = 5
"""Significant ones of a value; a page of curves would be twice as large with all of them."""


@dataclass(frozen=True)
class Series:
    """Values of one curve, bar or layer.

    Attributes:
        label: For people; empty where the title of the picture says it.
        colour: As it is drawn.
        places: Of the values, on the horizontal axis, ascending.
        values: Equally many; those that are not finite are not shown.
    """

    label: str
    colour: str
    places: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True)
class Readings:
    """What can be read off a picture.

    Attributes:
        axis: What the horizontal axis counts, for people: `step`.
        series: In the order in which they are shown.
        shares: Whether values are shares, to be shown in per cent.
        marked: Whether a value is as high on the picture as it says, so that it can be marked.
    """

    axis: str
    series: Sequence[Series]
    shares: bool = False
    marked: bool = True

    def as_json(self, axes: Axes, size: tuple[float, float]) -> str:
        """All of it, with where the axes are in the picture.

        Args:
            axes: As they were drawn.
            size: Width and height of the picture, in the units of its view box.
        """
        (width, height), box = size, axes.get_position()
        area = [box.x0 * width, (1 - box.y1) * height, box.x1 * width, (1 - box.y0) * height]
        shared = self.series[0].places if self._share_places else None
        told: dict[str, Any] = {
            "axis": self.axis,
            "area": [round(edge, 1) for edge in area],
            "x": _numbers(axes.get_xlim()),
            "y": _numbers(axes.get_ylim()),
            "shares": self.shares,
            "marked": self.marked,
            "series": [
                {"label": one.label, "colour": _colour(one.colour), "values": _numbers(one.values)}
                | ({} if shared is not None else {"places": _numbers(one.places)})
                for one in self.series
            ],
        }
        if shared is not None:
            told["places"] = _numbers(shared)
        return json.dumps(told, separators=(",", ":"), ensure_ascii=False)

    def summary(self, name: str) -> str:
        """The first and the last value of each series, where nothing can be pointed at."""
        told = [text for one in self.series if (text := self._ends(one))]
        return ". ".join([name, *told])

    @property
    def _share_places(self) -> bool:
        first = list(self.series[0].places) if self.series else None
        return first is not None and all(list(one.places) == first for one in self.series)

    def _ends(self, one: Series) -> str:
        pairs = zip(one.places, one.values, strict=True)
        known = [(place, value) for place, value in pairs if math.isfinite(value)]
        if not known:
            return ""
        ends = dict.fromkeys((known[0], known[-1]))
        told = ", ".join(f"{self._said(value)} at {_said(place)}" for place, value in ends)
        return f"{one.label or self.axis}: {told}"

    def _said(self, value: float) -> str:
        return f"{100 * value:.3g} %" if self.shares else _said(value)


def summarised(series: Sequence[Series]) -> list[Series]:
    """The lowest and the highest value at each place, of curves too many to be named.

    Args:
        series: Of the same places, without labels.
    """
    places, colour = series[0].places, series[0].colour
    columns = [
        [value for value in column if math.isfinite(value)] or [math.nan]
        for column in zip(*(one.values for one in series), strict=True)
    ]
    return [
        Series("lowest", colour, places, [min(column) for column in columns]),
        Series("highest", colour, places, [max(column) for column in columns]),
    ]


def _said(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _colour(colour: str) -> str:
    variable = VARIABLES.get(colour)
    return f"var({variable})" if variable else colour


def _numbers(values: Sequence[float]) -> list[float | int | None]:
    return [_number(value) for value in values]


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None  # JSON has no other word for it.
    rounded = float(f"{value:.{_DIGITS}g}") if abs(value) < 10**_DIGITS else round(value)
    return int(rounded) if rounded == int(rounded) else rounded
