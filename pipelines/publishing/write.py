"""Writing to a store: by executors, or by the driver itself, in batches and with retries.

Each task has a connection of its own, so the number of tasks bounds the connections. It reads the
logs of changes itself: keys may be many, and a task's description travels through the driver.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import tenacity

from pipelines.errors import PipelineError
from pipelines.files.locations import Location
from pipelines.publishing.plan import Logs
from pipelines.publishing.rows import Rows, Source, among, in_batches, read_source
from pipelines.publishing.store import Layout, Store, StoreKind, Target, refusals
from pipelines.vectors.changes import DELETE, read_changes

ATTEMPTS = 6
LONGEST_PAUSE_SECONDS = 30.0

Value = TypeVar("Value")


class Connection:
    """A connection to a store, opened when it is needed, and again after a lost one."""

    def __init__(self, kind: StoreKind, target: Target) -> None:
        self._kind = kind
        self._target = target
        self._store: Store | None = None

    def do(self, act: Callable[[Store], Value]) -> Value:
        """Call a function of the store, several times if errors may pass.

        Raises:
            Exception: That of the last attempt.
        """
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=tenacity.wait_random_exponential(multiplier=1, max=LONGEST_PAUSE_SECONDS),
            retry=tenacity.retry_if_exception(self._may_pass),
            before_sleep=self._lost,
            reraise=True,
        )
        value: Value = retrying(self._attempt, act)
        return value

    def _attempt(self, act: Callable[[Store], Value]) -> Value:
        if self._store is None:
            self._store = self._kind.open(self._target)
        return act(self._store)

    def _may_pass(self, error: BaseException) -> bool:
        if not isinstance(error, Exception) or isinstance(error, PipelineError):
            return False
        return self._kind.is_temporary(error)

    def _lost(self, _: tenacity.RetryCallState) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if it is open; a broken one may fail to."""
        store, self._store = self._store, None
        if store is not None:
            with suppress(Exception):
                store.close()


@contextmanager
def connected(kind: StoreKind, target: Target) -> Iterator[Connection]:
    """Connect to a store for the block.

    Raises:
        InputError: The user can correct the failure.
    """
    connection = Connection(kind, target)
    with refusals(kind, target):
        try:
            yield connection
        finally:
            connection.close()


@dataclass(frozen=True)
class Piece:
    """Rows of a file, from ``start`` to before ``stop``."""

    path: Location
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.stop - self.start


@dataclass(frozen=True)
class Writing:
    """What tasks write, and where; sent to executors.

    Without ``logs`` they write all rows, otherwise those of the logs' keys. Without ``may_exist``
    the collection has none of the rows yet.
    """

    kind: StoreKind
    target: Target
    name: str
    source: Source
    batch_rows: int
    logs: Logs = ()
    may_exist: bool = True


@dataclass(frozen=True)
class Counts:
    """Numbers of written, deleted and left out rows, which have no vector."""

    upserted: int = 0
    deleted: int = 0
    left_out: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.upserted + other.upserted,
            self.deleted + other.deleted,
            self.left_out + other.left_out,
        )


def changed_keys(logs: Logs) -> pa.Array:
    """Return the different keys of logs."""
    found = [batch.column("key") for log in logs for batch in read_changes(log)]
    return pc.unique(pa.chunked_array(found)) if found else pa.array([])


def deleted_keys(logs: Logs) -> pa.Array:
    """Return the keys whose last change in the logs, the oldest first, is a deletion."""
    deleted: list[pa.Array] = []
    later: pa.Array | None = None
    for log in reversed(logs):
        batches = list(read_changes(log))
        if not batches:
            continue
        changes = pa.Table.from_batches(batches).combine_chunks()
        keys = changes.column("key").combine_chunks()
        is_last = pc.equal(changes.column("change").combine_chunks(), DELETE)
        if later is not None:
            is_last = pc.and_(is_last, pc.invert(pc.is_in(keys, later)))
        deleted.append(keys.filter(is_last))
        later = keys if later is None else pa.concat_arrays([later, keys])
    return pa.concat_arrays(deleted) if deleted else pa.array([], pa.int64())


def write_pieces(tasks: Iterator[Sequence[Piece]], *, writing: Writing) -> Iterator[Counts]:
    """Write the rows of pieces, or those of changed keys; yield their numbers.

    Rows without a vector are deleted where they may exist. Runs on an executor, or in the driver.
    """
    # Spark tries a failed task again, which may have written some of its rows.
    may_exist = writing.may_exist or _is_second_attempt()
    is_wanted = among(changed_keys(writing.logs)) if writing.logs else None
    layout, name = writing.source.layout, writing.name
    with connected(writing.kind, writing.target) as connection:
        for pieces in tasks:
            read = (
                read_source(writing.source, piece.path, piece.start, piece.stop, is_wanted)
                for piece in pieces
            )
            for batch in in_batches(chain.from_iterable(read), writing.batch_rows):
                yield _write(connection, name, layout, batch, may_exist=may_exist)


def _write(
    connection: Connection, name: str, layout: Layout, batch: Rows, *, may_exist: bool
) -> Counts:
    rows, without = batch.rows, batch.without_vector
    if rows.num_rows:
        # A failed request may have been done all the same.
        attempts = iter([may_exist])
        connection.do(
            lambda store: store.upsert(name, layout, rows, may_exist=next(attempts, True))
        )
    if len(without) and may_exist:
        connection.do(lambda store: store.delete(name, layout, without))
    return Counts(upserted=rows.num_rows, left_out=len(without))


def delete_keys(tasks: Iterator[pa.Array], *, writing: Writing) -> Iterator[Counts]:
    """Delete keys; yield their numbers. Runs on an executor, or in the driver."""
    layout, name = writing.source.layout, writing.name
    with connected(writing.kind, writing.target) as connection:
        for keys in tasks:
            for start in range(0, len(keys), writing.batch_rows):
                some = keys.slice(start, writing.batch_rows)
                connection.do(partial(_delete, name=name, layout=layout, keys=some))
                yield Counts(deleted=len(some))


def _delete(store: Store, *, name: str, layout: Layout, keys: pa.Array) -> None:
    store.delete(name, layout, keys)


def _is_second_attempt() -> bool:
    if "pyspark" not in sys.modules:
        return False
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0
