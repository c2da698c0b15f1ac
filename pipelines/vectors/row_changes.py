"""Compare a table of vectors with the one that it replaces, and write the log of its version.

Files that both tables share are not read. Executors read the rows of all others, and Spark brings
those with one key together, as digests. The log lists the keys whose digests differ, so a change of
any column counts. It is written before the manifest: until then the table is not whole, so a killed
job leaves the old table with its logs, and the same command finishes the new one with its log.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.arrow_columns import as_text, plain_type
from pipelines.files import storage
from pipelines.files.locations import Location, arrow_source, listed
from pipelines.spark.frames import Totals, write_arrow
from pipelines.spark.tasks import frame_from_tasks, slices
from pipelines.vectors.changes import (
    CHANGES_FOLDER,
    DELETE,
    UPSERT,
    ChangeLog,
    Lineage,
    carry_over,
    log_file,
    read_lineage,
    write_log,
)
from pipelines.vectors.embedding import Columns
from pipelines.vectors.keys import (
    ADDED,
    CHANGED,
    GONE,
    NEW,
    OLD,
    ROWS_OF_TASK,
    UNCHANGED,
    tasks_to_read,
)
from pipelines.vectors.parts import in_threads, read_rows
from pipelines.vectors.plan import KEY_COLUMN, Version
from pipelines.vectors.row_digests import digests_of_rows
from pipelines.vectors.table_job import ATTEMPTS, run_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

METADATA = "metadata"
"""Kind of a row with other values beside an equal text and vector."""

ROWS_DDL = "key string, side tinyint, vector binary, rest binary"
ROWS = pa.schema(
    [("key", pa.string()), ("side", pa.int8()), ("vector", pa.binary()), ("rest", pa.binary())]
)
"""`vector` is a digest of text, vector and scale; `rest` one of the other columns."""
KINDS = pa.schema([("kind", pa.string()), ("key", pa.string())])
_EVERY = pc.CountOptions(mode="all")

Equality = Literal["rows", "keys", "none"]
"""Which rows of both tables are equal: those with equal values, those with equal keys, or none."""


@dataclass(frozen=True)
class RowChanges:
    """Numbers of rows by their change since the version before.

    ``changed`` rows have another text or vector, ``metadata`` rows other values beside these.
    """

    changed: int
    metadata: int
    new: int
    gone: int

    def __str__(self) -> str:
        return (
            f"{self.new:,} new, {self.changed:,} changed, {self.metadata:,} with other metadata "
            f"only, {self.gone:,} gone"
        )

    def fields(self, rows: int) -> dict[str, int]:
        """Return the numbers for the manifest of a table with so many rows."""
        return {"unchanged": rows - self.changed - self.metadata - self.new, **asdict(self)}


@dataclass(frozen=True)
class Logged:
    """The place of a version among those of its table, and its changes since the one before.

    ``changes`` is None without a version before to compare with.
    """

    lineage: Lineage
    changes: RowChanges | None


@dataclass(frozen=True)
class RowScan:
    """A file with rows to compare.

    ``side`` is :data:`~pipelines.vectors.keys.NEW` or ``OLD``; ``rows`` may count deleted ones too.
    ``vectors`` are the columns of text, vector and scale.
    """

    side: int
    path: Location
    rows: int
    key: str
    vectors: tuple[str, ...]
    equality: Equality


Compare = Callable[[Sequence[RowScan], Location], Mapping[str, int]]
"""Writes the changes of scanned rows (:data:`KINDS`) as `part-*.parquet` into a new folder, and
returns their numbers by kind."""


def log_changes(
    version: Version,
    before: Version | None,
    compare: Compare,
    *,
    model_digest: str | None,
    keep: int,
    equality: Equality = "rows",
) -> Logged:
    """Write the log of a version beside its parts, and carry over those of the version before.

    ``before`` is the whole table that it replaces, if any. ``keep`` is the number of logs in all; 0
    means none. ``equality`` is for rows with vectors of the same settings; a version with others
    has no equal rows. Without a key there is no log.

    Raises:
        PipelineError: See :func:`~pipelines.vectors.table_job.run_job`.
    """
    # A killed job may have begun with the logs, too.
    storage.discard_folder(version.folder / CHANGES_FOLDER)
    known = None if before is None else read_lineage(before.folder)
    build, table = version.plan.build, uuid.uuid4().hex if known is None else known.table
    made = uuid.uuid4().hex
    key = version.plan.identity[KEY_COLUMN]
    if key is None or not keep:
        return Logged(Lineage(build, table, None, made), None)
    types = _key_types(version, before, key)
    key_type = stored_key_type(types[part.name] for part in version.plan.parts)
    is_followed = known is not None and _has_same_keys(before, key, key_type, types)
    since, since_made = (
        (known.version, known.made) if known is not None and is_followed else (None, None)
    )
    if before is None or since is None or not _has_same_vectors(version, before):
        equality = "none"
    path = log_file(version.folder, build)
    log = ChangeLog(build, since, path, model_digest, table, since_made)
    found = version.folder / ATTEMPTS / uuid.uuid4().hex
    try:
        scans = row_scans(version, before, types, equality)
        counts = compare(scans, found) if scans else {}
        write_log(log, key_type, _logged(found))
    finally:
        storage.discard_folder(found)
    if before is not None and since is not None:
        carry_over(before.folder, since, version.folder, keep - 1)
    kinds = (CHANGED, METADATA, ADDED, GONE)
    changes = None if since is None else RowChanges(*(counts.get(kind, 0) for kind in kinds))
    return Logged(Lineage(build, table, since, made), changes)


def _key_types(version: Version, before: Version | None, key: str) -> dict[str, pa.DataType | None]:
    """Return the types of the keys by the name of a part; None for a part without the column.

    Missing files of the earlier table are left out.
    """
    files = {part.name: version.file(part) for part in version.plan.parts}
    if before is not None:
        old = [part for part in before.plan.parts if part.name not in files]
        there = in_threads(lambda part: before.file(part).is_file(), old)
        files |= {
            part.name: before.file(part)
            for part, is_there in zip(old, there, strict=True)
            if is_there
        }

    def type_in(file: Location) -> pa.DataType | None:
        schema = pq.read_schema(arrow_source(file))
        return schema.field(key).type if key in schema.names else None

    return dict(zip(files, in_threads(type_in, files.values()), strict=True))


def stored_key_type(types: Iterable[pa.DataType | None]) -> pa.DataType:
    """Return the type of keys in a log: int64 if all files have whole numbers in its range."""
    plain = [plain_type(kind) for kind in types if kind is not None]
    known = [kind for kind in plain if not pa.types.is_null(kind)]
    fit = all(pa.types.is_integer(kind) and kind != pa.uint64() for kind in known)
    return pa.int64() if known and fit else pa.string()


def _has_same_keys(
    before: Version | None, key: str, key_type: pa.DataType, types: Mapping[str, pa.DataType | None]
) -> bool:
    """Return whether who has the rows of an earlier table knows them by the same keys."""
    if before is None or before.plan.identity.get(KEY_COLUMN) != key:
        return False
    names = [part.name for part in before.plan.parts]
    # The keys in a missing file are unknown, so nobody can be told to delete them.
    if not types.keys() >= {*names}:
        return False
    return bool(stored_key_type(types[name] for name in names) == key_type)


def _has_same_vectors(version: Version, before: Version) -> bool:
    identity = version.plan.identity
    return before.has_same_files(identity) and not before.other_vectors(identity)


def row_scans(
    version: Version,
    before: Version | None,
    types: Mapping[str, pa.DataType | None],
    equality: Equality,
) -> list[RowScan]:
    """Return the files to read: all with keys, or those of them that only one table has.

    ``types`` are those of the keys, by the name of a part.
    """
    identity = version.plan.identity
    columns = Columns(
        text=identity["embedding.text_column"], vector=identity["embedding.output_column"]
    )
    sides = [(NEW, version), *([(OLD, before)] if before is not None else [])]
    times = Counter(part.name for _, table in sides for part in table.plan.parts)
    return [
        RowScan(
            side,
            table.file(part),
            part.rows,
            identity[KEY_COLUMN],
            (columns.text, *columns.stored),
            equality,
        )
        for side, table in sides
        for part in table.plan.parts
        if types.get(part.name) is not None and (equality == "none" or times[part.name] == 1)
    ]


def compare_on_spark(
    session: SparkSession, scans: Sequence[RowScan], folder: Location
) -> dict[str, int]:
    """Compare rows on the executors, as a :data:`Compare`.

    Raises:
        PipelineError: See :func:`~pipelines.vectors.table_job.run_job`.
    """
    rows = sum(scan.rows for scan in scans)

    def act() -> pa.Table:
        tasks = slices(scans, tasks_to_read(session, scans))
        read = frame_from_tasks(session, tasks, _read_tasks, ROWS_DDL)
        # All rows with one key meet in one partition.
        together = read.repartition(-(-rows // ROWS_OF_TASK), "key")
        return write_arrow(together, _kinds_of_batches, KINDS, Totals(("kind",)), folder)

    counted = run_job(session, "embedding: comparing rows", act)
    return dict(zip(counted["kind"].to_pylist(), counted["written"].to_pylist(), strict=True))


def _read_tasks(tasks: Iterator[Sequence[RowScan]]) -> Iterator[pa.RecordBatch]:
    """Read the rows of scans. Runs on an executor."""
    return chain.from_iterable(map(read_scan, chain.from_iterable(tasks)))


def read_scan(scan: RowScan) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with a key, as :data:`ROWS`. Runs on an executor."""
    columns = None if scan.equality == "rows" else [scan.key]
    for read in read_rows(scan.path, 0, scan.rows, columns):
        # Only a table made without keys has rows without one.
        batch = read.filter(pc.is_valid(read[scan.key]))
        side = pa.repeat(pa.scalar(scan.side, pa.int8()), batch.num_rows)
        arrays = [as_text(batch[scan.key]), side, *_digests(batch, scan)]
        yield pa.RecordBatch.from_arrays(arrays, schema=ROWS)


