"""What was seen in a soak, sample by sample, and whether it grows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.files import storage
from pipelines_bench.soak.watching import HEAP, MEMORY, Sample

STEPS, RUNS = "step", "run"
PER: Mapping[str, int] = {STEPS: 1_000, RUNS: 100}
"""To what growth is related."""
MEMORY_BOUND: Mapping[str, float] = {STEPS: 1.5, RUNS: 10.0}
"""MiB of a role for so many steps or runs.

An executor's Java and its Python gain less than 300 MiB in 100,000 steps at 1.5 MiB each, below the
least that Spark adds to an executor's heap where containers are limited
(``spark.executor.memoryOverhead``, 384 MiB). A notebook that trains a hundred times a day gains
10 MiB.
"""
COUNT_BOUND = 0.5
"""Over all samples that are looked at; the next whole number is one."""
FEWEST: Mapping[str, int] = {STEPS: 3_000, RUNS: 60}
"""Steps or runs below which nothing is judged: libraries still warm up."""
_WARM_UP = 1 / 3
_FEWEST_SAMPLES = 8
_MOST_SAMPLES = 400
_ENDS = 0.1


@dataclass(frozen=True)
class Growth:
    """How a count of a role grew over the last two thirds.

    Attributes:
        role: Of the processes.
        quantity: What was counted.
        start: At the beginning of these, the median of a tenth.
        end: At their end.
        per: For 1,000 steps or 100 runs, by the line that was fitted.
        is_held: Whether it stays within its bound; None if too little was seen to tell.
    """

    role: str
    quantity: str
    start: float
    end: float
    per: float
    is_held: bool | None


@dataclass(frozen=True)
class Record:
    """Samples of a soak, which are added one by one.

    Attributes:
        case: Of :data:`pipelines_bench.soak.cases.CASES`, or that of many runs.
        axis: What a sample's place counts, steps or runs.
        places: Of the samples.
        seconds: When they were taken.
        series: Values by role and quantity; None where there was none.
    """

    case: str
    axis: str
    places: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    series: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)

    def add(self, place: int, seconds: float, sample: Sample) -> None:
        """Adds a sample."""
        before = len(self.places)
        self.places.append(place)
        self.seconds.append(round(seconds, 1))
        for role, counts in sample.items():
            for quantity, count in counts.items():
                of_role = self.series.setdefault(role, {})
                of_role.setdefault(quantity, [None] * before).append(round(float(count), 2))
        for values in self._all():
            values.extend([None] * (before + 1 - len(values)))

    def points(self, role: str, quantity: str) -> tuple[list[int], list[float]]:
        """Places and values of a series where it has them."""
        values = self.series[role][quantity]
        found = [
            (place, one)
            for place, one in zip(self.places, values, strict=True)
            if one is not None and place > 0
        ]
        return [place for place, _ in found], [one for _, one in found]

    def growths(self) -> list[Growth]:
        """Of every series that lasts to the end."""
        return [
            found
            for role in sorted(self.series)
            for quantity in self.series[role]
            if (found := self._growth(role, quantity)) is not None
        ]

    def write(self, path: Path) -> None:
        """Writes it as JSON."""
        storage.write_json(path, asdict(self))

    def _growth(self, role: str, quantity: str) -> Growth | None:
        last = self.places[-1]
        places, values = self.points(role, quantity)
        kept = [number for number, place in enumerate(places) if place >= last * _WARM_UP]
        if not kept:
            return None
        x, y = np.array(places)[kept], np.array(values)[kept]
        end = max(1, math.ceil(_ENDS * len(x)))
        slope = fitted_slope(x, y)
        per = slope * PER[self.axis]
        return Growth(
            role=role,
            quantity=quantity,
            start=float(np.median(y[:end])),
            end=float(np.median(y[-end:])),
            per=round(per, 3),
            is_held=self._is_held(quantity, per, slope * float(x[-1] - x[0]), len(x)),
        )

    def _is_held(self, quantity: str, per: float, grown: float, samples: int) -> bool | None:
        if self.places[-1] < FEWEST[self.axis] or samples < _FEWEST_SAMPLES:
            return None
        if quantity in (MEMORY, HEAP):
            return per < MEMORY_BOUND[self.axis]
        return grown < COUNT_BOUND

    def _all(self) -> Iterator[list[float | None]]:
        for of_role in self.series.values():
            yield from of_role.values()


def read_record(path: Path) -> Record:
    """The record of a file."""
    found: dict[str, Any] = storage.read_json(path)
    return Record(**found)


def fitted_slope(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    """The slope of the line of Theil and Sen: the median of those of all pairs of points.

    Unlike least squares it is not moved by a few samples that were taken while a checkpoint was
    written, nor by a single thread that is started late and stays.
    """
    points = np.stack([np.asarray(x, float), np.asarray(y, float)])
    chosen = np.linspace(0, len(x) - 1, min(len(x), _MOST_SAMPLES)).astype(int)
    first, second = np.triu_indices(len(chosen), 1)
    apart, risen = points[:, chosen[second]] - points[:, chosen[first]]
    slopes = risen[apart != 0] / apart[apart != 0]
    return float(np.median(slopes)) if len(slopes) else 0.0
