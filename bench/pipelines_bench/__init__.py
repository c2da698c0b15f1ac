"""Measurements side by side in one run: one file each, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

from pipelines.errors import InputError, PipelineError
from pipelines.libraries import DRIVER, check_installed
from pipelines.progress import activity, job

if TYPE_CHECKING:
    from pipelines.settings import Config

BENCHMARKS: Mapping[str, str] = {
    "bigdl": "pipelines_bench.bigdl",
    "bounds": "pipelines_bench.bounds.command",
    "bucket": "pipelines_bench.bucket",
    "counts": "pipelines_bench.counts",
    "duplicates": "pipelines_bench.duplicates",
    "embed": "pipelines_bench.embed",
    "feed": "pipelines_bench.feed",
    "growth": "pipelines_bench.growth",
    "hybrid": "pipelines_bench.hybrid",
    "increment": "pipelines_bench.increment",
    "mine": "pipelines_bench.mine",
    "objectives": "pipelines_bench.objectives",
    "prepare": "pipelines_bench.prepare",
    "quality": "pipelines_bench.quality",
    "questions": "pipelines_bench.questions",
    "recipe": "pipelines_bench.recipe",
    "soak": "pipelines_bench.soak.command",
    "startup": "pipelines_bench.startup",
    "tokenise": "pipelines_bench.tokenise",
    "train": "pipelines_bench.train",
    "update": "pipelines_bench.update",
    "waits": "pipelines_bench.waits",
}

LONG: Mapping[str, str] = {
    "bigdl": "half an hour",
    "bounds": "a quarter of an hour",
    "bucket": "half an hour",
    "feed": "half an hour",
    "growth": "an hour and more",
    "objectives": "an hour and more",
    "quality": "half an hour",
    "questions": "an hour and more",
    "recipe": "half an hour",
    "soak": "an hour and more",
    "train": "half an hour",
}
"""About how long those take, on two idle cores, that are no matter of minutes."""

NEEDS: Mapping[str, tuple[str, ...]] = {
    "bucket": ("torch", "tensorflow"),
    "counts": ("torch", "tensorflow"),
    "feed": ("tensorflowonspark",),
    "objectives": ("torch",),
    "questions": ("torch",),
    "train": ("tensorflow",),
}
"""Libraries of engines that a benchmark cannot do without, whichever engine is asked for."""

Benchmark = Callable[["Config", "str | None"], dict[str, Any]]


def benchmark(name: str, **options: object) -> Benchmark:
    """The function of a benchmark: it prints a table and returns the figures.

    Args:
        options: Further ones that few benchmarks know; None where it was not given.

    Raises:
        InputError: There is no such benchmark, it does not know an option, or a library is missing.
    """
    if name not in BENCHMARKS:
        raise InputError(
            "NAME", f"there is no benchmark `{name}`", f"Choose one of {', '.join(BENCHMARKS)}"
        )
    for library in NEEDS.get(name, ()):
        check_installed(f"benchmark {name}", library, where=DRIVER)
    measure: Benchmark = import_module(BENCHMARKS[name]).measure
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if key not in signature(measure).parameters:
            raise InputError(f"--{key}", f"benchmark `{name}` does not know it", "Leave it out")

    def shown(config: Config, data: str | None) -> dict[str, Any]:
        with job("benchmark", (f"benchmark {name}",)), activity(f"benchmark {name}"):
            return measure(config, data, **given)

    return shown


def own_options(name: str) -> tuple[str, ...]:
    """The options that a benchmark knows beside those of all."""
    known = signature(import_module(BENCHMARKS[name]).measure).parameters
    return tuple(key for key in known if key not in ("config", "data"))


def check_bounds(figures: Mapping[str, Any]) -> None:
    """Looks whether a benchmark that has bounds has found them held.

    Raises:
        PipelineError: They are not.
    """
    if broken := figures.get("broken"):
        raise PipelineError(f"beyond its bound: {'; '.join(broken)}")