def _digests(batch: pa.RecordBatch, scan: RowScan) -> tuple[pa.Array, pa.Array]:
    if scan.equality == "rows":
        rest = [name for name in batch.schema.names if name not in scan.vectors]
        return digests_of_rows(batch, scan.vectors), digests_of_rows(batch, rest)
    same = bytes([scan.side]) if scan.equality == "none" else b""
    column = pa.repeat(pa.scalar(same, pa.binary()), batch.num_rows)
    return column, column


def _kinds_of_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Call :func:`kinds_of` with all rows of a partition. Runs on an executor."""
    rows = pa.Table.from_batches(list(batches), ROWS)
    if rows.num_rows:
        yield from kinds_of(rows).combine_chunks().to_batches()


def kinds_of(rows: pa.Table) -> pa.Table:
    """Return the changed keys among all rows (:data:`ROWS`, in any order) of some keys.

    The result has the columns of :data:`KINDS`, sorted by key. A key with several rows in the
    earlier table, made without keys, has changed unless they are all equal to the new one.
    """
    sides = [("side", "min"), ("side", "max")]
    different = rows.group_by(["key", "vector", "rest"], use_threads=False).aggregate(sides)
    found = different.group_by("key", use_threads=False).aggregate(
        [
            ("side_min", "min"),
            ("side_max", "max"),
            ("rest", "count", _EVERY),
            ("vector", "count_distinct", _EVERY),
        ]
    )
    kind = pc.case_when(
        pc.make_struct(
            pc.not_equal(found["side_min_min"], NEW),
            pc.not_equal(found["side_max_max"], OLD),
            pc.equal(found["rest_count"], 1),
            pc.equal(found["vector_count_distinct"], 1),
        ),
        *(GONE, ADDED, UNCHANGED, METADATA, CHANGED),
    )
    kinds = pa.Table.from_arrays([kind, found["key"]], schema=KINDS)
    return kinds.filter(pc.not_equal(kind, UNCHANGED)).sort_by("key")


def _logged(folder: Location) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a log from the changes in a folder, batch by batch."""
    for path in listed(folder, "part-*.parquet"):
        with pq.ParquetFile(arrow_source(path)) as file:
            for batch in file.iter_batches(use_threads=False):
                change = pc.if_else(pc.equal(batch["kind"], GONE), DELETE, UPSERT)
                yield pa.RecordBatch.from_arrays([batch["key"], change], ["key", "change"])
