"""The engine's face: what it knows, and what it needs before it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.engines.base import Mode, OnMetrics
from pipelines.engines.bigdl.jars import check_class_paths, class_paths, jars
from pipelines.engines.bigdl.memory import check_memory, needed_memory
from pipelines.engines.bigdl.orca import ORCA_NEEDS, ORCA_RULES, check_orca, train_with_orca
from pipelines.engines.conf import LASTING_WORKERS, ConfRule, refuse_unfit
from pipelines.engines.jobs import await_slots
from pipelines.errors import InputError
from pipelines.objectives import spans_steps
from pipelines.settings import Config
from pipelines.training.run import TrainingOutcome, TrainingRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.engines.bigdl.account import OnStep

DLLIB_NEEDS = (
    "`training.framework: bigdl` (dllib): BigDL's jars on `spark.driver.extraClassPath` and"
    " `spark.executor.extraClassPath`, which a session that is started here has; and for the"
    " weights, the gradients and the activations `spark.executor.memory`, of which too little is"
    " refused with what is needed; `spark.speculation` and `spark.dynamicAllocation.enabled` false."
    " No ports but Spark's own."
)


class BigDLEngine:
    """Trains by BigDL: by its dllib in Spark's executors, or by its Orca in PyTorch.

    Args:
        on_step: Called with dllib's times of each step.
    """

    name = "bigdl"
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local` on any number of workers; with dllib and"
            " `training.compression: fp16` to about 2 %.",
            choose_when="No Python training process may run on the executors, or no port but"
            " Spark's own may be opened (dllib); or the cluster runs BigDL, and PyTorch is to"
            " compute on its CPUs (Orca).",
            needs=f"{DLLIB_NEEDS} {ORCA_NEEDS}",
        )
    }
    frameworks = ("bigdl", "torch")
    feeds = ("lanes", "memory")
    shardings = ("none",)
    options = ("compression",)
    needs_spark = True

    def __init__(self, on_step: OnStep = lambda times: None) -> None:
        self._train: Mapping[str, Callable[..., TrainingOutcome]] = {
            "bigdl": partial(_train_with_dllib, on_step),
            "torch": train_with_orca,
        }

    def executors(self, config: Config) -> int:
        """See :class:`pipelines.engines.base.Engine`."""
        return config.training.workers

    def conf_rules(self, config: Config) -> tuple[ConfRule, ...]:
        """See :class:`pipelines.engines.base.Engine`."""
        return _RULES[config.training.framework]

    def submit_conf(self, config: Config) -> dict[str, str]:
        """See :class:`pipelines.engines.conf.AsksOfSubmit`."""
        if config.training.framework != "bigdl":
            return {}
        # Spark carries them to the executors; a class path would have to be there already.
        return {"spark.jars": ",".join(map(str, jars())), **needed_memory(config)}

    def spark_conf(self, config: Config, conf: Mapping[str, str]) -> dict[str, str]:
        """See :class:`pipelines.engines.base.NeedsConf`."""
        return class_paths(conf) if config.training.framework == "bigdl" else {}

    def check(self, session: SparkSession | None, config: Config) -> None:
        """See :class:`pipelines.engines.base.Engine`."""
        assert session is not None
        _CHECKS[config.training.framework](session, config)

    def train(
        self, session: SparkSession | None, run: TrainingRun, on_metrics: OnMetrics
    ) -> TrainingOutcome:
        """See :class:`pipelines.engines.base.Engine`."""
        return self._train[run.config.training.framework](session, run, on_metrics)


def _train_with_dllib(
    on_step: OnStep, session: SparkSession, run: TrainingRun, on_metrics: OnMetrics
) -> TrainingOutcome:
    # Imports BigDL's Python package.
    from pipelines.engines.bigdl.dllib import train_with_dllib

    return train_with_dllib(session, run, on_metrics, on_step)


def _check_dllib(session: SparkSession, config: Config) -> None:
    _check_settings(config)
    conf = dict(session.sparkContext.getConf().getAll())
    refuse_unfit(conf, BigDLEngine.name, _RULES["bigdl"])
    check_class_paths(conf, on_driver=_finds_dllib(session))
    await_slots(session, BigDLEngine.name, config.training)
    check_memory(session, config)


def _check_orca(session: SparkSession, config: Config) -> None:
    if config.training.compression != "none":
        raise InputError(
            "training.compression", "PyTorch's gradients travel as they are", "leave it none"
        )
    check_orca(session, config)


_RULES: Mapping[str, tuple[ConfRule, ...]] = {"bigdl": LASTING_WORKERS, "torch": ORCA_RULES}
_CHECKS: Mapping[str, Callable[[SparkSession, Config], None]] = {
    "bigdl": _check_dllib,
    "torch": _check_orca,
}


def _check_settings(config: Config) -> None:
    """Refuses what dllib cannot do.

    Raises:
        InputError: Naming the key.
    """
    training = config.training
    refused: tuple[tuple[bool, str, str, str], ...] = (
        (training.precision == "bf16", "training.precision", "dllib computes in fp32", "set fp32"),
        (training.dropout > 0, "training.dropout", "framework bigdl has none", "set it to 0"),
        (
            spans_steps(config.objective),
            "objective.negatives",
            "framework bigdl sees one granule at a time",
            "set it to granule",
        ),
    )
    for is_asked, key, problem, remedy in refused:
        if is_asked:
            raise InputError(key, problem, remedy)


def _finds_dllib(session: SparkSession) -> bool:
    """Whether the driver's JVM has dllib on its class path."""
    from py4j.java_gateway import JavaClass

    jvm: Any = session.sparkContext._jvm
    dllib = jvm.com.intel.analytics.bigdl.dllib
    return isinstance(dllib.optim.DistriOptimizer, JavaClass)
