"""The figures of a model before and after training, side by side."""

from __future__ import annotations

import math
import os
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import numpy as np

from pipelines.evaluation.alarms import choosing_sets, told_overlap
from pipelines.evaluation.base import figure_named
from pipelines.evaluation.intervals import NOT_SIGNIFICANT, UNSEEN, Interval, holm
from pipelines.evaluation.sets import Role
from pipelines.files import records
from pipelines.files.locations import Location, as_local
from pipelines.settings.redaction import without_password

MAX_CHARACTERS = 200
# Marks that change the direction of the text around them, or are invisible.
_HIDDEN = {"\u061c", "\u200e", "\u200f", *map(chr, range(0x202A, 0x202F)), "\ufeff"} | set(
    map(chr, range(0x2066, 0x206A))
)


def shown(text: str, most: int = MAX_CHARACTERS) -> str:
    """Return a text on one line, at most so many characters long, with nothing hidden in it.

    Control characters are escaped, direction marks among them.
    """
    # Cut before the split: a text may be long, and the page shows little of it.
    line = " ".join(text[: 4 * most].split())
    cut = line[:most].rstrip() + "…" if len(line) > most else line
    return "".join(_escaped(character) for character in cut)


def _escaped(character: str) -> str:
    if character in _HIDDEN or unicodedata.category(character) in ("Cc", "Cs"):
        return character.encode("unicode_escape").decode("ascii")
    return character


@dataclass(frozen=True)
class Link:
    """A link of a page to a path, or to the address of a store.

    ``href`` is relative to the page; None where a browser could not follow it.
    """

    name: str
    place: str
    href: str | None


def link(name: str, target: Location, page: Location) -> Link:
    """Return the link from a page to a file or a folder; a store has no link, only a name."""
    local_page, local_target = as_local(page), as_local(target)
    if local_page is None or local_target is None:
        return Link(name, without_password(str(target)), None)
    path = Path(os.path.relpath(local_target.absolute(), local_page.absolute().parent)).as_posix()
    # A first part with a colon would be taken for the scheme of an address.
    first = "" if path.startswith("../") else "./"
    end = "/" if target.is_dir() else ""
    return Link(name, path, f"{first}{quote(path)}{end}")


Line = TypeVar("Line")


def smoothed(values: Sequence[float], span: float) -> list[float]:
    """Return the mean around each of equally spaced values, weighted by a Gaussian.

    ``span`` is its standard deviation, in places. Means at the ends are of the existing values.
    Only finite values count; the mean of none is NaN.

    Source: Nadaraya, "On estimating regression", Theory of Probability and its Applications 9(1),
    1964.
    """
    given = np.asarray(values, float)
    is_finite = np.isfinite(given)
    # Beyond three standard deviations a Gaussian has 0.3 % of its weight.
    reach = math.ceil(3 * span)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / span) ** 2)
    places = slice(reach, reach + len(given))
    total = np.convolve(np.where(is_finite, given, 0.0), weights)[places]
    weight = np.convolve(is_finite.astype(float), weights)[places]
    return [float(a / b) if b > 0 else math.nan for a, b in zip(total, weight, strict=True)]


def grouped(lines: Sequence[Line], most: int) -> list[Sequence[Line]]:
    """Return at most so many groups of neighbours, equally large but for the last."""
    size = max(1, math.ceil(len(lines) / most))
    return [lines[start : start + size] for start in range(0, len(lines), size)]


def thinned(lines: Sequence[Mapping[str, Any]], most: int) -> list[dict[str, float]]:
    """Return at most so many lines, each the mean of a group; see :func:`grouped`.

    Values other than numbers, or missing in a line, are left out.
    """
    names = [name for name in lines[0] if all(is_number(line.get(name)) for line in lines)]
    return [
        {name: math.fsum(line[name] for line in group) / len(group) for name in names}
        for group in grouped(lines, most)
    ]


