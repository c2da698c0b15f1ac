"""The driver's side, after the library's readme: `SparkModel(model).fit(rdd)`.

A worker trains a copy of the model on its partition for an epoch; then the driver takes the mean of
all copies. An epoch is one pass over the pairs, or the whole training where that is shorter.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipelines.errors import PipelineError
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.lanes.files import LaneManifest
from pipelines.models.frameworks.tensorflow import configure_threads
from pipelines.quiet import quiet_import
from pipelines.settings import Config
from pipelines_bench.peers.elephas.steps import StepTimes, write_lines
from pipelines_bench.peers.lines import StepLines, step_examples
from pipelines_bench.peers.pairs import padded, random_pairs
from pipelines_bench.peers.spark import local_cluster
from pipelines_bench.peers.tensorflow_model import (
    InBatchLoss,
    PairEncoder,
    pair_model,
)

with quiet_import():
    from elephas.spark_model import SparkModel
    from elephas.utils.rdd_utils import to_simple_rdd


def train(config: Config) -> None:
    """Trains on a partition for each worker.

    Raises:
        PipelineError: There are too few pairs.
    """
    training = config.training
    configure_threads(training.threads)
    manifest = LaneManifest.load(PreparedFolder.of(config).lanes.path)
    epochs, shards = _shards(config, manifest)
    with (
        tempfile.TemporaryDirectory() as folder,
        local_cluster(config, "elephas-spark-model") as context,
    ):
        # A row of what Elephas makes an RDD of is the part of a worker, so that all have as many.
        rdd = to_simple_rdd(context, shards, np.zeros(shards.shape[:2], np.float32))
        model = SparkModel(
            pair_model(config, manifest),
            custom_objects={one.__name__: one for one in (PairEncoder, InBatchLoss)},
        )
        model.fit(
            rdd.flatMap(_rows),
            epochs=epochs,
            batch_size=step_examples(config, manifest) // training.workers,
            verbose=0,
            callbacks=[StepTimes(Path(folder))],
        )
        write_lines(StepLines.of(config), Path(folder), training.max_steps or 1, time.monotonic())


def _rows(shard: tuple[np.ndarray, np.ndarray]) -> Iterator[tuple[np.ndarray, np.float32]]:
    """The rows of a worker's part. Runs on an executor."""
    return zip(*shard, strict=True)


def _shards(config: Config, manifest: LaneManifest) -> tuple[int, np.ndarray]:
    """Epochs, and the pairs of each worker: int32 [workers, pairs, 2, width].

    Epochs are of as many steps, so that the last may make some more than are asked for.
    """
    examples, steps = step_examples(config, manifest), config.training.max_steps or 1
    pairs = random_pairs(config, steps * examples)
    of_a_pass = len(pairs) // examples
    # Elephas trains on no partition that is not larger than a batch.
    if of_a_pass < 2:
        raise PipelineError(f"{len(pairs)} pairs are fewer than two steps of {examples}")
    epochs = -(-steps // of_a_pass)
    count = max(2, -(-steps // epochs)) * examples
    array = padded(pairs[:count])
    return epochs, array.reshape(config.training.workers, -1, *array.shape[1:])
