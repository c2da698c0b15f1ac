"""dllib as an engine: its requirements before it starts. Runs on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import override

from pipelines.catalog import LOSSES
from pipelines.engines.base import LASTING_WORKERS, Mode
from pipelines.engines.bigdl.feeding import PART_TOKENS, replicas
from pipelines.engines.bigdl.jars import (
    FRAMEWORKS,
    SPARK_MAJORS,
    check_class_paths,
    class_paths,
    jars,
)
from pipelines.engines.spark_engine import SparkEngine
from pipelines.errors import EngineUnavailable
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.lanes.files import LaneManifest
from pipelines.models.architecture import form_of
from pipelines.models.folder import start_spec
from pipelines.models.inference.processor import widest_unused_by_mkl
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import weight_shapes
from pipelines.runs.run import TrainingOutcome, TrainingRun
from pipelines.runs.step_metrics import StepMetrics
from pipelines.settings import Config
from pipelines.spark.session import executor_count, in_one_process, memory_mb

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MB = 2**20
EXECUTOR_KEY, DRIVER_KEY = "spark.executor.memory", "spark.driver.memory"
# The base load of Spark and dllib's classes.
_EXECUTOR_BASE_MB, _DRIVER_BASE_MB = 150, 250
# Copies of all weights. On an executor, by dllib's design: the model, its broadcast, and the blocks
# of weights and gradients on their way. A run with 87 MB of weights reached 1,911 MB after a
# collection; this asks for 2,436. In the driver, at the end of that run, with the returned weights:
# 1,120 MB of heap were too few, 1,300 were enough.
_EXECUTOR_COPIES, _DRIVER_COPIES = 7, 12
# Arrays as large as a slice: weights, gradient and two moments.
_SLICE_ARRAYS = 4


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes that determine the memory.

    Attributes:
        workers: Slices of the weights.
        replicas: Copies of the model on a worker, with a gradient each.
        texts: In a granule: a copy computes one granule at a time.
        tokens: Length of the longest texts, with padding.
    """

    spec: EncoderSpec
    workers: int
    replicas: int
    texts: int
    tokens: int


def weights_mb(spec: EncoderSpec) -> float:
    """Return the MiB of the weights as fp32."""
    return 4 * sum(int(np.prod(shape)) for shape in weight_shapes(spec).values()) / MB


def executor_mb(shape: Shape) -> int:
    """Return a worker's heap for a step of the longest texts, in MiB."""
    spec, weights = shape.spec, weights_mb(shape.spec)
    copies = _EXECUTOR_COPIES + shape.replicas + _SLICE_ARRAYS / shape.workers
    floats: int = form_of(spec, "bigdl_memory")(spec, shape.tokens)
    activations = 4 * shape.replicas * shape.texts * shape.tokens * floats / MB
    return round(_EXECUTOR_BASE_MB + copies * weights + activations + 8 * PART_TOKENS / MB)


def driver_mb(spec: EncoderSpec) -> int:
    """Return the driver's heap, in MiB."""
    return round(_DRIVER_BASE_MB + _DRIVER_COPIES * weights_mb(spec))


def check_memory(session: SparkSession, config: Config) -> None:
    """Refuse JVMs with too little memory for a run. Runs on the driver.

    Raises:
        EngineUnavailable: Names the conf key, and its value.
    """
    context = session.sparkContext
    manifest = LaneManifest.load(PreparedFolder.of(config).lanes.path)
    spec = start_spec(config, manifest.vocabulary)
    # Spark spreads the workers over the executors.
    workers = ceil(config.training.workers / max(executor_count(session), 1))
    executor = workers * executor_mb(shape_of(config, manifest, spec))
    driver = driver_mb(spec)
    jvm: Any = context._jvm
    driver_heap = jvm.java.lang.Runtime.getRuntime().maxMemory() / MB
    if in_one_process(context.master):
        check_heap(DRIVER_KEY, driver + executor, driver_heap)
    else:
        executor_heap = memory_mb(context.getConf().get(EXECUTOR_KEY, "1g") or "1g")
        check_heap(EXECUTOR_KEY, executor, executor_heap)
        check_heap(DRIVER_KEY, driver, driver_heap)


