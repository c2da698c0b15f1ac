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
    ``horovod.spark.run_elastic``: its driver does not end after the death of a rank, and it needs a
    spare host and a script to discover hosts.
    """

    name = "horovod"
    best_for = "dynamic allocation; fp16 gradients"
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local`, on any number of workers. With "
            "`training.compression: fp16` the curve is close to it.",
            choose_when="You use Horovod already, or want fp16 gradients on the network.",
            needs="Horovod, compiled for the executors (see [the environment](environment.md)). "
            "One task slot per worker at once (executor cores / `spark.task.cpus`). A network that "
            "only the cluster reaches: the ranks do not authenticate one another. Horovod takes "
            "the interface that reaches the driver; `spark.executorEnv.HOROVOD_GLOO_IFACE` names "
            "another.",
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
                "Run `make horovod`, which builds it for driver and executors, "
                "see docs/reference/environment.md",
            )

    @override
    def preloads(self, config: Config) -> tuple[str, ...]:
        collectives, _ = COLLECTIVES[config.training.framework]
        return (*super().preloads(config), "pipelines.engines.horovod.ranks", collectives)

    @override
    def prepare_job(self, driver: DriverSide, task: WorkerTask) -> Callable[[], object]:
        rendezvous = driver.resources.enter_context(Rendezvous(driver.host, driver.bind))
        return partial(driver.run_ranks, task, partial(train_rank, rendezvous.client))
