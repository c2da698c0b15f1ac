"""The console command: the options of each command; :mod:`pipelines.jobs` does the work.

The scripts in `jobs/` are the same commands. Exit codes: 0 when done, 1 for a failure at run time,
2 for what the user can correct (one line on standard error), 3 if the quality gate refuses a
promotion, 4 if there is nothing new to work on.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import entry_points
from inspect import Signature, signature
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines import __version__
from pipelines.catalog import COMMANDS, ENGINES
from pipelines.errors import InputError, NothingNew, PipelineError
from pipelines.interruption import how_to_go_on, terminated_in_order
from pipelines.progress import MessageHandler, say
from pipelines.provenance import given_on_command_line

# All else is imported by the command that uses it, so that help and refusals come at once.
if TYPE_CHECKING:
    from pipelines.settings import Config

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train sentence encoders inside a Spark cluster, on the engine of your choice.",
    epilog="Exit codes: 0 done; 2 for what you can correct, in one line; 3 if the quality gate "
    "refuses a promotion; 4 if there is nothing new to work on; 1 for a failure at run time.",
)
PLUGINS = "sentence_pipelines.commands"
"""Entry points: functions that take the arguments behind a command and return an exit code."""
CTRL_C = 130
"""Typer's exit code of a command interrupted from the keyboard."""
ConfigFile = Annotated[
    str | None, typer.Option("--config", help="YAML file; without it, the embedded default job.")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="KEY=VALUE over the file; may be repeated.")
]
OutcomeFile = Annotated[
    str | None,
    typer.Option(
        "--outcome", help="File to write what came of the job into, JSON, for schedulers."
    ),
]
DataFolder = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="What to measure on, such as a prepared folder; by default the embedded corpus.",
    ),
]


def _show_version(asked: bool) -> None:
    if asked:
        say(f"sentence-pipelines {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=_show_version,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Options before a command."""


def _command(*, outcome: bool = False) -> Callable[[Callable[..., None]], object]:
    """Make a command of a function that declares its options; its docstring is the help.

    `--config` and `--set` follow the options, and `--outcome` in commands that schedulers start.
    The catalog has the work of the command by its name.
    """

    def register(declared: Callable[..., None]) -> object:
        name = declared.__name__

        def run(
            config: ConfigFile = None,
            set_: Overrides = None,
            outcome: OutcomeFile = None,
            **options: Any,
        ) -> None:
            configured(partial(_work_of, name, options), config, set_, outcome)

        common = [*signature(run, eval_str=True).parameters.values()][: 3 if outcome else 2]
        own = signature(declared, eval_str=True).parameters.values()
        vars(run)["__signature__"] = Signature([*own, *common])
        return app.command(name, help=declared.__doc__)(run)

    return register


@_command(outcome=True)
def prepare() -> None:
    """Text in, lanes out: corpus, tokens and the batch plan."""


@_command()
def delete(
    key: Annotated[
        list[str] | None, typer.Option("--key", help="Key of the rows; may be repeated.")
    ] = None,
    keys: Annotated[str | None, typer.Option("--keys", help="File of keys, one a line.")] = None,
) -> None:
    """Remove the rows of keys (corpus.key_column) from corpus, lanes and vectors, for good."""


@_command(outcome=True)
def train() -> None:
    """Train on prepared lanes; the model is in run.folder/model."""


@_command(outcome=True)
def evaluate() -> None:
    """Measure a run's model against its start, and write the report."""


@_command()
def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...", help="Folders of runs; several are compared. Default: run.folder."
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            help="File to write; by default report.html in the folder of the run, or "
            "comparison.html in the working folder if there are several.",
        ),
    ] = None,
) -> None:
    """Write the report of a run again, or of an unfinished run; or compare several runs."""


@_command(outcome=True)
def promote() -> None:
    """Put a run's model into service in promotion.target, unless it is worse than the one there."""


@_command(outcome=True)
def clean() -> None:
    """Remove old runs beside run.folder, but for the newest and those of models that are kept."""


@_command()
def rollback(
    to: Annotated[
        str | None, typer.Option(help="The version; by default the one in service before.")
    ] = None,
) -> None:
    """Put an older model back into service."""


@_command()
def compare(
    data: DataFolder = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Of each training; 60 by default.")
    ] = None,
    runs: Annotated[int | None, typer.Option("--runs", min=1, help="Rounds; 3 by default.")] = None,
    cases: Annotated[
        str | None,
        typer.Option("--cases", help="Strategies, with commas; all of them by default."),
    ] = None,
    workers: Annotated[
        str | None, typer.Option("--workers", help="Numbers, with commas; 1,2 by default.")
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option("--workload", help="What is trained; what the settings say by default."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", help="Folder of what was measured; strategies by default."),
    ] = None,
) -> None:
    """Train by each engine in turn, and tell which to take with how many workers."""


