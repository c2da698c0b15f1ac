"""What runs on each executor, after the library's example `mnist_spark`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pipelines.files.prepared_folder import PreparedFolder
from pipelines.lanes.files import LaneManifest
from pipelines.lean_tensorflow import tensorflow as tf
from pipelines.models.frameworks.tensorflow import configure_threads
from pipelines.quiet import quiet_import
from pipelines_bench.peers.lines import StepLines, step_examples
from pipelines_bench.peers.pairs import PADDING, padded
from pipelines_bench.peers.tensorflow_model import pair_model

with quiet_import():
    from tensorflowonspark import TFNode


def train_node(arguments: Namespace, context: Any) -> None:
    """Trains on the rows that Spark feeds to this executor, in step with all others.

    Args:
        arguments: Hold the settings, `config`.
        context: The library's, of this node.
    """
    config = arguments.config
    training = config.training
    configure_threads(training.threads)
    manifest = LaneManifest.load(PreparedFolder.of(config).lanes.path)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    feed = TFNode.DataFeed(context.mgr, False)
    batch = step_examples(config, manifest) // training.workers
    batches = iter(strategy.distribute_datasets_from_function(lambda _: fed_batches(feed, batch)))
    with strategy.scope():
        model = pair_model(config, manifest)
        model.optimizer.build(model.trainable_variables)
    step = make_step(strategy, model, batches.element_spec)
    lines = StepLines.of(config)
    lines.begin()
    for number in range(1, training.max_steps + 1):
        loss = float(step(next(batches)))
        if context.job_name == "chief":
            lines.add(number, loss)
    feed.terminate()


def fed_batches(feed: Any, batch: int) -> Any:
    """A data set of this executor's rows, as they are fed: int32 [batch, 2, width].

    Args:
        feed: The library's `DataFeed`.
        batch: Pairs.
    """

    def rows() -> Iterator[np.ndarray]:
        while not feed.should_stop():
            fed = feed.next_batch(1)
            if not fed:
                return
            yield padded(fed)[0]

    dataset = tf.data.Dataset.from_generator(
        rows, output_signature=tf.TensorSpec([2, None], tf.int32)
    )
    return dataset.padded_batch(batch, padding_values=PADDING, drop_remainder=True)


def make_step(strategy: Any, model: Any, batch: Any) -> Callable[[Any], Any]:
    """A graph that makes a step from the batches of all workers, and gives their mean loss.

    Keras' `fit`, which the example calls, takes no batches of this strategy since Keras 3: this is
    the loop that TensorFlow has for it.

    Args:
        strategy: Of the workers.
        model: Keras', compiled.
        batch: The specification of a batch.
    """

    def of_worker(texts: Any) -> Any:
        with tf.GradientTape() as tape:
            # Keras divides a loss by the workers of a strategy, and adds their gradients up.
            share = model.loss(0.0, model(texts, training=True))
        weights = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(share, weights), weights, strict=True))
        return share

    def of_all(texts: Any) -> Any:
        shares = strategy.run(of_worker, args=(texts,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None)

    return tf.function(of_all, input_signature=[batch])  # type: ignore[no-any-return]
