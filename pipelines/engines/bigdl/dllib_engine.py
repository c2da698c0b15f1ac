"""dllib as an engine: what it requires before it starts. Runs on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from pipelines.engines.base import Mode
from pipelines.engines.bigdl.jars import SPARK_MAJORS, check_class_paths, class_paths, jars
from pipelines.engines.bigdl.memory import check_memory, needed_memory
from pipelines.engines.conf import LASTING_WORKERS
from pipelines.engines.spark_engine import SparkEngine
from pipelines.errors import InputError
from pipelines.losses.loss import spans_steps
from pipelines.models.inference.processor import widest_unused_by_mkl
from pipelines.runs.run import TrainingOutcome, TrainingRun
from pipelines.runs.step_metrics import StepMetrics
from pipelines.settings import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.engines.bigdl.step_recorder import OnStep


_MKL_KERNELS = "spark.executorEnv.MKL_DEBUG_CPU_TYPE"
_MKL_NUMBERS = {"avx2": "5", "avx512": "7"}


class DllibEngine(SparkEngine):
    """Engine `bigdl` where dllib computes; see :class:`pipelines.engines.bigdl.engine`.

    Args:
        on_step: Called with dllib's times of each step.
    """

    name = "bigdl"
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local` on any number of workers; with dllib and"
            " `training.compression: fp16` to about 2 %.",
            choose_when="No Python training process may run on the executors, or no port but"
            " Spark's own may be opened (dllib).",
            needs="`training.framework: bigdl` (dllib): BigDL's jars on"
            " `spark.driver.extraClassPath` and `spark.executor.extraClassPath`, which a session"
            " that is started here has; and for the weights, the gradients and the activations"
            " `spark.executor.memory`, of which too little is refused with what is needed;"
            " `spark.speculation` and `spark.dynamicAllocation.enabled` false. No ports but"
            " Spark's own.",
        )
    }
    frameworks = ("bigdl",)
    options = ("compression",)
    rules = LASTING_WORKERS
    with_profiles = False
    spark_majors = SPARK_MAJORS

    def __init__(self, on_step: OnStep = lambda times: None) -> None:
        self._on_step = on_step

    @override
    def session_conf(self, config: Config, conf: Mapping[str, str]) -> Mapping[str, str]:
        asked = {**needed_memory(config), **_mkl_conf(conf)}
        told = {key: value for key, value in asked.items() if key not in conf}
        return {**told, **class_paths(conf)}

    @override
    def extra_submit_conf(self, config: Config) -> Mapping[str, str]:
        # Spark carries them to the executors; a class path would have to be there already.
        return {"spark.jars": ",".join(map(str, jars())), **needed_memory(config)}

    @override
    def check_settings(self, config: Config) -> None:
        training = config.training
        refused: tuple[tuple[bool, str, str, str], ...] = (
            (
                training.precision == "bf16",
                "training.precision",
                "dllib computes in fp32",
                "set fp32",
            ),
            (
                training.checkpoint_minutes is not None,
                "training.checkpoint_minutes",
                "dllib is told before a part of the run which checkpoints it is to write",
                "leave it out, and set training.checkpoint_every",
            ),
            (
                spans_steps(config.objective),
                "objective.negatives",
                "framework bigdl sees one granule at a time",
                "set it to granule",
            ),
            (
                _may_drop(config),
                "training.dropout",
                "framework bigdl has none, and unset it is that of the start",
                "set it to 0",
            ),
        )
        for is_asked, key, problem, remedy in refused:
            if is_asked:
                raise InputError(key, problem, remedy)

    @override
    def check_cluster(self, session: SparkSession, config: Config) -> None:
        conf = dict(session.sparkContext.getConf().getAll())
        check_class_paths(conf, on_driver=_finds_dllib(session))
        super().check_cluster(session, config)
        check_memory(session, config)

    @override
    def attempt_on(
        self, session: SparkSession, run: TrainingRun, step_metrics: StepMetrics
    ) -> TrainingOutcome:
        # Imports BigDL's Python package.
        from pipelines.engines.bigdl.dllib import train_with_dllib

        return train_with_dllib(session, run, step_metrics, self._on_step)


def _mkl_conf(conf: Mapping[str, str]) -> Mapping[str, str]:
    """Has dllib's MKL use what the processors of this machine have, if executors run on it.

    Its MKL is of 2018. On processors that are not Intel's it multiplies by SSE, at a fifth of what
    those with AVX-512 can do, unless a variable, which Intel does not document, says otherwise.
    """
    widest = widest_unused_by_mkl() if conf["spark.master"].startswith("local") else None
    return {_MKL_KERNELS: _MKL_NUMBERS[widest]} if widest else {}


def _may_drop(config: Config) -> bool:
    """Whether a start is to be trained with dropout: a checkpoint may have its own."""
    told = config.training.dropout
    return config.encoder.start != "random" if told is None else told > 0


def _finds_dllib(session: SparkSession) -> bool:
    """Whether the driver's JVM has dllib on its class path."""
    from py4j.java_gateway import JavaClass

    jvm: Any = session.sparkContext._jvm
    dllib = jvm.com.intel.analytics.bigdl.dllib
    return isinstance(dllib.optim.DistriOptimizer, JavaClass)
