"""The console command: the options of each command; :mod:`pipelines.jobs` does the work.

The scripts in `jobs/` are the same commands. Exit codes: 0 when done, 1 for a failure at run time,
2 for a fault of the input (one line on standard error), 3 if the quality gate refuses a promotion,
4 if there is nothing new to work on.
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
from pipelines.catalog import COMMANDS, WITHOUT_SPARK
from pipelines.errors import InputError, NothingNew, PipelineError
from pipelines.interruption import how_to_go_on, terminated_in_order
from pipelines.libraries import check_job
from pipelines.progress import MessageHandler, say
from pipelines.provenance import given_on_command_line

# Each command imports the rest for itself, so that help and refusals come at once.
if TYPE_CHECKING:
    from pipelines.settings import Config

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train sentence encoders inside a Spark cluster, on the engine of your choice.",
    epilog="Exit codes: 0 done; 1 failed at run time; 2 correct your input; "
    "3 the quality gate refused a promotion; 4 nothing new to work on.",
)
PLUGINS = "sentence_pipelines.commands"
"""Entry points: functions from the arguments behind a command to an exit code."""
CTRL_C = 130
"""Typer's exit code of a command interrupted from the keyboard."""
ConfigFile = Annotated[
    str | None, typer.Option("--config", help="YAML file of settings. Default: the embedded job.")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="KEY=VALUE, which overrides the file; repeatable.")
]
OutcomeFile = Annotated[
    str | None,
    typer.Option("--outcome", help="JSON file for the outcome of the job, for schedulers."),
]
DataFolder = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="Data to measure on, such as a prepared folder. Default: the embedded corpus.",
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
    """Make a command of a function with its options; its docstring is the help.

    `--config` and `--set` follow the options, and `--outcome` in commands for schedulers. The
    catalog has the work of the command by its name.
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
        declared_options = signature(declared, eval_str=True).parameters.values()
        # typer reads the options from the signature.
        vars(run)["__signature__"] = Signature([*declared_options, *common])
        return app.command(name, help=declared.__doc__)(run)

    return register


@_command(outcome=True)
def prepare() -> None:
    """Turn texts into lanes (shards): corpus, tokens and the batch plan."""


@_command()
def delete(
    key: Annotated[
        list[str] | None, typer.Option("--key", help="Key of the rows; repeatable.")
    ] = None,
    keys: Annotated[str | None, typer.Option("--keys", help="File of keys, one per line.")] = None,
) -> None:
    """Remove the rows of keys (corpus.key_column) from corpus, lanes and vectors, for good."""


@_command(outcome=True)
def train() -> None:
    """Train on prepared lanes; write the model to run.folder/model."""


@_command(outcome=True)
def evaluate() -> None:
    """Measure a run's model against its start, and write the report."""


@_command()
def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...", help="Folders of runs, to compare if several. Default: run.folder."
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            help="File to write. Default: report.html in the folder of the run, or "
            "comparison.html in the working folder for several.",
        ),
    ] = None,
) -> None:
    """Write the report of a run again, also of an unfinished one, or compare several runs."""


@_command(outcome=True)
def promote() -> None:
    """Put a run's model into service in promotion.target, unless the one there is better."""


@_command(outcome=True)
def clean() -> None:
    """Remove old runs beside run.folder, except the newest and those of promoted models."""


@_command()
def rollback(
    to: Annotated[
        str | None, typer.Option(help="The version. Default: the one in service before.")
    ] = None,
) -> None:
    """Put an older model back into service."""


@_command()
def compare(
    data: DataFolder = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Steps of each training. Default: 60.")
    ] = None,
    runs: Annotated[int | None, typer.Option("--runs", min=1, help="Rounds. Default: 3.")] = None,
    cases: Annotated[
        str | None,
        typer.Option("--cases", help="Strategies, separated by commas. Default: all."),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option("--workers", help="Numbers of workers, separated by commas. Default: 1,2."),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option("--workload", help="The training to measure. Default: that of the settings."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", help="Folder for the measurements. Default: strategies."),
    ] = None,
) -> None:
    """Train by each engine in turn, and recommend an engine and a number of workers."""


# The options are those of the distribution that has the benchmarks.
@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def benchmark(context: typer.Context) -> None:
    """Measure something side by side; needs sentence-pipelines-bench."""
    if context.args[:1] == ["strategies"]:
        say("`benchmark strategies` is now called `compare`", file=sys.stderr)
        raise typer.Exit(_code_of(["compare", *context.args[1:]]))
    (plugin,) = entry_points(group=PLUGINS, name="benchmark") or (None,)
    if plugin is None:
        raise InputError(
            "benchmark",
            "the benchmarks are not installed",
            "Run `pip install ./bench` in the checkout of this release",
        )
    raise typer.Exit(plugin.load()(context.args))


@_command()
def run() -> None:
    """Prepare, train and evaluate."""


@_command(outcome=True)
def embed() -> None:
    """Add a column of vectors to a table; a later run makes only missing or changed rows."""


@_command(outcome=True)
def publish(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the work, and write nothing.")
    ] = False,
) -> None:
    """Bring a store of vectors up to date from an embedded table: new, changed and deleted rows."""


