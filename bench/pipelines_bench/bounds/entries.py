"""What the file of bounds says: runs of benchmarks, and the bounds of their figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from pipelines.errors import InputError
from pipelines.files.locations import Location
from pipelines.settings.base import Settings
from pipelines.settings.yaml_file import Openable, UnusableYamlError, parse_yaml, read_text
from pipelines_bench import BENCHMARKS

OWN = "bounds"
"""The benchmark that holds all others to their bounds, and is none of them itself."""
COMPARE = "compare"
"""A command of its own, which is run like a benchmark."""
YARDSTICK = "yardstick"
"""As what a figure is over: see :func:`pipelines_bench.bounds.yardstick.yardstick`."""
Kind = Literal["ratio", "count", "memory"]
LIMITS: Mapping[str, tuple[Kind, ...]] = {
    "at_least": ("ratio",),
    "at_most": ("ratio", "count", "memory"),
    "exactly": ("count",),
}
"""What limits there are, and the kinds of figures that may have them."""


class Bound(Settings):
    """A figure of a run, and what it may be."""

    name: str = Field(pattern=r"^[a-z0-9-]+$", description="Of no other bound.")
    figure: str = Field(description="Its place in the JSON: names and numbers, with dots.")
    over: str | None = Field(
        None, description=f"What it is divided by: a place in the same JSON, or `{YARDSTICK}`."
    )
    kind: Kind = Field(
        description="A ratio of two things in one run, a count, or memory. Other figures are of a "
        "machine, and have no bounds."
    )
    at_least: float | None = None
    at_most: float | None = None
    exactly: float | None = None
    optional: bool = Field(
        False, description="Whether some machines cannot measure it: it is null there."
    )
    seen: str = Field(description="Figures that the bound was set from, and where.")

    @property
    def limit(self) -> tuple[str, float]:
        """Which limit it has, a name of :data:`LIMITS`, and its value."""
        ((name, value),) = self._limits().items()
        return name, value

    def _limits(self) -> dict[str, float]:
        given = {name: getattr(self, name) for name in LIMITS}
        return {name: value for name, value in given.items() if value is not None}

    @model_validator(mode="after")
    def _has_a_limit_of_its_kind(self) -> Bound:
        limits = [*self._limits()]
        if len(limits) != 1:
            raise ValueError(f"it has {len(limits)} limits, one of {', '.join(LIMITS)}")
        if self.kind not in LIMITS[limits[0]]:
            raise ValueError(f"a {self.kind} cannot be bounded by {limits[0]}")
        if self.over is not None and self.kind != "ratio":
            raise ValueError(f"what is over something is a ratio and no {self.kind}")
        return self


class Run(Settings):
    """A benchmark that is run once, in a process of its own."""

    name: str = Field(pattern=r"^[a-z0-9-]+$", description="Of no other run.")
    benchmark: str = Field(description="Which one, or `compare`.")
    options: dict[str, str | int] = Field(
        default_factory=dict,
        description="Of its command, without the dashes; `{prepared}` is the folder of the lanes, "
        "and `{folder}` a temporary one.",
    )
    settings: tuple[str, ...] = Field((), description="KEY=VALUE, as of `--set`.")
    lanes: bool = Field(
        False, description="Whether it needs lanes, which are prepared once for all such runs."
    )
    bounds: tuple[Bound, ...] = Field(min_length=1, description="Of its figures.")

    @property
    def command(self) -> tuple[str, ...]:
        """What runs it, without options."""
        return (COMPARE,) if self.benchmark == COMPARE else ("benchmark", self.benchmark)

    @model_validator(mode="after")
    def _is_of_a_benchmark(self) -> Run:
        if self.benchmark not in {*BENCHMARKS, COMPARE} - {OWN}:
            raise ValueError(f"there is no benchmark `{self.benchmark}`")
        return self


class Bounds(Settings):
    """The file."""

    settings: tuple[str, ...] = Field((), description="KEY=VALUE of all runs, and of the lanes.")
    runs: tuple[Run, ...] = Field(min_length=1, description="In their order.")

    @model_validator(mode="after")
    def _names_each_once(self) -> Bounds:
        for what, names in (
            ("runs", [run.name for run in self.runs]),
            ("bounds", [bound.name for run in self.runs for bound in run.bounds]),
        ):
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise ValueError(f"two {what} are called {twice[0]}")
        return self

    def chosen(self, names: str | None) -> tuple[Run, ...]:
        """Some of the runs.

        Args:
            names: With commas; all of them by default.

        Raises:
            InputError: There is no run of a name.
        """
        if names is None:
            return self.runs
        by_name = {run.name: run for run in self.runs}
        wanted = [name.strip() for name in names.split(",") if name.strip()]
        if not wanted or (unknown := [name for name in wanted if name not in by_name]):
            told = unknown[0] if wanted else ""
            raise InputError(
                "--cases", f"there is no run `{told}`", f"Choose from {', '.join(by_name)}"
            )
        return tuple(run for run in self.runs if run.name in wanted)


def own_file() -> Openable:
    """The bounds of this package."""
    found: Openable = files(__package__).joinpath("bounds.yaml")  # type: ignore[assignment]
    return found


def read_bounds(path: Location | Openable | str | None = None) -> Bounds:
    """Reads a file of bounds.

    Args:
        path: Of the file; by default that of this package.

    Raises:
        InputError: It cannot be read, or says something that is wrong.
    """
    file = own_file() if path is None else path
    try:
        return Bounds.model_validate(parse_yaml(read_text(file)))
    except FileNotFoundError:
        raise InputError("--data", f"there is no file {file}", "Name a file of bounds") from None
    except (OSError, UnicodeDecodeError, UnusableYamlError) as error:
        raise InputError(
            "--data", f"{file} cannot be read ({error})", "See docs/reference/benchmarks.md"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        problem = f"{file}, {place or 'the whole'}: {first['msg']}"
        raise InputError("--data", problem, "See docs/reference/benchmarks.md") from None
