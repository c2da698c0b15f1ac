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
    "As many task slots at once as workers (cores of the executors / `spark.task.cpus`), and"
    " `spark.speculation` false. In the driver (`spark.driver.memoryOverhead`), "
)
_SHARED = _NEEDS + "four times the size of the weights, and twice more for each worker."
_AVERAGED = _NEEDS + "seven times the size of the weights, and three times more for each worker."


class ElephasEngine(SparkEngine):
    """Trains in the tasks of a Spark job, which exchange arrays with the driver."""

    name = "elephas"
    modes: ClassVar = {
        "sync": Mode(
            guarantee="With one worker the loss curve of `local`. With more, that of averaging "
            "weights and optimiser every `training.round_steps` steps; a run repeats exactly.",
            choose_when="The network is slow: arrays travel once in `training.round_steps` steps.",
            needs=_AVERAGED,
        ),
        "async": Mode(
            guarantee="The updates of `local`, each from gradients at parameters that may lack "
            "the newest ones; with `training.max_staleness` 0 its loss curve.",
            choose_when="Executors are unlike, so that waiting for the slowest costs much.",
            needs=_SHARED,
        ),
        "hogwild": Mode(
            guarantee="As `async`, but for updates that are made at the same moment, of which "
            "one may be lost in some elements.",
            choose_when="There are so many workers that they wait for one another's updates.",
            needs=_SHARED,
        ),
    }
    frameworks = ("tensorflow",)
    libraries = ("elephas", "tensorflow")
    rules = (NO_SPECULATION,)

    @override
    def with_any_workers(self, config: Config) -> bool:
        # The mean of more workers' rounds is another one.
        return config.training.mode != "sync"

    @override
    def python_worker_role(self, config: Config) -> str:
        # TensorFlow keeps the number of threads that a process began with.
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
