"""The engine's face: what it knows, and what it needs before it starts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.engines.base import Mode, OnMetrics
from pipelines.engines.bigdl.jars import check_class_paths, class_paths
from pipelines.engines.bigdl.memory import check_memory
from pipelines.engines.jobs import await_slots
from pipelines.errors import InputError
from pipelines.objectives import spans_steps
from pipelines.settings import Config
from pipelines.training.run import TrainingOutcome, TrainingRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.engines.bigdl.account import OnStep

logger = logging.getLogger(__name__)


class BigDLEngine:
    """Trains in Spark's executors, by BigDL's dllib.

    Args:
        on_step: Called with the times of each step.
    """

    name = "bigdl"
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local` on any number of workers; with"
            " `training.compression: fp16` to about 1 %.",
            choose_when="No Python training process may run on the executors, or no port but"
            " Spark's own may be opened.",
            needs="BigDL's jars on `spark.driver.extraClassPath` and"
            " `spark.executor.extraClassPath` (set in a session that is started here), and memory"
            " for some ten copies of the weights in `spark.executor.memory`.",
        )
    }
    frameworks = ("bigdl",)
    feeds = ("lanes", "memory")
    shardings = ("none",)
    options = ("compression",)
    needs_spark = True

    def __init__(self, on_step: OnStep = lambda times: None) -> None:
        self._on_step = on_step

    def executors(self, config: Config) -> int:
        """See :class:`pipelines.engines.base.Engine`."""
        return config.training.workers

    def spark_conf(self, conf: Mapping[str, str]) -> dict[str, str]:
        """See :class:`pipelines.engines.base.NeedsConf`."""
        return class_paths(conf)

    def check(self, session: SparkSession | None, config: Config) -> None:
        """See :class:`pipelines.engines.base.Engine`."""
        assert session is not None
        _check_settings(config)
        context = session.sparkContext
        check_class_paths(dict(context.getConf().getAll()), on_driver=_finds_dllib(session))
        await_slots(session, self.name, config.training)
        check_memory(session, config)

    def train(
        self, session: SparkSession | None, run: TrainingRun, on_metrics: OnMetrics
    ) -> TrainingOutcome:
        """See :class:`pipelines.engines.base.Engine`."""
        from pipelines.engines.bigdl.dllib import train_with_dllib

        assert session is not None
        return train_with_dllib(session, run, on_metrics, self._on_step)


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
