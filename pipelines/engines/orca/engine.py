"""Orca's Estimator as an engine: PyTorch on executors. Runs on the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from typing_extensions import override

from pipelines.engines.base import GPU_AMOUNT, LASTING_WORKERS, ConfRule, Mode
from pipelines.engines.bigdl.jars import FRAMEWORKS, SPARK_MAJORS
from pipelines.engines.spark_engine import DriverSide, SparkEngine
from pipelines.quiet import quiet_import
from pipelines.runs.run import WorkerTask
from pipelines.settings import Config

NO_GPUS = ConfRule(
    key=GPU_AMOUNT,
    value="0",
    most=0,
    why="computes on CPUs, and would keep GPUs from others (engine torch uses them)",
)


class OrcaEngine(SparkEngine):
    """Engine `bigdl` with PyTorch: the framework chooses Orca, a part of BigDL."""

    name = "bigdl"
    best_for = "BigDL clusters, with PyTorch on CPUs"
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local` on any number of workers.",
            choose_when="The cluster runs BigDL, and PyTorch trains on its CPUs (Orca).",
            needs="`training.framework: torch` (Orca). One task slot per worker at once (executor"
            " cores / `spark.task.cpus`); no jars, no GPUs. A network that only the cluster"
            " reaches: the workers do not authenticate one another.",
        )
    }
    frameworks = FRAMEWORKS
    options = ("compression",)
    clear_text = "gradients between the workers (Gloo), and the addresses in the driver's store"
    libraries = ("torch", "bigdl", "bigdl.orca")
    rules = (*LASTING_WORKERS, NO_GPUS)
    job_name = "Orca's fit"
    spark_majors = SPARK_MAJORS

    @override
    def python_worker_role(self, config: Config) -> str:
        return f"{self.name}-orca"

    @override
    def preloads(self, config: Config) -> tuple[str, ...]:
        return (*super().preloads(config), "pipelines.engines.orca.worker")

    @override
    def prepare_job(self, driver: DriverSide, task: WorkerTask) -> Callable[[], object]:
        with quiet_import():
            from pipelines.engines.orca.estimator import MonitoredEstimator

        return MonitoredEstimator(task, driver).fit
