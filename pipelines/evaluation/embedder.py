"""A model on the executors, to embed texts.

It computes in fp32, so that figures do not depend on the processor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from pipelines.errors import InputError
from pipelines.files.locations import Location, location
from pipelines.spark.capacity import task_threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.models.inference.embedder import TextEmbedder


EmbedderLoader: TypeAlias = "Callable[[], TextEmbedder]"
"""Called once in each task, on the executor."""


def embedder_loader(session: SparkSession, model_folder: Location | str) -> EmbedderLoader:
    """Return a loader of a model on executors, with a thread for each CPU of the task.

    The driver and every executor must reach the folder.

    Raises:
        InputError: The folder holds no model.
    """
    folder = location(model_folder).absolute()
    if not any((folder / name).is_file() for name in ("modules.json", "config.json")):
        raise InputError(
            "run.folder", f"{folder} holds no model", "Name a folder that a training wrote"
        )
    threads = task_threads(session)

    def load() -> TextEmbedder:
        from pipelines.models.inference.embedder import load_embedder

        return load_embedder(folder, threads=threads)

    return load
