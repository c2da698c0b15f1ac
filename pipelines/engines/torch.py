"""PyTorch's own ways between workers, started by Spark's TorchDistributor."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pipelines.engines.base import Mode, OnMetrics
from pipelines.engines.conf import ConfRule
from pipelines.engines.distributor import (
    NEEDS,
    HeldDistributor,
    WorkerMaker,
    check_cluster,
    distributor_rules,
    train_distributed,
    work_with,
)
from pipelines.settings import Config
from pipelines.training.run import TrainingOutcome, TrainingRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "torch"
_STEPPERS = {"none": "torch", "parameters": "torch-fsdp"}


class TorchEngine:
    """Trains in processes of torchrun, one a task of a Spark job."""

    name = NAME
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local` with PyTorch, on any number of workers, whether "
            "each holds the whole state or a part of it (`training.sharding`).",
            choose_when="PyTorch computes, and executors are alike. `sharding: none` is data "
            "parallel and the fastest; `parameters` (FSDP) is for encoders that do not fit.",
            needs=NEEDS,
        )
    }
    frameworks = ("torch",)
    feeds = ("lanes", "memory")
    shardings = tuple(_STEPPERS)
    options = ()
    needs_spark = True

    def executors(self, config: Config) -> int:
        """See :class:`pipelines.engines.base.Engine`."""
        return config.training.workers

    def conf_rules(self, config: Config) -> tuple[ConfRule, ...]:
        """See :class:`pipelines.engines.base.Engine`."""
        return distributor_rules(HeldDistributor._TORCH_SSL_CONF)

    def check(self, session: SparkSession | None, config: Config) -> None:
        """See :class:`pipelines.engines.base.Engine`."""
        assert session is not None
        check_cluster(session, NAME, self.conf_rules(config), config)

    def train(
        self, session: SparkSession | None, run: TrainingRun, on_metrics: OnMetrics
    ) -> TrainingOutcome:
        """See :class:`pipelines.engines.base.Engine`."""
        assert session is not None
        return train_distributed(session, run, on_metrics, NAME, _distributor, work)


def work(maker: WorkerMaker) -> bool:
    """A worker. Runs in torchrun's child on an executor."""
    return work_with(maker, _STEPPERS[maker.task.run.config.training.sharding])


def _distributor(workers: int, use_gpu: bool) -> HeldDistributor:
    return HeldDistributor(workers, local_mode=False, use_gpu=use_gpu)
