"""The command `benchmark` of the console command, which finds it by an entry point."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli import ConfigFile, DataFolder, Overrides, configured
from pipelines.progress import say
from pipelines_bench import BENCHMARKS, check_bounds
from pipelines_bench import benchmark as find_benchmark

if TYPE_CHECKING:
    from pipelines.settings import Config

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def benchmark(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(BENCHMARKS)}.")],
    data: DataFolder = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Of soak: steps of each training.")
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(
            "--runs",
            min=1,
            help="Of soak: so many short trainings in one session; of others: rounds.",
        ),
    ] = None,
    cases: Annotated[
        str | None,
        typer.Option("--cases", help="Of soak, startup and bounds: names, with commas."),
    ] = None,
    sentences: Annotated[
        int | None, typer.Option("--sentences", min=1, help="Of embed: how many at most.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", help="Of soak and bounds: folder of what is to be kept."),
    ] = None,
    config: ConfigFile = None,
    set_: Overrides = None,
) -> None:
    """Compare side by side; the last line is a JSON object with the figures."""
    measure = find_benchmark(
        name, steps=steps, runs=runs, cases=cases, sentences=sentences, output=output
    )

    def measured(found: Config) -> None:
        figures = measure(found, data)
        say(json.dumps(figures))
        check_bounds(figures)

    configured(measured, config, set_)


def main(arguments: Sequence[str]) -> int:
    """Runs a benchmark by the arguments behind `benchmark`; returns the exit code."""
    return int(
        app(args=list(arguments), standalone_mode=False, prog_name="sentence-pipelines benchmark")
        or 0
    )
