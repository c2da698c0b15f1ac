"""The Spark conf that spark-submit is to be given for a run, ready to paste."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from pipelines.engines.base import Engine
from pipelines.settings import Config
from pipelines.settings.redaction import SPARK_PATTERN, SPARK_REDACTION

_BACKSLASH = "\\"


def submit_conf(engine: Engine, config: Config) -> dict[str, str]:
    """What spark-submit is to be given for a run; empty for an engine that needs no Spark.

    What the configuration itself sets of Spark's conf wins.
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
    strict = (rule for rule in engine.conf_rules(config) if rule.most is None and not rule.unless)
    conf |= {rule.key: rule.value for rule in strict}
    conf |= engine.extra_submit_conf(config)
    return conf | {
        key: value for key, value in config.stage_conf("train").items() if key != "spark.master"
    }


def conf_lines(conf: Mapping[str, str], *, as_file: bool) -> Iterator[str]:
    """A Spark conf, ready to paste.

    Args:
        conf: By whole key.
        as_file: For ``spark-defaults.conf``; otherwise as arguments of spark-submit.
    """
    width = max(map(len, conf), default=0)
    for key, value in conf.items():
        if as_file:
            # Java reads it as a file of properties, where a backslash begins an escape.
            yield f"{key.ljust(width)}  {value.replace(_BACKSLASH, _BACKSLASH * 2)}"
        else:
            yield f"--conf {shlex.quote(f'{key}={value}')} \\"