@_command(outcome=True)
def ask(
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Ask about a few documents, price the job, write nothing."),
    ] = False,
) -> None:
    """Let a language model write questions about documents, for training; filter them."""


@_command(outcome=True)
def mine() -> None:
    """Add hard negatives to pairs, from the documents nearest to each anchor."""


@_command(outcome=True)
def score() -> None:
    """Add a teacher's scores to pairs or triplets, for losses that learn them."""


@_command()
def search(
    query: Annotated[
        list[str] | None, typer.Option("--query", help="Text to search for; repeatable.")
    ] = None,
    queries: Annotated[
        str | None, typer.Option("--queries", help="File of queries, one per line.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Rows for each query.")] = 10,
    index: Annotated[
        bool,
        typer.Option("--index", help="Search an index instead of all rows; build it if absent."),
    ] = False,
    hybrid: Annotated[
        bool,
        typer.Option("--hybrid", help="Merge the ranking by vectors with one by words (BM25)."),
    ] = False,
    rerank: Annotated[
        str | None,
        typer.Option(
            "--rerank", help="Folder of a cross-encoder, which ranks the best rows again."
        ),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option("--depth", min=1, help="Rows of each query for --rerank. Default: 50."),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            "--share", help="Weight of --rerank beside the ranking before it. Default: 1."
        ),
    ] = None,
) -> None:
    """Print the rows of an embedded table nearest to a query."""


@_command()
def export(
    to: Annotated[
        str, typer.Option("--to", help="Form: onnx, openvino, model2vec, router.")
    ] = "onnx",
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="Model folder, or `default`. Default: the run's, in run.folder."
        ),
    ] = None,
    served: Annotated[
        bool, typer.Option("--served", help="Export the model in service (promotion.target).")
    ] = False,
    documents: Annotated[
        str | None,
        typer.Option("--documents", help="Model of documents, for router. Default: teacher.model."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", help="Folder to write. Default: model-FORMAT."),
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Write the weights in int8 too (onnx).")
    ] = False,
    least_cosine: Annotated[
        float | None,
        typer.Option(
            "--least-cosine", help="Least cosine of int8 vectors with the model's. Default: 0.95."
        ),
    ] = None,
) -> None:
    """Write a model in the form of another runtime, checked against the model."""


@app.command()
def engines(
    name: Annotated[str | None, typer.Argument(help="One engine. Default: all.")] = None,
    config: ConfigFile = None,
    set_: Overrides = None,
    defaults: Annotated[
        bool, typer.Option("--defaults", help="Print lines for spark-defaults.conf instead.")
    ] = False,
) -> None:
    """List the engines or show one's needs; with --config, --set or --defaults, a Spark conf."""
    if config is None and not set_ and not defaults:
        check_job("engines", needs_spark=False)
        from pipelines.jobs.engines import show_engines

        show_engines(name)
        return
    overrides = [*(set_ or ()), *([f"training.engine={name}"] if name else [])]
    configured(partial(_work_of, "engines", {"as_file": defaults}), config, overrides)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[MessageHandler()])
    logging.getLogger("pipelines").setLevel(logging.INFO)
    # Py4J logs traces of connections broken by an interruption; it raises all other errors.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # Outermost, since the session stops inside: Spark needs this order.
    with terminated_in_order() as interruption, given_on_command_line(given):
        try:
            code = _code_of(given)
        except KeyboardInterrupt:
            code = CTRL_C
        except PipelineError as error:
            return _refused(error)
        except typer.TyperException as error:
            # Without a command typer has shown the help already, and the message is empty.
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
    # Otherwise typer would print errors and exit by itself.
    return int(app(args=list(arguments), standalone_mode=False) or 0)


def _refused(error: PipelineError) -> int:
    """Print the error; return its exit code."""
    from pipelines.settings.redaction import without_password

    message = without_password(str(error))
    say(message if isinstance(error, NothingNew) else f"error: {message}", file=sys.stderr)
    code = error.exit_code
    if code == 1 or getattr(error, "key", "").startswith("spark."):
        from pipelines.spark.session import kept_spark_log

        log = kept_spark_log()
        if log and str(log) not in message:
            say(f"Spark's own log: {log}", file=sys.stderr)
    return code


def _work_of(name: str, options: Mapping[str, Any], config: Config) -> Mapping[str, Any] | None:
    """Do the work of a command; import its module only once the settings are valid."""
    check_job(name, needs_spark=name not in WITHOUT_SPARK)
    result: Mapping[str, Any] | None = COMMANDS.load(name)(config, **options)
    return result


def configured(
    command: Callable[[Config], Mapping[str, Any] | None],
    path: str | None,
    overrides: list[str] | None,
    outcome: str | None = None,
) -> None:
    """Run a command with the settings of a file and of overrides (`KEY=VALUE`).

    Without a `path`, the embedded default job runs. The command's results go into the file
    `outcome`, for schedulers.
    """
    from pipelines.jobs.outcome import noted
    from pipelines.settings.load import parse, read_tree, storage_of

    with _ended_in_order():
        try:
            given = read_tree(path, overrides or ())
        except InputError:
            # A scheduler also wants to know of unreadable settings.
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
