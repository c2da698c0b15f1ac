"""ZeRO by DeepSpeed, started by Spark's DeepspeedTorchDistributor."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.ml.deepspeed.deepspeed_distributor import DeepspeedTorchDistributor

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
from pipelines.engines.local import check_installed
from pipelines.settings import Config
from pipelines.training.run import TrainingOutcome, TrainingRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "deepspeed"


class DeepSpeedEngine:
    """Trains in processes of torchrun, one a task of a Spark job."""

    name = NAME
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local` with PyTorch, on any number of workers.",
            choose_when="The state of training does not fit into each worker: it is split, the "
            "optimiser's arrays (`training.sharding: optimizer`, ZeRO 1), the gradients too "
            "(`gradients`, ZeRO 2), or the weights as well (`parameters`, ZeRO 3).",
            needs=NEEDS,
        )
    }
    frameworks = ("torch",)
    feeds = ("lanes", "memory")
    shardings = ("optimizer", "gradients", "parameters")
    options = ()
    needs_spark = True

    def executors(self, config: Config) -> int:
        """See :class:`pipelines.engines.base.Engine`."""
        return config.training.workers

    def conf_rules(self, config: Config) -> tuple[ConfRule, ...]:
        """See :class:`pipelines.engines.base.Engine`."""
        return distributor_rules(DeepspeedTorchDistributor._DEEPSPEED_SSL_CONF)

    def check(self, session: SparkSession | None, config: Config) -> None:
        """See :class:`pipelines.engines.base.Engine`."""
        assert session is not None
        check_installed("deepspeed", NAME)
        check_cluster(session, NAME, self.conf_rules(config), config)

    def train(
        self, session: SparkSession | None, run: TrainingRun, on_metrics: OnMetrics
    ) -> TrainingOutcome:
        """See :class:`pipelines.engines.base.Engine`."""
        assert session is not None
        return train_distributed(session, run, on_metrics, NAME, _distributor, work)


def work(maker: WorkerMaker) -> bool:
    """A worker. Runs in torchrun's child on an executor."""
    return work_with(maker, "deepspeed")


class _HeldDeepspeedDistributor(HeldDistributor, DeepspeedTorchDistributor):  # type: ignore[misc]
    """The library's, without what it does beside starting."""


def _distributor(workers: int, use_gpu: bool) -> HeldDistributor:
    # No configuration: the library would write it to a file, and leave that behind.
    return _HeldDeepspeedDistributor(
        numGpus=1, nnodes=workers, localMode=False, useGpu=use_gpu, deepspeedConfig=None
    )
