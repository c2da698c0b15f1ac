"""What runs on each executor, after the library's example `mnist_spark`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipelines.benchmarks.strategies.peers.lines import StepLines, step_examples
from pipelines.benchmarks.strategies.peers.pairs import PADDING, padded
from pipelines.benchmarks.strategies.peers.tensorflow_model import LossOfEachBatch, pair_model
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.lanes.files import LaneManifest
from pipelines.lean_tensorflow import tensorflow as tf
from pipelines.models.frameworks.tensorflow import configure_threads
from pipelines.quiet import quiet_import

with quiet_import():
    from tensorflowonspark import TFNode


class WrittenSteps(LossOfEachBatch):
    """Writes the lines of the steps, which all workers make together."""

    def __init__(self, lines: StepLines) -> None:
        super().__init__()
        self._lines = lines

    def on_train_begin(self, logs: Any = None) -> None:
        """The first step begins."""
        self._lines.begin()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """A step is done."""
        self._lines.add(batch + 1, (logs or {})["loss"])


def train_node(arguments: Namespace, context: Any) -> None:
    """Trains on the rows that Spark feeds to this executor, in step with all others.

    Args:
        arguments: Hold the settings, `config`.
        context: The library's, of this node.
    """
    config = arguments.config
    configure_threads(config.training.threads)
    manifest = LaneManifest.load(PreparedFolder.of(config).lanes.path)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    feed = TFNode.DataFeed(context.mgr, False)

    def rows() -> Iterator[tuple[np.ndarray, float]]:
        while not feed.should_stop():
            batch = feed.next_batch(1)
            if not batch:
                return
            yield padded(batch)[0], 0.0

    dataset = tf.data.Dataset.from_generator(
        rows,
        output_signature=(tf.TensorSpec([2, None], tf.int32), tf.TensorSpec([], tf.float32)),
    )
    # A batch of the strategy is that of all workers: each takes its share of its own rows.
    dataset = dataset.padded_batch(
        step_examples(config, manifest), padding_values=(PADDING, 0.0), drop_remainder=True
    )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    with strategy.scope():
        model = pair_model(config, manifest)
    is_chief = context.job_name == "chief"
    steps = WrittenSteps(StepLines.of(config)) if is_chief else LossOfEachBatch()
    model.fit(
        dataset.with_options(options),
        epochs=1,
        steps_per_epoch=config.training.max_steps,
        callbacks=[steps],
        verbose=0,
    )
    feed.terminate()
