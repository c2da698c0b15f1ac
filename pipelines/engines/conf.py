"""What engines ask of the Spark conf: said once, and checked, printed and documented from here.

A rule names a key that the user's conf must not contradict. What a run is to be given beside that
follows from its configuration: executors, their cores, jars, memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, get_args, runtime_checkable

from pipelines.engines.base import Engine
from pipelines.errors import EngineUnavailable
from pipelines.settings import Config, TrainingSettings


@dataclass(frozen=True, kw_only=True)
class ConfRule:
    """A key of the Spark conf that an engine looks at before it starts.

    Attributes:
        key: The key.
        value: What it must be.
        why: Ends the sentence that begins with the engine.
        default: What Spark takes it for where nobody sets it.
        most: Where it is an amount, the largest that fits; then every smaller one does.
        unless: A key by which the user takes the consequences, if it is set true.
    """

    key: str
    value: str
    why: str
    default: str = "false"
    most: float | None = None
    unless: str | None = None

    def is_kept(self, conf: Mapping[str, str]) -> bool:
        """Whether a conf is as the rule wants it."""
        if self.unless is not None and conf.get(self.unless, "false").lower() == "true":
            return True
        if self.most is not None:
            return float(conf.get(self.key) or 0) <= self.most
        return conf.get(self.key, self.default).strip().lower() == self.value

    @property
    def text(self) -> str:
        """The rule in a line: the key, what it must be, and why."""
        amount = "at most " if self.most else ""
        unless = f", or {self.unless} true" if self.unless else ""
        return f"{self.key} {amount}{self.value}{unless}: it {self.why}"

    @property
    def remedy(self) -> str:
        """What would be right."""
        return f"set {self.value}" + (f", or {self.unless} true" if self.unless else "")


NO_SPECULATION = ConfRule(key="spark.speculation", value="false", why="cannot run a worker twice")
NO_DYNAMIC_ALLOCATION = ConfRule(
    key="spark.dynamicAllocation.enabled", value="false", why="starts all workers at once"
)
LASTING_WORKERS = (NO_SPECULATION, NO_DYNAMIC_ALLOCATION)
"""Of engines whose workers last as long as the run, each of them."""
GPU_AMOUNT = "spark.task.resource.gpu.amount"


@runtime_checkable
class AsksOfSubmit(Protocol):
    """An engine that spark-submit is to give more than executors and cores."""

    def submit_conf(self, config: Config) -> Mapping[str, str]:
        """Keys and values of the Spark conf, by what the configuration says."""
        ...


def refuse_unfit(conf: Mapping[str, str], engine: str, rules: Iterable[ConfRule]) -> None:
    """Refuses a Spark conf with which an engine cannot run.

    Args:
        conf: The session's.
        engine: Name of the engine.
        rules: The engine's.

    Raises:
        EngineUnavailable: With the key.
    """
    for rule in rules:
        if not rule.is_kept(conf):
            raise EngineUnavailable(rule.key, f"engine {engine} {rule.why}", rule.remedy)


def all_rules(engine: Engine) -> tuple[ConfRule, ...]:
    """The rules of an engine with any of its frameworks, each once."""
    rules = (
        rule
        for framework in engine.frameworks
        if framework in get_args(TrainingSettings.model_fields["framework"].annotation)
        for rule in engine.conf_rules(Config(training=TrainingSettings(framework=framework)))  # type: ignore[arg-type] # checked
    )
    return tuple(dict.fromkeys(rules))


def submit_conf(engine: Engine, config: Config) -> dict[str, str]:
    """What spark-submit is to be given for a run; empty for an engine that needs no Spark.

    Args:
        engine: The engine.
        config: The configuration; what it sets of Spark's conf wins.
    """
    if not engine.needs_spark:
        return {}
    threads, executors = config.training.threads, engine.executors(config)
    conf = {
        # YARN and Kubernetes count executors, a standalone cluster their cores.
        "spark.executor.instances": str(executors),
        "spark.cores.max": str(executors * threads),
        "spark.executor.cores": str(threads),
        # So that an executor has one task at a time, which all its cores are for.
        "spark.task.cpus": str(threads),
    }
    # Amounts, and what the user may decide otherwise, are the cluster's own.
    strict = (rule for rule in engine.conf_rules(config) if rule.most is None and not rule.unless)
    conf |= {rule.key: rule.value for rule in strict}
    if isinstance(engine, AsksOfSubmit):
        conf |= engine.submit_conf(config)
    return conf | {f"spark.{key}": value for key, value in config.spark.items() if key != "master"}