def needed_memory(config: Config) -> dict[str, str]:
    """Return the memory conf of a run with one worker per executor.

    It depends on the lanes, so it is empty before the corpus is prepared.
    """
    lanes = PreparedFolder.of(config).lanes.path
    if not lanes.is_dir():
        return {}
    manifest = LaneManifest.load(lanes)
    spec = start_spec(config, manifest.vocabulary)
    # Spark's own default is the least.
    executor = max(executor_mb(shape_of(config, manifest, spec)), 1024)
    return {EXECUTOR_KEY: f"{executor}m", DRIVER_KEY: f"{max(driver_mb(spec), 1024)}m"}


def shape_of(config: Config, manifest: LaneManifest, spec: EncoderSpec) -> Shape:
    """Return the sizes that determine the memory of a run."""
    training = config.training
    sides = manifest.embedded(LOSSES.load(config.objective.name).sides)
    return Shape(
        spec=spec,
        workers=training.workers,
        replicas=replicas(training),
        texts=manifest.granule * len(sides),
        tokens=max(segment.length for segment in manifest.segments),
    )


def check_heap(key: str, needed_mb: float, heap_mb: float) -> None:
    """Refuse a heap that is too small; `key` of the Spark conf sets it.

    Raises:
        EngineUnavailable: Names the key, and the needed size.
    """
    if needed_mb > heap_mb:
        raise EngineUnavailable(
            key,
            f"engine bigdl needs about {needed_mb} MB of heap for this encoder and these granules,"
            f" and has {heap_mb:.0f}",
            f"Start the session with at least {needed_mb}m, or prepare with a smaller"
            " lanes.granule or tokens.max_length",
        )


_MKL_KERNELS = "spark.executorEnv.MKL_DEBUG_CPU_TYPE"
_MKL_NUMBERS = {"avx2": "5", "avx512": "7"}


class DllibEngine(SparkEngine):
    """Engine `bigdl` with dllib; :mod:`pipelines.engines.orca` is its Orca."""

    name = "bigdl"
    best_for = "BigDL clusters, in the executors' JVMs"
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local`, on any number of workers. With"
            " `training.compression: fp16` it differs by about 2 %.",
            choose_when="Executors may run no Python training process, or open no port beside"
            " Spark's own.",
            needs="`training.framework: bigdl` (dllib). BigDL's jars on"
            " `spark.driver.extraClassPath` and `spark.executor.extraClassPath`; sessions that the"
            " package starts have them. `spark.executor.memory` for weights, gradients and"
            " activations; an error names the amount if it is too small.",
        )
    }
    frameworks = FRAMEWORKS
    options = ("compression",)
    rules = LASTING_WORKERS
    with_profiles = False
    spark_majors = SPARK_MAJORS

    @override
    def session_conf(self, config: Config, conf: Mapping[str, str]) -> Mapping[str, str]:
        wanted = {**needed_memory(config), **_mkl_conf(conf)}
        missing = {key: value for key, value in wanted.items() if key not in conf}
        return {**missing, **class_paths(conf)}

    @override
    def extra_submit_conf(self, config: Config) -> Mapping[str, str]:
        # Spark sends these jars to the executors; a class path would need them there already.
        return {"spark.jars": ",".join(map(str, jars())), **needed_memory(config)}

    @override
    def check_cluster(self, session: SparkSession, config: Config) -> None:
        conf = dict(session.sparkContext.getConf().getAll())
        check_class_paths(conf, on_driver=_finds_dllib(session))
        super().check_cluster(session, config)
        check_memory(session, config)

    @override
    def attempt(
        self, session: SparkSession | None, run: TrainingRun, step_metrics: StepMetrics
    ) -> TrainingOutcome:
        session = self._required(session)
        # Imports BigDL's Python package.
        from pipelines.engines.bigdl.dllib import train_with_dllib

        return train_with_dllib(session, run, step_metrics)


def _mkl_conf(conf: Mapping[str, str]) -> Mapping[str, str]:
    """Make dllib's MKL use this machine's vector instructions, if executors run on it.

    Its MKL is of 2018. On other processors than Intel's it multiplies by SSE, at a fifth of
    AVX-512's rate, unless an undocumented variable is set.
    """
    widest = widest_unused_by_mkl() if conf["spark.master"].startswith("local") else None
    return {_MKL_KERNELS: _MKL_NUMBERS[widest]} if widest else {}


def _finds_dllib(session: SparkSession) -> bool:
    """Return whether the driver's JVM has dllib on its class path."""
    from py4j.java_gateway import JavaClass

    jvm: Any = session.sparkContext._jvm
    dllib = jvm.com.intel.analytics.bigdl.dllib
    return isinstance(dllib.optim.DistriOptimizer, JavaClass)