# The options are those of the distribution that has the benchmarks.
@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def benchmark(context: typer.Context) -> None:
    """Measure something side by side, where sentence-pipelines-bench is installed."""
    if context.args[:1] == ["strategies"]:
        say("`benchmark strategies` is now called `compare`", file=sys.stderr)
        raise typer.Exit(_code_of(["compare", *context.args[1:]]))
    (found,) = entry_points(group=PLUGINS, name="benchmark") or (None,)
    if found is None:
        raise InputError(
            "benchmark",
            "the benchmarks are not installed",
            "install them: pip install ./bench in the checkout of this release",
        )
    raise typer.Exit(found.load()(context.args))


@_command()
def run() -> None:
    """Prepare, train and evaluate, one after the other."""


@_command(outcome=True)
def embed() -> None:
    """Add a column of vectors to a table; run again, it makes what is missing or has changed."""


@_command(outcome=True)
def mine() -> None:
    """Add hard negatives to pairs: documents that a model finds near an anchor."""


@_command()
def search(
    query: Annotated[
        list[str] | None, typer.Option("--query", help="Text to search for; may be repeated.")
    ] = None,
    queries: Annotated[
        str | None, typer.Option("--queries", help="File of queries, one a line.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Rows for each query.")] = 10,
    index: Annotated[
        bool,
        typer.Option(
            "--index", help="Search an index, built if there is none, instead of all rows."
        ),
    ] = False,
    hybrid: Annotated[
        bool,
        typer.Option(
            "--hybrid", help="Rank by the words of the query too (BM25), and fuse both rankings."
        ),
    ] = False,
) -> None:
    """Print the rows of an embedded table that are nearest to a query."""


@app.command()
def engines(
    name: Annotated[str | None, typer.Argument(help="One engine; all of them by default.")] = None,
    config: ConfigFile = None,
    set_: Overrides = None,
    defaults: Annotated[
        bool, typer.Option("--defaults", help="Lines for spark-defaults.conf instead.")
    ] = False,
) -> None:
    """Show what engines need; with --config, --set or --defaults, the Spark conf of that run."""
    if config is None and not set_ and not defaults:
        from pipelines.jobs.engines import show_engines

        show_engines(ENGINES if name is None else [name])
        return
    overrides = [*(set_ or ()), *([f"training.engine={name}"] if name else [])]
    configured(partial(_work_of, "engines", {"as_file": defaults}), config, overrides)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[MessageHandler()])
    logging.getLogger("pipelines").setLevel(logging.INFO)
    # It logs traces of connections that an interruption breaks; what fails besides is raised.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # Outermost: the session is stopped inside, in the order that Spark needs.
    with terminated_in_order() as interruption, given_on_command_line(given):
        try:
            code = _code_of(given)
        except KeyboardInterrupt:
            code = CTRL_C
        except PipelineError as error:
            return _refused(error)
        except typer.TyperException as error:
            # Without a command the help has been shown already, and the message is empty.
            if problem := error.format_message().rstrip("."):
                say(f"error: {problem} (see --help)", file=sys.stderr)
            return 2
    if code == CTRL_C:
        from pipelines.spark.session import under_spark_submit

        hint = how_to_go_on(given, submitted=under_spark_submit(), run_begun=interruption.run_begun)
        say(hint, file=sys.stderr)
        return interruption.exit_code
    return code


def _code_of(arguments: Sequence[str]) -> int:
    return int(app(args=list(arguments), standalone_mode=False) or 0)


def _refused(error: PipelineError) -> int:
    """Print the error; return its exit code."""
    from pipelines.settings.redaction import without_password

    said = without_password(str(error))
    say(said if isinstance(error, NothingNew) else f"error: {said}", file=sys.stderr)
    code = error.exit_code
    if code == 1 or getattr(error, "key", "").startswith("spark."):
        from pipelines.spark.session import kept_spark_log

        log = kept_spark_log()
        if log and str(log) not in said:
            say(f"Spark's own log: {log}", file=sys.stderr)
    return code


def _work_of(name: str, options: Mapping[str, Any], config: Config) -> Mapping[str, Any] | None:
    """Do the work of a command; import its module only once the settings are valid."""
    result: Mapping[str, Any] | None = COMMANDS.load(name)(config, **options)
    return result


def configured(
    command: Callable[[Config], Mapping[str, Any] | None],
    path: str | None,
    overrides: list[str] | None,
    outcome: str | None = None,
) -> None:
    """Run a command with the settings of a file and of overrides (`KEY=VALUE`).

    Without a `path`, the embedded default job runs. The results that the command returns are
    written into the file `outcome`, for schedulers.
    """
    from pipelines.jobs.outcome import noted
    from pipelines.settings.load import parse, read_tree, storage_of

    with _ended_in_order():
        try:
            given = read_tree(path, overrides or ())
        except InputError:
            # A scheduler wants to know of settings too that cannot be read.
            with noted(outcome):
                raise
        with noted(outcome, storage_of(given)) as note:
            note(command(parse(given)) or {})


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """End the Spark session with its command, and the command with spark-submit."""
    from pipelines.spark.session import end_with_spark_submit, stopped_at_the_end

    end_with_spark_submit()
    with stopped_at_the_end():
        yield


if __name__ == "__main__":
    sys.exit(main())
