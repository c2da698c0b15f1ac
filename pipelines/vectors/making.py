"""Has executors make the parts of a table, and knows whether they get on."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pipelines.files import locks, storage
from pipelines.files.locations import Location, RemotePath
from pipelines.models.inference.backends import choose_precision
from pipelines.progress import WorkProgress
from pipelines.spark.capacity import default_parallelism
from pipelines.spark.errors import executor_failures
from pipelines.spark.jobs import run_with_timeout
from pipelines.spark.session import running_tasks
from pipelines.spark.tasks import collect_from_tasks
from pipelines.vectors.embedding import Columns, EmbeddingOptions, task_device
from pipelines.vectors.part_files import embed_parts, read_deleted
from pipelines.vectors.parts import RowRange, tasks
from pipelines.vectors.plan import ATTEMPTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SECONDS_BETWEEN = 1.0
SECONDS_BETWEEN_LISTINGS = 10.0
"""Of a folder in a store, where each listing is paid for."""


class PartsProgress:
    """Watches the parts of a job appear in a folder; a context manager on the driver.

    Args:
        folder: Where each part becomes `<name>.parquet`.
        parts: All of them; those that are there already count as done.
        name: Of the work.
    """

    def __init__(
        self, folder: Location, parts: Sequence[RowRange], name: str = "embedding"
    ) -> None:
        self._folder = folder
        self._rows = {f"{part.name}.parquet": part.rows for part in parts}
        self._began = time.monotonic()
        self._first = self._done()
        total = sum(self._rows.values())
        line = f"{name} {{done}}/{{total}} rows  {{text}}"
        self._progress = WorkProgress(name, total, self._first, line)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="embedding-bar", daemon=True)

    def __enter__(self) -> PartsProgress:
        self._progress.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._ended.set()
        self._thread.join(timeout=10 * SECONDS_BETWEEN)
        self._show()
        self._progress.__exit__(*error)

    def _done(self) -> int:
        return sum(self._rows.get(file.name, 0) for file in self._folder.glob("part-*.parquet"))

    def _watch(self) -> None:
        in_store = isinstance(self._folder, RemotePath)
        pause = SECONDS_BETWEEN_LISTINGS if in_store else SECONDS_BETWEEN
        while not self._ended.wait(pause):
            self._show()

    def _show(self) -> None:
        done = self._done()
        if done == self._first:
            return
        rate = (done - self._first) / max(time.monotonic() - self._began, 1e-9)
        self._progress.show(done, f"{rate:.0f} rows/s")


Value = TypeVar("Value")


def run_job(
    session: SparkSession,
    name: str,
    act: Callable[[], Value],
    state: Callable[[], object] | None = None,
    ending: str = "",
) -> Value:
    """Has Spark do a job.

    Args:
        session: Does it.
        name: What it is.
        act: Starts it, and returns when it has ended.
        state: Changes as it makes progress; by default what Spark says of its tasks.
        ending: Of the line of an error: what has been kept.

    Raises:
        PipelineError: A task failed as often as Spark tries, or nothing moved any more.
    """
    with executor_failures(name, ending):
        return run_with_timeout(session, name, act, state)


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
        PipelineError: See :func:`~pipelines.vectors.making.run_job`, or another job took this
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