def is_number(value: object) -> bool:
    """Tell whether JSON gave a number; true and false are none, NaN is one."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_lines(path: Location) -> list[dict[str, Any]]:
    """Read the lines of ``metrics.jsonl`` or a file like it.

    A torn line at the end, left by a killed run, is dropped.

    Raises:
        DamagedFileError: Another line is no object.
    """
    lines = path.read_bytes().split(b"\n")
    # What follows the last line end is empty, or half a line.
    found = (records.read_line(path, line, dict[str, Any]) for line in lines[:-1] if line.strip())
    return [line for line in found if line is not None]


Figures = Mapping[str, Mapping[str, float]]
"""Figures by evaluation and metric, as :func:`pipelines.evaluation.sets.evaluate` gives them."""


@dataclass(frozen=True)
class Comparison:
    """A figure of one evaluation before and after training.

    Attributes:
        evaluation: `retrieval`, or the name of a file.
        basis: The number of measured items, in words.
        before: Times 100; None where it was not measured.
        better: The better direction; None for a figure without a say on quality.
        interval: Of the difference; None where unknown. See :mod:`pipelines.evaluation.intervals`.
        role: The set's role in judging a model; None where unknown.
        items: Measured queries or pairs; 0 where unknown.
        is_main: Whether it judges the set: the set's first figure with `higher` as better. Other
            figures, and variants of a set, are shown and decide nothing.
        adjusted_p: Of the interval's test, among those of all sets of the same role.
        doubt: Why the figures may flatter the model; empty without a known reason.
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
    is_main: bool = True
    adjusted_p: float | None = None
    doubt: str = ""

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `not significant`; empty where it is not tested.

        A difference below two decimals counts as none.
        """
        difference = self.difference
        if self.better is None or difference is None or self.interval is None or not self.is_main:
            return ""
        if abs(difference) <= UNSEEN:
            return NOT_SIGNIFICANT
        return self.interval.verdict(lower_is_better=self.better == "lower", gain_p=self.adjusted_p)

    @property
    def places(self) -> tuple[float, float] | None:
        """Before and after on a track from 0 to 100; None if beyond it."""
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
    """Return a line for each figure of either model, in the order of their measurement.

    ``figures`` are those of ``metrics.json``: `before` of the start, `after` of the trained model,
    and, if known, `interval` and `sets`. See :class:`pipelines.jobs.evaluate.Measured`.
    """
    before, after = figures.get("before", {}), figures.get("after", {})
    intervals, sets = figures.get("interval", {}), figures.get("sets", {})
    lines = []
    for evaluation in {**before, **after}:
        old, new = before.get(evaluation, {}), after.get(evaluation, {})
        both, known = {**old, **new}, intervals.get(evaluation, {})
        of_set = {name: figure_named(name) for name in both if is_number(both[name])}
        counts = {figure.label: both[name] for name, figure in of_set.items() if figure.is_count}
        # The same for all figures of a set.
        groups = next((interval.get("groups") for interval in known.values()), None)
        lines += [
            Comparison(
                evaluation,
                _basis(counts, groups),
                figure.label,
                old.get(metric),
                new.get(metric),
                figure.better,
                _interval(known.get(metric)),
                Role(sets[evaluation]["role"]) if evaluation in sets else None,
                int(next(iter(counts.values()), 0)),
                is_main=False,
                doubt=_doubt(figures, evaluation),
            )
            for metric, figure in of_set.items()
            if not figure.is_count
        ]
    return _tested(lines, choosing_sets(figures))


def _doubt(figures: Mapping[str, Any], evaluation: str) -> str:
    """Tell why the figures of a set may flatter the model; empty without a reason."""
    if overlap := told_overlap(figures, evaluation):
        return overlap
    return "it chose the checkpoint" if evaluation in choosing_sets(figures) else ""


def main_lines(lines: Sequence[Comparison]) -> list[Comparison]:
    """Return the first figure of each set with `higher` as better."""
    first: dict[str, Comparison] = {}
    for line in lines:
        if line.difference is not None and line.better == "higher":
            first.setdefault(line.evaluation, line)
    return list(first.values())


def _tested(lines: Sequence[Comparison], choosing: Collection[str]) -> list[Comparison]:
    """Return the lines, the main ones with p values adjusted among all sets of their role.

    Otherwise a model as good as its start gains on one of ten sets by chance in every fifth run.
    Sets in ``choosing`` decide nothing beside others, so the others are adjusted without them.
    """
    families: dict[Role | None, dict[str, Comparison]] = {}
    for line in main_lines(lines):
        if line.role != Role.VARIANT:
            families.setdefault(line.role, {})[line.evaluation] = line
    tested = {}
    for family in families.values():
        known = {name: line.interval.probability for name, line in family.items() if line.interval}
        independent = {name: p for name, p in known.items() if name not in choosing}
        adjusted: dict[str, float] = {}
        # In this order: the second adjustment replaces the first for all independent sets.
        for by_name in (known, independent):
            adjusted |= zip(by_name, holm([*by_name.values()]), strict=True)
        for name, line in family.items():
            tested[id(line)] = replace(line, is_main=True, adjusted_p=adjusted.get(name))
    return [tested.get(id(line), line) for line in lines]


def _basis(counts: Mapping[str, float], groups: int | None) -> str:
    """Return the size of a set in words: `1,500 queries in 23 groups, 20,000 documents`."""
    sizes = [f"{count:,.0f} {label}" for label, count in counts.items()]
    if sizes and groups:
        sizes[0] += f" in {groups:,} groups"
    return ", ".join(sizes)


def _interval(known: Mapping[str, Any] | None) -> Interval | None:
    if known is None:
        return None
    # A later release may have recorded further fields.
    names = {field.name for field in fields(Interval)}
    return Interval(**{name: value for name, value in known.items() if name in names})
