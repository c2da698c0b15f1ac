"""Measurements side by side in one run: one file each, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipelines.errors import InputError

if TYPE_CHECKING:
    from pipelines.settings import Config

BENCHMARKS: Mapping[str, str] = {
    "bigdl": "pipelines.benchmarks.bigdl",
    "bucket": "pipelines.benchmarks.bucket",
    "duplicates": "pipelines.benchmarks.duplicates",
    "embed": "pipelines.benchmarks.embed",
    "feed": "pipelines.benchmarks.feed",
    "growth": "pipelines.benchmarks.growth",
    "hybrid": "pipelines.benchmarks.hybrid",
    "increment": "pipelines.benchmarks.increment",
    "mine": "pipelines.benchmarks.mine",
    "objectives": "pipelines.benchmarks.objectives",
    "quality": "pipelines.benchmarks.quality",
    "recipe": "pipelines.benchmarks.recipe",
    "startup": "pipelines.benchmarks.startup",
    "tokenise": "pipelines.benchmarks.tokenise",
    "train": "pipelines.benchmarks.train",
    "update": "pipelines.benchmarks.update",
}

Benchmark = Callable[["Config", "str | None"], dict[str, Any]]


def benchmark(name: str) -> Benchmark:
    """The function of a benchmark: it prints a table and returns the figures.

    Raises:
        InputError: There is no such benchmark.
    """
    if name not in BENCHMARKS:
        raise InputError(
            "NAME", f"there is no benchmark `{name}`", f"one of {', '.join(BENCHMARKS)}"
        )
    measure: Benchmark = import_module(BENCHMARKS[name]).measure
    return measure
