"""What each command does once its settings are known, and what it prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pipelines.errors import one_line
from pipelines.libraries import COMPARISON, DRIVER, REPORT, check_installed, left_out
from pipelines.outcome import Results
from pipelines.progress import activity, job, say

_NAMED_KEYS = 20
_KEY_CHARACTERS = 60

# Imported by the command that uses it, so that help and refusals come at once.
if TYPE_CHECKING:
    from pipelines.files.locations import Location
    from pipelines.settings import Config


def prepare(config: Config) -> Results:
    """Prepares a corpus."""
    from pipelines import workflow
    from pipelines.files.prepared_folder import PreparedFolder

    manifest = workflow.prepare(config, trains=False)
    _print_page(PreparedFolder.of(config).report)
    return {"examples": manifest.examples, "tokens": manifest.tokens, "lanes": manifest.digest}


def delete(config: Config, given: Sequence[str], file: str | None) -> Results:
    """Removes the rows of keys from what was prepared."""
    from pipelines import workflow
    from pipelines.deletion import read_keys

    deletion = workflow.delete(config, read_keys(given, file))
    say(f"deleted  {deletion.rows} rows of the {deletion.keys} keys that are listed by now")
    if deletion.vectors is not None:
        say(f"deleted  {deletion.vectors} rows of {config.embedding.output}")
    if deletion.unmatched:
        say(f"no row   {_told_keys(deletion.unmatched)}")
    for line in deletion.not_covered:
        say(f"not covered  {line}")
    figures = {"rows": deletion.rows, "keys": deletion.keys, "vectors": deletion.vectors}
    return {**figures, "unmatched": len(deletion.unmatched)}


def _told_keys(unmatched: Sequence[str]) -> str:
    """Name keys that no row has, the first of them."""
    named = [one_line(key[:_KEY_CHARACTERS]) for key in unmatched[:_NAMED_KEYS]]
    more = len(unmatched) - len(named)
    end = f" and {more} more" if more else ""
    return (
        f"of {len(unmatched)} keys in corpus.inputs: {', '.join(named)}{end}; compare them with "
        "the values of corpus.key_column"
    )


def train(config: Config) -> Results:
    """Trains an encoder."""
    from pipelines import workflow
    from pipelines.files.run_folder import RunFolder
    from pipelines.files.storage import read_json

    model = workflow.train(config)
    _print_page(workflow.draw_report(config))
    say(f"model   {model}")
    show_limits(config)
    metrics = read_json(RunFolder.of(config).metrics)
    return {"model": str(model), **metrics.get("training", {})}


def embed(config: Config) -> Results:
    """Embeds a table."""
    from pipelines import workflow

    made = workflow.embed(config)
    say(f"table   {made.folder}")
    return asdict(made)


def mine(config: Config) -> Results:
    """Mines hard negatives."""
    from pipelines import workflow

    mined = workflow.mine(config)
    say(f"table   {mined.folder}")
    return asdict(mined)


def clean(config: Config) -> Results:
    """Removes old runs."""
    from pipelines import workflow

    cleaned = workflow.clean(config)
    for name in cleaned.removed:
        say(f"removed  {name}")
    for name in cleaned.kept:
        say(f"kept     {name}")
    return asdict(cleaned)


def search(
    config: Config, asked: Sequence[str], k: int, *, index: bool = False, hybrid: bool = False
) -> None:
    """Shows what is nearest to queries."""
    from pipelines import workflow
    from pipelines.progress.screen import Screen
    from pipelines.report.verdict import hits_table

    hits = workflow.search(config, asked, k, indexed=index, hybrid=hybrid)
    Screen().print(hits_table(asked, hits))


def run(config: Config) -> None:
    """Prepares, trains and evaluates."""
    from pipelines import workflow

    show_figures(config, workflow.run(config))


def evaluate(config: Config) -> Results:
    """Evaluates start and model."""
    from pipelines import workflow

    figures = workflow.evaluate(config)
    show_figures(config, figures)
    return figures


def report(config: Config, runs: Sequence[str], output: str | None) -> None:
    """Draws the report of a run, or compares several."""
    from pipelines import workflow

    say(f"report  {workflow.report(config, runs, output)}")


def promote(config: Config) -> Results:
    """Puts a model in service."""
    from pipelines import workflow

    promotion = workflow.promote(config)
    for found in promotion.judgements:
        before = "nothing" if found.served is None else f"{found.served:.2f}"
        start = "" if found.start is None else f", the start: {found.start:.2f}"
        say(f"{found.metric}  {found.value:.2f}, in service before: {before}{start}")
    say(f"in service  {promotion.version}")
    figures = {found.metric: found.value for found in promotion.judgements}
    return {"version": promotion.version.name, "figures": figures}


def roll_back(config: Config, to: str | None) -> None:
    """Puts an older model in service again."""
    from pipelines import workflow

    say(f"in service  {workflow.roll_back(config, to)}")


def compare(config: Config, data: str | None, **options: Any) -> None:
    """Compares strategies, and prints the figures as a JSON object.

    Args:
        options: Those of :func:`pipelines.compare.command.measure`.
    """
    from pipelines.compare.command import measure

    for library in COMPARISON:
        check_installed("compare", library, where=DRIVER)
    with job("compare", ("compare",)), activity("compare"):
        say(json.dumps(measure(config, data, **options)))


def show_engines(names: Iterable[str]) -> None:
    """Shows what engines need."""
    from pipelines.engines.overview import engines_overview
    from pipelines.progress.screen import Screen

    Screen().print(engines_overview(names))


def show_conf(config: Config, *, as_file: bool) -> None:
    """Shows the Spark conf of a run."""
    from pipelines.engines.automatic import with_engine
    from pipelines.engines.base import check_fit, engine_of
    from pipelines.engines.overview import conf_lines, submit_conf

    config = with_engine(config)
    chosen = engine_of(config)
    check_fit(chosen, config)
    for line in conf_lines(submit_conf(chosen, config), as_file=as_file):
        say(line)
    if not chosen.needs_spark:
        say(f"engine {chosen.name} needs no Spark", file=sys.stderr)


def show_limits(config: Config) -> None:
    """Shows where the model of a run cannot be served."""
    from pipelines.models.lsa import LIMIT

    if config.encoder.lsa.dimensions:
        say(f"limit   {LIMIT}")


def show_figures(config: Config, figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Shows what a run came to."""
    from rich.text import Text

    from pipelines.evaluation.intervals import CANNOT_BE_TOLD, WORSE
    from pipelines.files import storage
    from pipelines.files.run_folder import RunFolder
    from pipelines.progress.screen import Screen
    from pipelines.report.verdict import VERDICT_STYLES, metrics_table, verdict

    folder = RunFolder.of(config)
    console = Screen()
    # Which state the model is, and what it was trained on, stands there and in no evaluation.
    recorded = storage.read_json(folder.metrics) if folder.metrics.is_file() else {}
    known = {**recorded, **figures}
    console.print(metrics_table(known, console.width))
    if found := verdict(known):
        # Not as markup: the name of a set may hold brackets.
        word = CANNOT_BE_TOLD if found.is_doubted else found.word
        console.print(Text(str(found), VERDICT_STYLES[WORSE if found.alarms else word]))
    _print_page(folder.report)
    say(f"model   {folder.model}")
    show_limits(config)


def _print_page(report: Location | None) -> None:
    """Prints where a report is, unless it was left out."""
    if report is not None and not left_out("the report is", REPORT):
        say(f"report  {report}")
