"""How evaluations embed texts: a model folder, loaded once in each task.

In fp32, so that figures do not depend on the processor; by the first backend that is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from pipelines.errors import InputError
from pipelines.files.locations import Location, location
from pipelines.spark.capacity import default_parallelism, has_partitions, task_threads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipelines.models.inference.embedder import TextEmbedder


Batches: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]
"""What Spark's `mapInArrow` takes."""

EmbedderLoader: TypeAlias = "Callable[[], TextEmbedder]"
"""Called once in each task, on the executor."""


def embedder_loader(session: SparkSession, model_folder: Location | str) -> EmbedderLoader:
    """What loads the model of a folder on an executor, with a thread for each CPU of the task.

    Args:
        session: Its ``spark.task.cpus`` sets the threads.
        model_folder: A folder that the driver and every executor can reach.

    Raises:
        InputError: The folder holds no model.
    """
    folder = location(model_folder).absolute()
    if not any((folder / name).is_file() for name in ("modules.json", "config.json")):
        raise InputError(
            "run.folder", f"{folder} holds no model", "name a folder that training wrote"
        )
    threads = task_threads(session)

    def load() -> TextEmbedder:
        """Runs on an executor."""
        from pipelines.models.inference.embedder import load_embedder

        return load_embedder(folder, threads=threads)

    return load


def spread(table: DataFrame) -> DataFrame:
    """The rows in at least one partition a core, since a small file is read as a single one.

    Args:
        table: Rows as they are read. To tell the partitions of what follows from a shuffle, Spark
            would compute it.
    """
    cores = cores_for(table)
    return table if has_partitions(table, cores) else table.repartition(cores)


def cores_for(frame: DataFrame) -> int:
    """Of the session of a frame."""
    return default_parallelism(frame.sparkSession)
