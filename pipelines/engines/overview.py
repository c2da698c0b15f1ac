"""The engines for people: a table of their requirements."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping

from rich.table import Table
from rich.text import Text

from pipelines.engines.base import ConfRule, Engine, load_engine
from pipelines.settings import Config
from pipelines.settings.redaction import SPARK_PATTERN, SPARK_REDACTION


def engines_overview(names: Iterable[str]) -> Table:
    """Return each engine's requirements, mode by mode, and its rules for Spark's conf.

    Columns are stacked, so that the keys stay whole on a narrow screen.
    """
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for place, engine_name in enumerate(names):
        engines = variants(engine_name)
        if place:
            table.add_row("", "")
        frameworks = ", ".join(engines[0].frameworks)
        table.add_row(Text(engine_name, "bold"), Text(f"with {frameworks}"))
        for engine in engines:
            for name, mode in engine.modes.items():
                table.add_row(f"  {name}", _plain(mode.needs))
        for rule in all_rules(engine_name):
            table.add_row("  conf", _plain(rule.text))
    return table


def variants(name: str) -> list[Engine]:
    """Load the engine of a name, once for each implementation that its frameworks choose."""
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
    """Return the conf for spark-submit of a run; empty for an engine that needs no Spark.

    The configuration's own keys of Spark's conf win.
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
        # So that an executor runs one task at a time, which all its cores are for.
        "spark.task.cpus": str(threads),
    }
    # Amounts, and rules that the user may switch off, depend on the cluster.
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
