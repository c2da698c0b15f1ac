"""The console command; the scripts in ``jobs/`` are the same commands, one each.

Exit codes: 0 when done, 2 for what the user can mend (one line on standard error), 1 for a
failure at run time.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pipelines import workflow
from pipelines.benchmarks import benchmark as find_benchmark
from pipelines.config import load
from pipelines.errors import InputError, PipelineError
from pipelines.report.table import metrics_table
from pipelines.session import stopped_at_the_end
from pipelines.settings import Config

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__
)
ConfigFile = Annotated[
    str | None, typer.Option("--config", help="YAML file; without it, the embedded default job.")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="KEY=VALUE over the file; may be repeated.")
]
DataFolder = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="What is measured on: lanes or captions for feed, files of text for the others; "
        "otherwise the embedded default.",
    ),
]


@app.command()
def prepare(config: ConfigFile = None, set_: Overrides = None) -> None:
    """Text in, lanes out: corpus, tokens and the batch plan."""
    _configured(_prepare, config, set_)


@app.command()
def train(config: ConfigFile = None, set_: Overrides = None) -> None:
    """Train on prepared lanes; the model is in run.folder/model."""
    _configured(workflow.train, config, set_)


@app.command()
def evaluate(config: ConfigFile = None, set_: Overrides = None) -> None:
    """Measure a run's model against its start, and write the report."""
    _configured(_evaluate, config, set_)


@app.command()
def benchmark(
    name: str, data: DataFolder = None, config: ConfigFile = None, set_: Overrides = None
) -> None:
    """Compare side by side; the last line is a JSON object with the figures."""
    figures = find_benchmark(name)(load(config, set_ or ()), data)
    print(json.dumps(figures))


@app.command()
def run(config: ConfigFile = None, set_: Overrides = None) -> None:
    """Prepare, train and evaluate, one after the other."""
    _configured(_run, config, set_)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("pipelines").setLevel(logging.INFO)
    try:
        with stopped_at_the_end():
            code = app(args=arguments, standalone_mode=False)
    except InputError as error:
        _print_error(error)
        return 2
    except PipelineError as error:
        _print_error(error)
        return 1
    except typer.TyperException as error:
        print(f"error: {error.format_message()}, see --help", file=sys.stderr)
        return 2
    return int(code or 0)


def _configured(
    command: Callable[[Config], Any], path: str | None, overrides: list[str] | None
) -> None:
    command(load(path, overrides or ()))


def _prepare(config: Config) -> None:
    workflow.prepare(config)
    report = Path(config.prepared.folder).absolute() / "report.html"
    Console().print(f"report  {report}", soft_wrap=True, highlight=False)


def _run(config: Config) -> None:
    _show(config, workflow.run(config))


def _evaluate(config: Config) -> None:
    _show(config, workflow.evaluate(config))


def _show(config: Config, figures: Mapping[str, Mapping[str, Any]]) -> None:
    folder = Path(config.run.folder).absolute()
    console = Console()
    console.print(metrics_table(figures["before"], figures["after"]))
    console.print(f"report  {folder / 'report.html'}", soft_wrap=True, highlight=False)
    console.print(f"model   {folder / 'model'}", soft_wrap=True, highlight=False)


def _print_error(error: PipelineError) -> None:
    print(f"error: {error}", file=sys.stderr)
