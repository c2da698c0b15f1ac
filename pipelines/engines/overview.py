"""The engines for people: a table of all, the requirements of one, and the Spark conf of a run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping

from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from pipelines.engines.base import ConfRule, Engine, load_engine
from pipelines.settings import Config
from pipelines.settings.redaction import SPARK_PATTERN, SPARK_REDACTION

_LINE_COLUMNS = 110
"""The width of a table with one line per engine."""


def engines_table(names: Iterable[str]) -> Constrain:
    """Return one row per engine: modes, frameworks and best use."""
    table = Table(box=None, expand=True, padding=(0, 2, 0, 0))
    table.add_column("engine", no_wrap=True)
    # In proportion to their longest cells. rich would narrow only the widest column, to three lines
    # of a row in 80 columns.
    table.add_column("modes", ratio=20)
    table.add_column("frameworks", ratio=17)
    table.add_column("best for", ratio=40)
    for name in names:
        engine = load_engine(name)
        table.add_row(name, ", ".join(engine.modes), ", ".join(engine.frameworks), engine.best_for)
    return Constrain(table, _LINE_COLUMNS)


def engine_details(name: str) -> Table:
    """Return the requirements and guarantees of an engine, mode by mode, and its conf rules."""
    engines = variants(name)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(name, "bold"), f"with {', '.join(engines[0].frameworks)}")
    for engine in engines:
        if engine.best_for:
            table.add_row("  best for", engine.best_for)
        for mode_name, mode in engine.modes.items():
            table.add_row(f"  {mode_name}", "")
            table.add_row("    needs", _plain(mode.needs))
            table.add_row("    guarantee", _plain(mode.guarantee))
            table.add_row("    choose when", _plain(mode.choose_when))
    for rule in all_rules(name):
        table.add_row("  conf", rule.text)
    return table


def variants(name: str) -> list[Engine]:
    """Load each implementation of an engine; its frameworks choose between them."""
    first = load_engine(name)
    engines = [first, *(load_engine(name, framework) for framework in first.frameworks)]
    return [*{type(engine): engine for engine in engines}.values()]


def all_rules(name: str) -> tuple[ConfRule, ...]:
    """Return the conf rules of an engine with any of its frameworks, each once."""
    rules = (rule for engine in variants(name) for rule in engine.rules)
    return tuple(dict.fromkeys(rules))


def _plain(text: str) -> Text:
    return Text(re.sub(r"\[(.+?)\]\(.+?\)", r"\1", text).replace("`", ""))


_BACKSLASH = "\\"


def submit_conf(engine: Engine, config: Config) -> dict[str, str]:
    """Return the conf for spark-submit of a run; empty without Spark.

    The configuration's keys of Spark's conf take precedence.
    """
    if not engine.needs_spark:
        return {}
    threads, executors = config.training.threads, engine.executors(config)
    conf = {
        # Spark's own pattern hides fewer secrets in its pages and its event log.
        SPARK_REDACTION: SPARK_PATTERN,
        # YARN and Kubernetes count executors, a standalone cluster their cores.
        "spark.executor.instances": str(executors),
        "spark.cores.max": str(executors * threads),
        "spark.executor.cores": str(threads),
        # One task at a time on an executor, with all its cores.
        "spark.task.cpus": str(threads),
    }
    # Amounts, and rules with a key that accepts the consequences, depend on the cluster.
    strict = (rule for rule in engine.rules if rule.most is None and not rule.unless)
    conf |= {rule.key: rule.value for rule in strict}
    conf |= engine.extra_submit_conf(config)
    return conf | {
        key: value for key, value in config.stage_conf("train").items() if key != "spark.master"
    }


def conf_lines(conf: Mapping[str, str], *, as_file: bool) -> Iterator[str]:
    """Yield a Spark conf, by whole key, ready to paste.

    The lines are for ``spark-defaults.conf`` if `as_file`, otherwise arguments of spark-submit.
    """
    width = max(map(len, conf), default=0)
    for key, value in conf.items():
        if as_file:
            # Java reads it as a file of properties, where a backslash begins an escape.
            yield f"{key.ljust(width)}  {value.replace(_BACKSLASH, _BACKSLASH * 2)}"
        else:
            yield f"--conf {shlex.quote(f'{key}={value}')} \\"
