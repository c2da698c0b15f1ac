"""Lines of logged numbers: read, smoothed, and thinned to what a picture can show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from pipelines.files import records
from pipelines.files.locations import Location

Line = TypeVar("Line")


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


def read_lines(path: Location) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl`` or its like; half a line at the end is dropped.

    A run that was killed leaves one.

    Raises:
        DamagedFileError: Another line is no object.
    """
    lines = path.read_bytes().split(b"\n")
    # What follows the last line end is empty, or half a line.
    found = (records.read_line(path, line, dict[str, Any]) for line in lines[:-1] if line.strip())
    return [line for line in found if line is not None]
