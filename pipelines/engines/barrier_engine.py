"""The start of PyTorch's workers: the tasks of a barrier job, which Spark starts at once.

Each task runs its worker in a child process. Rank 0 opens the store at which the workers meet, at
the one address by which its host reaches the driver. A task reports errors to the monitor and never
fails, since Spark would restart all tasks. Where Spark does restart them, after the loss of an
executor, the monitor refuses workers that connect a second time.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipelines.catalog import STEPPERS
from pipelines.engines.base import GPU_AMOUNT, LASTING_WORKERS, ConfRule
from pipelines.engines.spark_engine import DriverSide, SparkEngine, run_in_child
from pipelines.errors import EngineUnavailable, InputError
from pipelines.runs.run import WorkerTask
from pipelines.settings import Config
from pipelines.spark.errors import spark_cause
from pipelines.spark.session import in_one_process
from pipelines.training.collectives.interfaces import own_address, prefer_interface_to
from pipelines.training.control.reporter import report_lost
from pipelines.training.devices import CUDA_DEVICES, gpus_given_by_spark
from pipelines.training.loop import run_worker

if TYPE_CHECKING:
    from pipelines.training.collectives.process_group import ProcessGroupCollectives

NEEDS = (
    "One task slot per worker at once (executor cores / `spark.task.cpus`). With GPUs,"
    " `spark.task.resource.gpu.amount` 1. A network that only the cluster reaches: the workers do"
    " not authenticate one another."
)
_GROUP = "pipelines.training.collectives.process_group"


def barrier_rules(ignore_ssl: str) -> tuple[ConfRule, ...]:
    """Return the Spark conf rules of a barrier job of PyTorch's workers.

    By the conf key `ignore_ssl` the user accepts traffic that Spark does not encrypt.
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


class BarrierEngine(SparkEngine):
    """Trains in a process group of PyTorch, one worker per task of a barrier job.

    Attributes:
        steppers: The name in ``pipelines.catalog.STEPPERS`` by ``training.sharding``.
        divided_steppers: The same where workers hold the encoder together, by the setting that
            divides it (`pipeline_parallel` if both do) and the sharding.
    """

    frameworks = ("torch",)
    clear_text = "gradients between the workers (Gloo or NCCL), and the addresses in their store"
    steppers: ClassVar[Mapping[str, str]]
    divided_steppers: ClassVar[Mapping[tuple[str, str], str]]

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
        return (__name__, _GROUP, *self.stepper_preloads(config))

    def stepper_preloads(self, config: Config) -> tuple[str, ...]:
        """Return modules of the stepper that may be imported before a worker has its device."""
        return (STEPPERS.module(self._stepper(config)),)

    def _stepper(self, config: Config) -> str:
        sharding = config.training.sharding
        if config.training.placement.is_divided:
            return self.divided_steppers[self._division(config), sharding]
        return self.steppers[sharding]

    @staticmethod
    def _division(config: Config) -> str:
        """Return the setting that divides an encoder that workers hold together."""
        stages = config.training.placement.stages
        return "pipeline_parallel" if stages > 1 else "model_parallel"

    @override
    def prepare_job(self, driver: DriverSide, task: WorkerTask) -> Callable[[], object]:
        gpus = _gpus_of_driver(driver, task.workers)
        run = partial(_run_task, self._stepper(task.run.config), task, gpus)
        return driver.ranks(task.workers).barrier().mapPartitions(run).collect


def _gpus_of_driver(driver: DriverSide, workers: int) -> Sequence[str]:
    """Return the GPUs of a driver whose tasks are its threads: Spark gives these none.

    An EngineUnavailable refuses fewer GPUs than workers there: the last would compute on the CPU.
    """
    if not in_one_process(driver.context.master) or int(driver.conf.get(GPU_AMOUNT) or 0) != 1:
        return ()
    resource = driver.context.resources.get("gpu")
    gpus = () if resource is None else resource.addresses
    if len(gpus) < workers:
        raise EngineUnavailable(
            GPU_AMOUNT,
            f"the local session has {len(gpus)} GPUs for {workers} workers",
            "raise spark.driver.resource.gpu.amount, lower training.workers, or leave this key out",
        )
    return gpus


def _run_task(
    stepper: str, task: WorkerTask, gpus_of_driver: Sequence[str], ranks: Iterator[int]
) -> Iterator[int]:
    """Run a worker in a task of the barrier job; `task` is that of rank 0. Runs on an executor."""
    from pyspark import BarrierTaskContext

    (rank,) = ranks
    gpus = gpus_given_by_spark() or gpus_of_driver[rank : rank + 1]
    start_worker(stepper, replace(task, rank=rank), gpus, BarrierTaskContext.get().allGather)
    return iter(())


def start_worker(
    stepper: str, task: WorkerTask, gpus: Sequence[str], gather: Callable[[str], list[str]]
) -> None:
    """Run a worker in a child process, and wait for its end.

    The stepper is a name of ``pipelines.catalog.STEPPERS``; `gpus` are addresses. Spark's `gather`
    exchanges a message with the other tasks, in the order of the ranks.
    """
    try:
        # In the child it would end the process before the driver hears why.
        import_module(_GROUP)
        # Before the others hear of it, and at one address alone.
        listener = _listener(own_address(task.monitor)) if task.rank == 0 else None
        first, *_ = gather(json.dumps(listener.getsockname()[:2] if listener else None))
    except Exception as error:  # noqa: BLE001 - whatever it is, the driver raises it
        with suppress(OSError):  # The run is over.
            report_lost(task, spark_cause(error))
        return
    store = json.loads(first)
    # PyTorch has not looked for GPUs in this process: no child could use one after that.
    run_in_child(task, partial(_work, stepper, gpus, store, listener), listener)


def _listener(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family)


def _work(
    stepper: str,
    gpus: Sequence[str],
    store: tuple[str, int],
    listener: socket.socket | None,
    task: WorkerTask,
) -> None:
    from pipelines.training.collectives.process_group import (
        means_peer_lost,
        process_group_cleanup,
    )

    # What libraries ask of a worker's place, beside what the store is found by.
    os.environ |= {
        "RANK": str(task.rank),
        "WORLD_SIZE": str(task.workers),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": store[0],
        "MASTER_PORT": str(store[1]),
    }
    # After a lost peer no exchange is waited for; torchrun says so too.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if not gpus:
        os.environ[CUDA_DEVICES] = ""
    else:
        os.environ.setdefault(CUDA_DEVICES, ",".join(gpus))
    with process_group_cleanup():
        join = partial(_join, task, listener)
        run_worker(task, join, stepper=stepper, means_peer_lost=means_peer_lost)


def _join(task: WorkerTask, listener: socket.socket | None) -> ProcessGroupCollectives:
    from pipelines.training.collectives.process_group import ProcessGroupCollectives

    prefer_interface_to(task.monitor)
    return ProcessGroupCollectives(task.run.config.training, listener)
