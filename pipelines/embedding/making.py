"""Has executors make the parts of a table, and knows whether they get on."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from pipelines.embedding.deleted_rows import read_deleted
from pipelines.embedding.executor import Columns, task_device
from pipelines.embedding.options import EmbeddingOptions
from pipelines.embedding.part_files import embed_parts
from pipelines.embedding.parts import RowRange, tasks
from pipelines.embedding.plan import ATTEMPTS
from pipelines.embedding.progress import PartsProgress
from pipelines.embedding.running import run_job
from pipelines.files import locks, storage
from pipelines.files.locations import Location, RemotePath
from pipelines.models.inference.backends import choose_precision
from pipelines.spark.capacity import collect_from_tasks, default_parallelism
from pipelines.spark.session import running_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT_SO_FAR = "; what is done is kept, and the same command makes the rest"


def make_parts(
    session: SparkSession,
    folder: Location,
    parts: Sequence[RowRange],
    missing: Sequence[RowRange],
    options: EmbeddingOptions,
    columns: Columns,
) -> int:
    """Makes parts on the executors; returns how many rows were embedded.

    Args:
        session: Has executors.
        folder: Of the table.
        parts: All of the table.
        missing: Those of them that are to be made.
        options: The model and what is done with its embeddings.
        columns: Names.

    Raises:
        PipelineError: See :func:`~pipelines.embedding.running.run_job`, or another job took this
            one for gone.
    """
    if not missing:
        return 0
    attempts = new_attempts(folder)
    make = partial(
        embed_parts,
        folder=folder,
        options=options,
        columns=columns,
        attempts=attempts,
        deleted=read_deleted(folder),
    )
    work = partial(_work_on_tasks, work=make)
    dealt = tasks(missing, default_parallelism(session))
    act = partial(collect_from_tasks, session, dealt, work)
    with PartsProgress(folder, parts):
        return sum(run_job(session, "embedding", act, signs(folder / attempts), KEPT_SO_FAR))


def new_attempts(folder: Location) -> str:
    """A new folder in that of a table, for what tasks of this job are writing; others go."""
    # Of attempts that were killed.
    storage.discard_folder(folder / ATTEMPTS)
    attempts = f"{ATTEMPTS}/{uuid.uuid4().hex}"
    (folder / attempts).mkdir(parents=True)
    return attempts


def signs(attempts: Location) -> Callable[[], object]:
    """What changes as long as tasks get on; an error where this job has lost a lock."""
    held = locks.held_here()

    def state() -> object:
        for lock in held:
            lock.check()
        return running_tasks(), _states(attempts)

    return state


def _states(folder: Location) -> dict[str, object]:
    """Bytes of the files that tasks are writing; in a store, their signs of life."""
    if isinstance(folder, RemotePath):
        return dict(folder.entries(recursive=False))
    states: dict[str, object] = {}
    for file in folder.iterdir():
        # A part that is done has been renamed in the meantime.
        with suppress(FileNotFoundError):
            states[file.name] = file.stat().st_size
    return states


def _work_on_tasks(
    planned: Iterator[Sequence[RowRange]], *, work: Callable[..., Iterator[int]]
) -> Iterator[int]:
    """Runs on an executor."""
    return (rows for parts in planned for rows in work(parts))


def precision_of(session: SparkSession, options: EmbeddingOptions) -> str:
    """The precision of a whole table, which an executor knows where it is ``auto``."""
    if options.precision != "auto":
        return options.precision
    ask = partial(_precision_here, options=options)
    act = partial(collect_from_tasks, session, [0], ask)
    return str(run_job(session, "embedding: which precision", act)[0])


def _precision_here(_: Iterator[int], *, options: EmbeddingOptions) -> Iterator[str]:
    """Runs on an executor."""
    yield choose_precision(options.precision, task_device(options.backend))
