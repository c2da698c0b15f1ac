"""The benchmark `bounds`: others with figures that must not slip, each in a process of its own."""

from __future__ import annotations

import json
import logging
import math
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import TypeAdapter, model_validator
from rich.console import Console
from rich.table import Table

from pipelines.benchmarks.processes import cli_command, measure_command, own_environment
from pipelines.errors import InputError, PipelineError
from pipelines.settings import Config
from pipelines.settings.base import Settings

logger = logging.getLogger(__name__)

FILE = "bounds.yaml"
FOLDER = "{folder}"
DEADLINE_SECONDS = 900.0
_LOOSE = 1e-9


class Bound(Settings):
    """What a figure must be.

    Attributes:
        figure: Where it stands in the JSON of a benchmark, with dots.
        at_least: A lower bound.
        at_most: An upper bound.
        equals: The value of a count.
    """

    figure: str
    at_least: float | None = None
    at_most: float | None = None
    equals: float | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if sum(one is not None for one in (self.at_least, self.at_most, self.equals)) != 1:
            raise ValueError("a bound is one of at_least, at_most and equals")
        return self

    def holds(self, value: float) -> bool:
        """Whether a figure is within."""
        if self.at_least is not None:
            return value >= self.at_least
        if self.at_most is not None:
            return value <= self.at_most
        assert self.equals is not None, "it is one of the three"
        return math.isclose(value, self.equals, rel_tol=_LOOSE)

    def __str__(self) -> str:
        named = {"at least": self.at_least, "at most": self.at_most, "exactly": self.equals}
        return next(f"{name} {value:g}" for name, value in named.items() if value is not None)


class Bounded(Settings):
    """A benchmark with bounds.

    Attributes:
        options: Of its command line, with :data:`FOLDER` for a temporary folder that all share.
        bounds: Of what it prints.
    """

    options: tuple[str, ...] = ()
    bounds: tuple[Bound, ...]


@dataclass(frozen=True)
class Judged:
    """A bound, and what was measured; None where a machine cannot measure it."""

    benchmark: str
    bound: Bound
    value: float | None

    @property
    def is_broken(self) -> bool:
        """Whether the figure is beyond its bound."""
        return self.value is not None and not self.bound.holds(self.value)

    def __str__(self) -> str:
        shown = "" if self.value is None else f" is {self.value:g}"
        return f"{self.benchmark} {self.bound.figure}{shown}, {self.bound}"


def measure(config: Config, data: str | None, *, cases: str | None = None) -> dict[str, Any]:
    """Runs benchmarks one after the other, prints a table, and goes on where one fails.

    Args:
        config: Unused: what is measured stands in the file of bounds.
        data: Given to each benchmark; by default each has its own.
        cases: Names of benchmarks, with commas; all that have bounds by default.

    Returns:
        ``bounds``: each with its figure; ``broken``: those that are broken, with the command that
        repeats them, and benchmarks that failed.

    Raises:
        InputError: A benchmark has no bounds.
    """
    judged: list[Judged] = []
    broken: list[str] = []
    chosen = _chosen(cases)
    with tempfile.TemporaryDirectory(prefix="bounds-") as folder:
        for name, one in chosen.items():
            logger.info("bounds: %s", name)
            given = [*one.options, *([] if data is None else ["--data", data])]
            try:
                found = judge(name, one.bounds, _figures(name, given, Path(folder)))
            except PipelineError as error:
                broken.append(f"{name} failed: {error}")
                continue
            judged += found
            placed = [option.replace(FOLDER, "bounds") for option in given]
            repeat = shlex.join(["sentence-pipelines", "benchmark", name, *placed])
            broken += [f"{each} (again: {repeat})" for each in found if each.is_broken]
    Console().print(_table(judged))
    return {
        "bounds": [
            {
                "benchmark": one.benchmark,
                "figure": one.bound.figure,
                "value": one.value,
                "bound": str(one.bound),
            }
            for one in judged
        ],
        "broken": broken,
    }


def read_bounds(text: str) -> dict[str, Bounded]:
    """The benchmarks of a file of bounds.

    Raises:
        ValueError: It is of another form.
    """
    return TypeAdapter(dict[str, Bounded]).validate_python(yaml.safe_load(text))


def judge(name: str, bounds: Sequence[Bound], figures: Mapping[str, Any]) -> list[Judged]:
    """Looks up the figures of a benchmark.

    Raises:
        PipelineError: There is no such figure.
    """
    return [Judged(name, bound, _found(figures, bound.figure)) for bound in bounds]


def _found(figures: Mapping[str, Any], way: str) -> float | None:
    found: Any = figures
    for step in way.split("."):
        try:
            found = found[int(step) if isinstance(found, list) else step]
        except (LookupError, ValueError, TypeError) as error:
            raise PipelineError(f"it has no figure {way}") from error
    return found if found is None else float(found)


def _chosen(cases: str | None) -> dict[str, Bounded]:
    known = read_bounds(resources.files(__package__).joinpath(FILE).read_text(encoding="utf-8"))
    if cases is None:
        return known
    names = [one.strip() for one in cases.split(",")]
    if other := [one for one in names if one not in known]:
        told = f"`{other[0]}` has no bounds"
        raise InputError("--cases", told, f"some of {', '.join(known)}")
    return {name: known[name] for name in dict.fromkeys(names)}


def _figures(name: str, options: Sequence[str], folder: Path) -> dict[str, Any]:
    """What a benchmark prints as its last line."""
    log = folder / f"{name}.log"
    measure_command(
        cli_command("benchmark", name, *(one.replace(FOLDER, str(folder)) for one in options)),
        environment=own_environment(),
        deadline_seconds=DEADLINE_SECONDS,
        log=log,
    )
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    told = [line for line in lines if line.startswith("{")]
    if not told:
        raise PipelineError("it has printed no figures")
    figures: dict[str, Any] = json.loads(told[-1])
    return figures


def _table(judged: Sequence[Judged]) -> Table:
    table = Table("benchmark", "figure", "measured", "bound", "")
    for one in judged:
        verdict = "not here" if one.value is None else "broken" if one.is_broken else "holds"
        value = "" if one.value is None else f"{one.value:.4g}"
        table.add_row(one.benchmark, one.bound.figure, value, str(one.bound), verdict)
    return table
