"""`engines`: shows all engines, the needs of one, and the Spark conf of a run."""

from __future__ import annotations

import sys

from pipelines.catalog import ENGINES
from pipelines.engines.automatic import with_engine
from pipelines.engines.base import check_fit, engine_of
from pipelines.engines.overview import conf_lines, engine_details, engines_table, submit_conf
from pipelines.progress import say
from pipelines.progress.screen import Screen
from pipelines.settings import Config


def show_engines(name: str | None) -> None:
    """Print the table of all engines, or the needs of one."""
    if name is None:
        Screen().print(engines_table(ENGINES))
        say("\nsentence-pipelines engines NAME shows the needs and the Spark conf of one.")
    else:
        Screen().print(engine_details(name))


def command(config: Config, *, as_file: bool) -> None:
    """Print the Spark conf of a run, as arguments or as lines of spark-defaults.conf."""
    config = with_engine(config)
    engine = engine_of(config)
    check_fit(engine, config)
    for line in conf_lines(submit_conf(engine, config), as_file=as_file):
        say(line)
    # Standard output is the conf for spark-submit, and nothing else.
    if not engine.needs_spark:
        say(f"engine {engine.name} needs no Spark", file=sys.stderr)
