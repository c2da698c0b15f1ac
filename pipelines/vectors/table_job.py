"""A table made part by part, by jobs able to resume each other's work.

It is begun aside (:mod:`pipelines.files.begun`), and takes its place when it is whole, so its
folder holds a whole table at any moment, old or new. Executors write each part atomically: a killed
job leaves whole parts, and the same command makes the others.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from pipelines.files import locks, storage
from pipelines.files.begun import lock_file
from pipelines.files.folders import work_folder
from pipelines.files.locations import Location
from pipelines.progress import WorkProgress
from pipelines.spark.errors import executor_failures
from pipelines.spark.jobs import run_with_timeout
from pipelines.spark.session import running_tasks
from pipelines.spark.tasks import collect_from_tasks
from pipelines.vectors.parts import in_threads, read_part_footer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAN_FILE = "_plan.json"
"""The plan of a table of vectors. Spark, pandas and pyarrow take no name with an underscore for
data."""
MANIFEST_FILE = "_manifest.json"
STAGED = "_input"
ATTEMPTS = "_attempts"
KEPT = "_kept"
"""Folder of the rows' kept vectors, until their part is made."""
INDEX_FOLDER = "_index"
"""Folder of :mod:`pipelines.vectors.index`; its files have the names of the indexed parts."""

SECONDS_BETWEEN = 1.0
SECONDS_BETWEEN_LISTINGS = 10.0
"""Pause between listings of a folder in a store: they are billed."""
_WHOLE_RATE = 10
SIGN_SECONDS = 30.0
"""Interval of the signs of life of a part that nobody sees grow."""
KEPT_SO_FAR = "; finished parts are kept, and the same command makes the others"

Item = TypeVar("Item")
Value = TypeVar("Value")


@contextmanager
def working_on(key: str, folder: Location, job: str) -> Iterator[None]:
    """Lock the folder of a table, and finish a killed job's replacement.

    ``key`` is the setting of the folder, ``job`` the name of the command.

    Raises:
        InputError: The folder cannot be written to.
        PipelineError: Another job works there.
    """
    with work_folder(key, folder, job, lock_file(folder)):
        storage.settle(folder)
        yield


def missing_parts(folder: Location, rows: Mapping[str, int | None]) -> list[str]:
    """Return the names of the parts to make.

    Existing parts are `<name>.parquet` in the folder. ``rows`` of each part include deleted ones;
    None if the number is unknown.
    """
    names = {path.stem for path in folder.glob("part-*.parquet")} & rows.keys()
    if not storage.can_grow(folder):
        # The remains of an interrupted upload have the name of the part.
        found = sorted(names)
        checks = in_threads(lambda name: _is_whole(folder / f"{name}.parquet", rows[name]), found)
        names = {name for name, is_whole in zip(found, checks, strict=True) if is_whole}
    return [name for name in rows if name not in names]


def _is_whole(file: Location, rows: int | None) -> bool:
    try:
        footer = read_part_footer(file)
    except pa.ArrowInvalid:
        return False
    return rows is None or footer.covers(rows)


def make_parts(
    session: SparkSession,
    name: str,
    folder: Location,
    rows: Mapping[str, int],
    tasks: Sequence[Sequence[Item]],
    make: Callable[..., Iterator[Value]],
) -> list[Value]:
    """Have executors make files of a table; return what they yield.

    Each part becomes `<name>.parquet` in ``folder``. ``rows`` of all parts, by name, are the unit
    of progress; ``tasks`` group the parts to make. ``make`` gets as `attempts` a temporary folder
    of this job alone; remains of a killed job are in another one.

    Raises:
        PipelineError: See :func:`run_job`, or another job took this one for dead.
    """
    if not tasks:
        return []
    storage.discard_folder(folder / ATTEMPTS)
    # A fresh name: tasks of a killed job may still write into its folder.
    attempts = folder / ATTEMPTS / uuid.uuid4().hex
    attempts.mkdir(parents=True)
    work = partial(_work_on_tasks, make=partial(make, attempts=attempts))
    act = partial(collect_from_tasks, session, tasks, work)
    with PartsProgress(folder, rows, name):
        return run_job(session, name, act, _signs(attempts), KEPT_SO_FAR)


def _work_on_tasks(
    tasks: Iterator[Sequence[Item]], *, make: Callable[..., Iterator[Value]]
) -> Iterator[Value]:
    """Make the parts of tasks. Runs on an executor."""
    return (made for parts in tasks for made in make(parts))


def run_job(
    session: SparkSession,
    name: str,
    act: Callable[[], Value],
    state: Callable[[], object] | None = None,
    ending: str = "",
) -> Value:
    """Run a Spark job, and fail when it stalls.

    ``act`` starts the job, and returns at its end. ``state`` changes with progress; by default it
    is Spark's state of its tasks. ``ending`` closes an error's line with the fate of finished work.

    Raises:
        PipelineError: A task failed as often as Spark tries, or nothing moved any more.
    """
    with executor_failures(name, ending):
        return run_with_timeout(session, name, act, state)


def _signs(attempts: Location) -> Callable[[], object]:
    """Return a state that changes with progress; it raises if this job has lost a lock."""
    held = locks.held_here()

    def state() -> object:
        for lock in held:
            lock.check()
        return running_tasks(), storage.signs_of_life(attempts)

    return state


def life_signs(sign: Location) -> Callable[[], None]:
    """Return a callback to grow a file now and then, as a sign of progress. Runs on an executor."""
    signed_at, count = time.monotonic(), 0

    def get_on() -> None:
        nonlocal signed_at, count
        if time.monotonic() - signed_at > SIGN_SECONDS:
            signed_at, count = time.monotonic(), count + 1
            storage.write_text(sign, "." * count)

    return get_on


class PartsProgress:
    """Watches the parts of a job appear in a folder; a context manager on the driver.

    Parts are `<name>.parquet`; existing ones count as done.
    """

    def __init__(self, folder: Location, rows: Mapping[str, int], name: str) -> None:
        self._folder = folder
        self._rows = rows
        self._began = time.monotonic()
        self._first = self._done()
        line = f"{name} {{done}}/{{total}} rows  {{text}}"
        self._progress = WorkProgress(name, sum(rows.values()), self._first, line)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="parts-bar", daemon=True)

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
        return sum(self._rows.get(file.stem, 0) for file in self._folder.glob("part-*.parquet"))

    def _watch(self) -> None:
        can_grow = storage.can_grow(self._folder)
        pause = SECONDS_BETWEEN if can_grow else SECONDS_BETWEEN_LISTINGS
        while not self._ended.wait(pause):
            self._show()

    def _show(self) -> None:
        done = self._done()
        if done != self._first:
            rate = (done - self._first) / max(time.monotonic() - self._began, 1e-9)
            # A language model may take seconds for a row.
            told = f"{rate:.0f}" if rate >= _WHOLE_RATE else f"{rate:.2f}"
            self._progress.show(done, f"{told} rows/s")
