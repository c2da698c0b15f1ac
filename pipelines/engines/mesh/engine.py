"""The engine: its modes and refusals, and the job of its workers. Runs on the driver."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from typing_extensions import override

from pipelines.engines.base import NO_SPECULATION, Mode
from pipelines.engines.horovod.rendezvous import Rendezvous
from pipelines.engines.mesh.cluster import train_in_mesh
from pipelines.engines.spark_engine import DriverSide, SparkEngine
from pipelines.errors import EngineUnavailable
from pipelines.libraries import check_installed
from pipelines.runs.run import WorkerTask
from pipelines.settings import Config


class MeshEngine(SparkEngine):
    """Trains tensor and data parallel in one graph, on the servers of all workers."""

    name = "mesh"
    best_for = "Mesh TensorFlow layouts (unmaintained)"
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local` with TensorFlow in fp32, dropout included, on any "
            "number of workers and with any `training.model_parallel` that divides them.",
            choose_when="You want the layouts of Mesh TensorFlow, a library unmaintained since "
            "2022. Prefer `torch` with `training.model_parallel`: it is maintained and faster, and "
            "also computes on GPUs and in bf16.",
            needs="Mesh TensorFlow (`make mesh`). One task slot per worker at once (executor cores "
            "/ `spark.task.cpus`). A network that only the cluster reaches: TensorFlow's server "
            "listens at every address of an executor, serves everybody who connects, and reads "
            "and writes files for them.",
        )
    }
    frameworks = ("tensorflow",)
    options = ("model_parallel",)
    libraries = ("mesh_tensorflow",)
    clear_text = "all that the graph moves between workers: texts, weights, activations, gradients"
    rules = (NO_SPECULATION,)

    @override
    def check_libraries(self, config: Config) -> None:
        check_installed("training.engine", config.training.framework)
        try:
            super().check_libraries(config)
        except EngineUnavailable:
            raise EngineUnavailable(
                "training.engine",
                "mesh_tensorflow is not installed",
                "Run `make mesh` for driver and executors, or set training.engine to torch",
            ) from None

    @override
    def preloads(self, config: Config) -> tuple[str, ...]:
        # Without the library: some of its imports may compute, which a preload must not.
        return ("pipelines.training.loop", "pipelines.lean_tensorflow")

    @override
    def prepare_job(self, driver: DriverSide, task: WorkerTask) -> Callable[[], object]:
        rendezvous = driver.resources.enter_context(Rendezvous(driver.host, driver.bind))
        return partial(driver.run_ranks, task, partial(train_in_mesh, rendezvous.client))
