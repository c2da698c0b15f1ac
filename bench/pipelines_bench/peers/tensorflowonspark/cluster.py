"""The driver's side, after the library's example `mnist_spark`: rows of an RDD are fed."""

from __future__ import annotations

from argparse import Namespace

from pipelines.files.prepared_folder import PreparedFolder
from pipelines.lanes.files import LaneManifest
from pipelines.quiet import quiet_import
from pipelines.settings import Config
from pipelines_bench.peers.lines import step_examples
from pipelines_bench.peers.pairs import random_pairs
from pipelines_bench.peers.spark import local_cluster
from pipelines_bench.peers.tensorflowonspark.node import train_node

with quiet_import():
    from tensorflowonspark import TFCluster


def train(config: Config) -> None:
    """Trains on a node for each worker, to which Spark feeds the pairs row by row."""
    training = config.training
    manifest = LaneManifest.load(PreparedFolder.of(config).lanes.path)
    wanted = (training.max_steps or 1) * step_examples(config, manifest)
    rows = [(anchor.tolist(), own.tolist()) for anchor, own in random_pairs(config, wanted)]
    with local_cluster(config, "tensorflowonspark-feed") as context:
        cluster = TFCluster.run(
            context,
            train_node,
            Namespace(config=config),
            training.workers,
            num_ps=0,
            input_mode=TFCluster.InputMode.SPARK,
            master_node="chief",
            reservation_timeout=training.start_seconds,
        )
        # As the example does, one epoch more than are needed: partitions are not of one size, and
        # no worker may run out of rows before the others.
        cluster.train(context.parallelize(rows), -(-wanted // len(rows)) + 1)
        cluster.shutdown(timeout=training.stall_seconds)
