"""What the engines share that start torchrun through Spark's distributors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipelines.engines.conf import GPU_AMOUNT, LASTING_WORKERS, ConfRule
from pipelines.engines.spark_engine import DriverSide, SparkJobEngine
from pipelines.runs.run import WorkerTask

if TYPE_CHECKING:
    from pipelines.engines.distributor import MonitoredDistributor

NEEDS = (
    "As many task slots at once as workers (cores of the executors / `spark.task.cpus`),"
    " `spark.speculation` and `spark.dynamicAllocation.enabled` false. With GPUs,"
    " `spark.task.resource.gpu.amount` 1. A network that only the cluster can reach: torchrun's"
    " store and the connections between the workers are unauthenticated."
)


def distributor_rules(ignore_ssl: str) -> tuple[ConfRule, ...]:
    """What a distributor requires of the Spark conf.

    Args:
        ignore_ssl: Conf key by which the user accepts traffic that Spark does not encrypt.
    """
    return (
        *LASTING_WORKERS,
        ConfRule(
            key="spark.ssl.enabled",
            value="false",
            why="has its workers exchange gradients in clear text",
            unless=ignore_ssl,
        ),
        ConfRule(key=GPU_AMOUNT, value="1", most=1, why="has each worker compute on one GPU"),
    )


class DistributorEngine(SparkJobEngine):
    """Trains in processes of torchrun, one per task of the distributor's Spark job.

    Attributes:
        steppers: By ``training.sharding``, who computes: a name of
            ``pipelines.training.steppers.STEPPERS``.
    """

    frameworks = ("torch",)
    steppers: ClassVar[Mapping[str, str]]

    @abstractmethod
    def distributor(self, workers: int, use_gpu: bool) -> MonitoredDistributor:
        """The library's distributor, which has not started yet."""

    @override
    def prepare_job(self, driver: DriverSide, task: WorkerTask) -> Callable[[], object]:
        from pipelines.engines.distributor import run_torchrun_worker

        gpus_of_a_task = int(driver.context.getConf().get(GPU_AMOUNT) or 0)
        distributor = self.distributor(task.workers, gpus_of_a_task == 1)
        stepper = self.steppers[task.run.config.training.sharding]
        return partial(distributor.run, partial(run_torchrun_worker, stepper), task)
