"""Elephas: workers in one Spark job, around a parameter server in threads of the driver."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from typing_extensions import override

from pipelines.engines.base import NO_SPECULATION, Mode
from pipelines.engines.spark_engine import DriverSide, SparkEngine
from pipelines.runs.checkpoint import load_checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.settings import Config

_NEEDS = (
    "One task slot per worker at once (executor cores / `spark.task.cpus`). The driver's"
    " `spark.driver.memoryOverhead` holds "
)
_SHARED = _NEEDS + "4 times the weights, and 2 times more for each worker."
_AVERAGED = _NEEDS + "7 times the weights, and 3 times more for each worker."


class ElephasEngine(SparkEngine):
    """Trains in the tasks of a Spark job; these exchange arrays with the driver."""

    name = "elephas"
    best_for = "slow networks; uneven executor speeds"
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local` with one worker. More workers average weights and "
            "optimiser every `training.round_steps` steps. A repeated run is identical.",
            choose_when="The network is slow. Workers exchange arrays only every "
            "`training.round_steps` steps.",
            needs=_AVERAGED,
        ),
        "async": Mode(
            guarantee="The updates of `local`, from gradients that may be a few updates old. With "
            "`training.max_staleness: 0` the loss curve of `local`.",
            choose_when="Executors differ in speed, so that the slowest would hold up the others.",
            needs=_SHARED,
        ),
        "hogwild": Mode(
            guarantee="As `async`, without locks. Of two simultaneous updates, one may lose some "
            "elements.",
            choose_when="So many workers train that they wait for one another's updates.",
            needs=_SHARED,
        ),
    }
    frameworks = ("tensorflow",)
    libraries = ("elephas", "tensorflow")
    rules = (NO_SPECULATION,)

    @override
    def with_any_workers(self, config: Config) -> bool:
        # More workers change the mean of a round, and so the result.
        return config.training.mode != "sync"

    @override
    def python_worker_role(self, config: Config) -> str:
        # TensorFlow keeps a process's first number of threads.
        return f"{self.name}, {config.training.threads} threads"

    @override
    def preloads(self, config: Config) -> tuple[str, ...]:
        return (*super().preloads(config), "pipelines.engines.elephas.lean_worker")

    @override
    def prepare_job(self, driver: DriverSide, task: WorkerTask) -> Callable[[], object]:
        # Imports the library, and TensorFlow with it.
        from pipelines.engines.elephas.spark_model import GranuleModel

        start = load_checkpoint(task.run.run_folder, task.run.first_step)
        model = GranuleModel(
            task, start, host=driver.host, bind=driver.bind, identity=driver.identity
        )
        driver.resources.callback(model.close)
        ranks = driver.ranks(task.workers)
        return partial(model.fit, ranks)
