"""What the engines share that start torchrun's agent through Spark's distributors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipelines.catalog import STEPPERS
from pipelines.engines.base import GPU_AMOUNT, LASTING_WORKERS, ConfRule
from pipelines.engines.spark_engine import DriverSide, SparkEngine
from pipelines.errors import InputError
from pipelines.runs.run import WorkerTask
from pipelines.settings import Config

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


class DistributorEngine(SparkEngine):
    """Trains in workers of torchrun's agents, one per task of the distributor's Spark job.

    Attributes:
        steppers: By ``training.sharding``, who computes: a name of
            ``pipelines.catalog.STEPPERS``.
        divided_steppers: The same where workers hold the encoder together, by the setting that
            divides it (`pipeline_parallel` if both do) and the sharding.
    """

    frameworks = ("torch",)
    clear_text = (
        "gradients between the workers (Gloo or NCCL), and the addresses in torchrun's store"
    )
    steppers: ClassVar[Mapping[str, str]]
    divided_steppers: ClassVar[Mapping[tuple[str, str], str]]

    @abstractmethod
    def distributor(self, workers: int, use_gpu: bool) -> MonitoredDistributor:
        """The library's distributor, which has not started yet."""

    @override
    def check_settings(self, config: Config) -> None:
        super().check_settings(config)
        if not config.training.placement.is_divided:
            return
        division, sharding = self._division(config), config.training.sharding
        choices = [choice for setting, choice in self.divided_steppers if setting == division]
        if sharding not in choices:
            raise InputError(
                "training.sharding",
                f"with training.{division} engine {self.name} has no `{sharding}`",
                f"one of {', '.join(choices)}",
            )

    @override
    def preloads(self, config: Config) -> tuple[str, ...]:
        return (
            "pipelines.engines.distributor",
            *self.stepper_preloads(config),
            # Of Spark's worker, and of the library's task.
            "pyspark.sql.pandas.serializers",
            "pandas",
        )

    def stepper_preloads(self, config: Config) -> tuple[str, ...]:
        """Modules of the stepper, which may be imported before a worker has its device."""
        return (STEPPERS.module(self._stepper(config)),)

    def _stepper(self, config: Config) -> str:
        sharding = config.training.sharding
        if config.training.placement.is_divided:
            return self.divided_steppers[self._division(config), sharding]
        return self.steppers[sharding]

    @staticmethod
    def _division(config: Config) -> str:
        """The setting that divides an encoder that workers hold together."""
        stages = config.training.placement.stages
        return "pipeline_parallel" if stages > 1 else "model_parallel"

    @override
    def prepare_job(self, driver: DriverSide, task: WorkerTask) -> Callable[[], object]:
        gpus_of_a_task = int(driver.conf.get(GPU_AMOUNT) or 0)
        distributor = self.distributor(task.workers, gpus_of_a_task == 1)
        distributor.profile = driver.profile
        return partial(distributor.run, self._stepper(task.run.config), task)
