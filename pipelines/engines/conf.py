"""What engines require of the Spark conf: declared once, then checked, printed and documented.

A rule names a key that the user's conf must not contradict. What spark-submit is given besides
follows from the configuration, see :mod:`pipelines.engines.submission`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipelines.errors import EngineUnavailable


@dataclass(frozen=True, kw_only=True)
class ConfRule:
    """A key of the Spark conf that an engine looks at before it starts.

    Attributes:
        value: What it must be.
        why: The reason, as a predicate whose subject is the engine.
        default: Spark's default.
        most: For an amount, the largest that is allowed; every smaller whole number is too.
        unless: A key that, set true, switches the rule off: the user accepts the consequences.
    """

    key: str
    value: str
    why: str
    default: str = "false"
    most: int | None = None
    unless: str | None = None

    def is_kept(self, conf: Mapping[str, str]) -> bool:
        """Whether a conf follows the rule."""
        if self.unless is not None and conf.get(self.unless, "false").lower() == "true":
            return True
        if self.most is not None:
            # Compared as text: libraries parse it by `int`, which accepts neither 0.5 nor 1.0.
            return (conf.get(self.key) or "0") in map(str, range(self.most + 1))
        return conf.get(self.key, self.default).strip().lower() == self.value

    @property
    def text(self) -> str:
        """The rule in a line: the key, what it must be, and why."""
        amount = "a whole number, at most " if self.most else ""
        unless = f", or {self.unless} true" if self.unless else ""
        return f"{self.key} {amount}{self.value}{unless}: it {self.why}"

    @property
    def remedy(self) -> str:
        """What the user should set."""
        return f"set {self.value}" + (f", or {self.unless} true" if self.unless else "")


NO_SPECULATION = ConfRule(key="spark.speculation", value="false", why="cannot run a worker twice")
NO_DYNAMIC_ALLOCATION = ConfRule(
    key="spark.dynamicAllocation.enabled", value="false", why="starts all workers at once"
)
LASTING_WORKERS = (NO_SPECULATION, NO_DYNAMIC_ALLOCATION)
"""For engines whose workers all live as long as the run."""
GPU_AMOUNT = "spark.task.resource.gpu.amount"


def check_conf(conf: Mapping[str, str], engine: str, rules: Iterable[ConfRule]) -> None:
    """Refuses a Spark conf with which an engine cannot run.

    Raises:
        EngineUnavailable: Naming the first key that contradicts a rule.
    """
    for rule in rules:
        if not rule.is_kept(conf):
            raise EngineUnavailable(rule.key, f"engine {engine} {rule.why}", rule.remedy)
