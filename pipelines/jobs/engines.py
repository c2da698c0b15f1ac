"""`engines`: shows what engines need, and the Spark conf of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from pipelines.engines.automatic import with_engine
from pipelines.engines.base import check_fit, engine_of
from pipelines.engines.overview import conf_lines, engines_overview, submit_conf
from pipelines.progress import say
from pipelines.progress.screen import Screen
from pipelines.settings import Config


def show_engines(names: Iterable[str]) -> None:
    """Print what engines need."""
    Screen().print(engines_overview(names))


def command(config: Config, *, as_file: bool) -> None:
    """Print the Spark conf of a run, as arguments or as lines of spark-defaults.conf."""
    config = with_engine(config)
    engine = engine_of(config)
    check_fit(engine, config)
    for line in conf_lines(submit_conf(engine, config), as_file=as_file):
        say(line)
    if not engine.needs_spark:
        say(f"engine {engine.name} needs no Spark", file=sys.stderr)
