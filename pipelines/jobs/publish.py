"""`publish`: brings a store of vectors up to date from a table."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from pipelines.errors import NothingNew
from pipelines.files.begun import lock_file
from pipelines.files.folders import read_folder
from pipelines.files.locations import location
from pipelines.jobs.base import Results, job
from pipelines.progress import say
from pipelines.publishing.publish import PublishJob, PublishSummary
from pipelines.settings import Config
from pipelines.spark.session import spark_session


@job("publishing", stalls=True)
def publish(config: Config) -> PublishSummary:
    """Bring `publish.collection` of a store up to the table of `embedding.output`.

    The store gets the changes since its version, from the logs of `embed`, or a new collection of
    the whole table. Spark starts for many rows only.

    Raises:
        InputError: The table has no keys, or the store refuses something that you can correct.
        NothingNew: The store has this version, and `run.only_new` is set.
        PipelineError: A task failed, or another job writes the table.
    """
    folder = location(config.embedding.output, config.storage).absolute()
    with read_folder("embedding.output", folder, "publish", lock_file(folder)):
        making = PublishJob.of(config)
        plan = making.plan()
        if config.run.only_new and plan.is_done:
            name, version = config.publish.collection, making.lineage.version
            raise NothingNew(f"run.only_new: {name} has version {version} of the table already")
        return making.run(plan, partial(spark_session, config, needs_context=False))


def command(config: Config) -> Results:
    """Publish a table, and print the collection's name and its rows."""
    made = publish(config)
    say(f"{made}")
    say(f"store   {made.name} is {made.collection}, version {made.version}: {made.rows:,} rows")
    return asdict(made)
