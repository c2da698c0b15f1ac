"""`publish`: brings a store of vectors up to date from a table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from hashlib import sha256

from pipelines.errors import NothingNew, PipelineError
from pipelines.files.begun import lock_file
from pipelines.files.folders import read_folder
from pipelines.files.locations import Location, location
from pipelines.files.locks import LockedError, held
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
    with (
        read_folder("embedding.output", folder, "publish", lock_file(folder)),
        _alone(config, folder),
    ):
        making = PublishJob.of(config)
        plan = making.plan()
        # Also with nothing to write: old collections and missing indexes wait for a job.
        made = making.run(plan, partial(spark_session, config, needs_context=False))
        if config.run.only_new and plan.is_done:
            told = f"{made.name} has version {made.version} of the table already"
            raise NothingNew(f"run.only_new: {told}")
        return made


@contextmanager
def _alone(config: Config, folder: Location) -> Iterator[None]:
    """Keep other jobs from bringing the same collection up to a table.

    Raises:
        PipelineError: Another job does so.
    """
    settings, path = config.publish, lock_file(folder)
    named = f"{settings.store} {settings.address} {settings.collection}"
    # In a bucket it is a file of the table, and has a name as those of other locks there.
    lock = path.with_name(f"{path.name}-publish.{sha256(named.encode()).hexdigest()[:32]}")
    with ExitStack() as stack:
        try:
            stack.enter_context(held(lock, "publish"))
        except LockedError as error:
            raise PipelineError(
                f"publish.collection: {settings.collection} is in use by {error.holder}. "
                "Wait for its end, or name another collection."
            ) from None
        except OSError:
            pass  # A read-only folder needs no lock of its jobs.
        yield


@job("publishing")
def plan_publishing(config: Config) -> str:
    """Return what :func:`publish` would do, in words; nothing is written.

    Raises:
        InputError: See :func:`publish`.
    """
    making = PublishJob.of(config)
    return making.told(making.plan())


def command(config: Config, *, dry_run: bool = False) -> Results:
    """Publish a table, and print the collection's name and its rows; or only print the plan."""
    if dry_run:
        say(plan_publishing(config))
        return {}
    made = publish(config)
    say(f"{made}")
    # In a store without aliases they are one.
    behind = "" if made.collection == made.name else f" is {made.collection}"
    say(f"store   {made.name}{behind}, version {made.version}: {made.rows:,} rows")
    return asdict(made)
