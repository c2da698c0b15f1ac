"""The driver's side, after Orca's documentation: creators of a model, an optimiser and a loader."""

from __future__ import annotations

import logging
import os

from pipelines.engines.bigdl.jars import LOGGING
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.lanes.files import LaneManifest
from pipelines.quiet import quiet_import
from pipelines.settings import Config
from pipelines.spark.session import provide_java
from pipelines.spark.shell import LOOPBACK
from pipelines_bench.peers.lines import StepLines, step_examples
from pipelines_bench.peers.orca.creators import (
    WrittenSteps,
    loss_creator,
    model_creator,
    optimizer_creator,
    train_loader_creator,
)


def train(config: Config) -> None:
    """Trains in a Spark task for each worker, in Orca's own local session."""
    provide_java()
    # Orca sets it to what is right in an environment of conda; Python does not start in a virtual
    # environment then. Empty, it means nothing to Python, and Orca leaves it.
    os.environ.setdefault("PYTHONHOME", "")
    # Importing it looks for Java.
    with quiet_import():
        from bigdl.orca import init_orca_context, stop_orca_context
        from bigdl.orca.learn.pytorch import Estimator

    training = config.training
    manifest = LaneManifest.load(PreparedFolder.of(config).lanes.path)
    init_orca_context(
        cluster_mode="local",
        cores=training.workers * training.threads,
        conf={
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": LOGGING,
        },
        # It would go to the working folder.
        redirect_spark_log=False,
    )
    try:
        estimator = Estimator.from_torch(
            model=model_creator,
            optimizer=optimizer_creator,
            loss=loss_creator,
            backend="spark",
            workers_per_node=training.workers,
            config={"settings": config},
            log_level=logging.WARNING,
        )
        estimator.fit(
            train_loader_creator,
            max_steps=training.max_steps,
            batch_size=step_examples(config, manifest),
            callbacks=[WrittenSteps(StepLines.of(config))],
        )
        estimator.shutdown()
    finally:
        stop_orca_context()
