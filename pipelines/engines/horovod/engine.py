"""Horovod: gradients averaged by its ranks, each in a process of its own on an executor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from typing_extensions import override

from pipelines.engines.base import NO_SPECULATION, Mode
from pipelines.engines.horovod.ranks import COLLECTIVES, train_rank
from pipelines.engines.horovod.rendezvous import Rendezvous
from pipelines.engines.spark_engine import DriverSide, SparkEngine
from pipelines.errors import EngineUnavailable
from pipelines.libraries import check_installed, is_installed
from pipelines.runs.run import WorkerTask
from pipelines.settings import Config


class HorovodEngine(SparkEngine):
    """Trains in children of the tasks of a Spark job.

    Not by ``horovod.spark.run``: its servers listen at every address, a single silent connection to
    one of them holds up the run, and they stay until the driver exits. Nor by
    ``horovod.spark.run_elastic``: its driver does not end after a rank was killed, and it needs a
    script that discovers hosts and a spare host.
    """

    name = "horovod"
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local`, on any number of workers; near it with "
            "`training.compression: fp16`.",
            choose_when="Executors are alike, and ranks are to be Horovod's. Or gradients are to "
            "travel as fp16.",
            needs="Horovod, compiled for the executors ([the environment](environment.md)). As "
            "many task slots at once as workers (cores of the executors / `spark.task.cpus`), and "
            "`spark.speculation` false. Horovod uses the network by which an executor reaches the "
            "driver, or `spark.executorEnv.HOROVOD_GLOO_IFACE`: one that only the cluster can "
            "reach, since the connections by which ranks exchange gradients are unauthenticated.",
        )
    }
    frameworks = ("tensorflow", "torch")
    clear_text = (
        "gradients between the ranks (Gloo or NCCL), and the token and addresses of its rendezvous"
    )
    options = ("compression",)
    rules = (NO_SPECULATION,)

    @override
    def check_libraries(self, config: Config) -> None:
        check_installed("training.engine", config.training.framework)
        if not is_installed("horovod"):
            raise EngineUnavailable(
                "training.engine",
                "horovod is not installed",
                "`make horovod` builds it for driver and executors, see docs/environment.md",
            )

    @override
    def preloads(self, config: Config) -> tuple[str, ...]:
        collectives, _ = COLLECTIVES[config.training.framework]
        return (*super().preloads(config), "pipelines.engines.horovod.ranks", collectives)

    @override
    def prepare_job(self, driver: DriverSide, task: WorkerTask) -> Callable[[], object]:
        rendezvous = driver.resources.enter_context(Rendezvous(driver.host, driver.bind))
        return partial(driver.run_ranks, task, partial(train_rank, rendezvous.client))
