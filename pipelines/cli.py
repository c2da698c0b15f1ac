"""The console command; the scripts in ``jobs/`` are the same commands, one each.

Exit codes: 0 when done, 2 for what the user can mend (one line on standard error), 3 if the quality
gate refuses a promotion, 1 for a failure at run time.
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
from pipelines.engines import REGISTRY, engine
from pipelines.engines.base import check_fit
from pipelines.engines.conf import submit_conf
from pipelines.engines.overview import conf_lines, engines_table
from pipelines.errors import InputError, PipelineError, PromotionRefused
from pipelines.report.hits import hits_table
from pipelines.report.table import metrics_table
from pipelines.session import end_with_spark_submit, stopped_at_the_end
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
def report(config: ConfigFile = None, set_: Overrides = None) -> None:
    """Draw the report of a run again, or of one that has not finished."""
    _configured(_report, config, set_)


@app.command()
def promote(config: ConfigFile = None, set_: Overrides = None) -> None:
    """Put a run's model in service, in promotion.target, unless it is worse than the one there."""
    _configured(_promote, config, set_)


@app.command()
def rollback(
    to: Annotated[
        str | None, typer.Option(help="The version; the one in service before, unless given.")
    ] = None,
    config: ConfigFile = None,
    set_: Overrides = None,
) -> None:
    """Put an older model back in service."""
    _configured(lambda found: _show_current(workflow.roll_back(found, to)), config, set_)


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


@app.command()
def embed(config: ConfigFile = None, set_: Overrides = None) -> None:
    """Give a table a column of vectors; run again, it makes only what is missing."""
    _configured(_embed, config, set_)


@app.command()
def search(
    query: Annotated[
        list[str] | None, typer.Option("--query", help="What is looked for; may be repeated.")
    ] = None,
    queries: Annotated[
        str | None, typer.Option("--queries", help="File of queries, one a line.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Rows of each query.")] = 10,
    index: Annotated[
        bool, typer.Option("--index", help="Search an index, built if there is none, not all rows.")
    ] = False,
    config: ConfigFile = None,
    set_: Overrides = None,
) -> None:
    """The rows of an embedded table that are nearest to a query."""
    from pipelines.embedding.lookup import read_queries

    asked = [*(query or ()), *(read_queries(queries) if queries else ())]
    hits = workflow.search(load(config, set_ or ()), asked, k, indexed=index)
    Console().print(hits_table(asked, hits))


@app.command()
def engines(
    name: Annotated[
        str | None, typer.Argument(help="One engine; all of them unless given.")
    ] = None,
    config: ConfigFile = None,
    set_: Overrides = None,
    defaults: Annotated[
        bool, typer.Option("--defaults", help="Lines for spark-defaults.conf instead.")
    ] = False,
) -> None:
    """What the engines need; with --config, --set or --defaults, the conf of that run."""
    if config is None and not set_ and not defaults:
        Console().print(engines_table(REGISTRY if name is None else [name]))
        return
    settings = load(config, [*(set_ or ()), *([f"training.engine={name}"] if name else [])])
    chosen = engine(settings.training.engine)
    check_fit(chosen, settings)
    for line in conf_lines(submit_conf(chosen, settings), as_file=defaults):
        print(line)
    if not chosen.needs_spark:
        print(f"engine {chosen.name} needs no Spark", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("pipelines").setLevel(logging.INFO)
    end_with_spark_submit()
    try:
        with stopped_at_the_end():
            code = app(args=arguments, standalone_mode=False)
    except InputError as error:
        _print_error(error)
        return 2
    except PromotionRefused as error:
        _print_error(error)
        return 3
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


def _embed(config: Config) -> None:
    summary = workflow.embed(config)
    Console().print(f"table   {summary.folder}", soft_wrap=True, highlight=False)


def _run(config: Config) -> None:
    _show(config, workflow.run(config))


def _evaluate(config: Config) -> None:
    _show(config, workflow.evaluate(config))


def _report(config: Config) -> None:
    Console().print(f"report  {workflow.report(config)}", soft_wrap=True, highlight=False)


def _promote(config: Config) -> None:
    promotion = workflow.promote(config)
    for found in promotion.judgements:
        before = "nothing" if found.served is None else f"{found.served:.2f}"
        print(f"{found.metric}  {found.value:.2f}, in service before: {before}")
    _show_current(promotion.version)


def _show_current(version: Path) -> None:
    Console().print(f"in service  {version}", soft_wrap=True, highlight=False)


def _show(config: Config, figures: Mapping[str, Mapping[str, Any]]) -> None:
    folder = Path(config.run.folder).absolute()
    console = Console()
    console.print(metrics_table(figures["before"], figures["after"]))
    console.print(f"report  {folder / 'report.html'}", soft_wrap=True, highlight=False)
    console.print(f"model   {folder / 'model'}", soft_wrap=True, highlight=False)


def _print_error(error: PipelineError) -> None:
    print(f"error: {error}", file=sys.stderr)
