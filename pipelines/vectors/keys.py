"""Compare two tables by key, to find changed rows and keep the vectors of the others.

Only keys and texts of both tables are read. The result is small: counts of new, changed and removed
rows, and the place of each unchanged row in either table. Each file of the earlier table is then
read once, and Spark shuffles its vectors to their parts. Rows may be in another order than before,
so every part would otherwise have to search every file. A part finds its vectors in one small file,
in the order of its rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.arrow_columns import as_text
from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.files.locations import Location, arrow_source
from pipelines.settings import EmbeddingSettings
from pipelines.spark.capacity import default_parallelism
from pipelines.spark.frames import Scratch, Totals, batches_of
from pipelines.vectors.parts import (
    PARTS_OF_SLOT,
    Constants,
    RowRange,
    read_rows,
    runs_of,
    with_constants,
)
from pipelines.vectors.plan import KEY_COLUMN, Changes
from pipelines.vectors.store import VectorTable
from pipelines.vectors.table_job import STAGED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NEW, STAYS, OLD = 0, 1, 2
"""Sides of a row: in a new part, in a kept part, in a removed earlier part."""

UNCHANGED, CHANGED, ADDED, GONE = "unchanged", "changed", "new", "gone"
TWICE, MISSING = "twice", "missing"
"""Kinds of unusable keys, beside the kinds of matched rows."""

ROWS_DDL = "key string, side tinyint, position long, digest binary"
ROWS = pa.schema(
    [("key", pa.string()), ("side", pa.int8()), ("position", pa.int64()), ("digest", pa.binary())]
)
MATCHES = pa.schema(
    [
        ("kind", pa.string()),
        ("rows", pa.int64()),
        ("key", pa.string()),
        ("first", pa.int64()),
        ("second", pa.int64()),
    ]
)
"""`first` and `second` are positions in the earlier and in the new table. For a repeated key both
are in the new table. Both are null in counts."""
PLACES_DDL = "file int, old long, part int, row long"
_PLACES = pa.schema(
    [("file", pa.int32()), ("old", pa.int64()), ("part", pa.int32()), ("row", pa.int64())]
)
VECTORS_DDL = "part int, row long, vector binary, scale float"
_VECTORS = pa.schema(
    [("part", pa.int32()), ("row", pa.int64()), ("vector", pa.binary()), ("scale", pa.float32())]
)
COUNTS_DDL = "part int, rows long"

DIGEST_BYTES = 16
"""Length of a text's digest: only among 2^64 texts would two share one by chance."""
_NO_TEXT = b""
MAX_TASKS = 1024
"""Most tasks to read keys."""
ROWS_OF_TASK = 200_000
"""Rows for a task to sort and hand on."""
BATCH_BYTES = 8 * 2**20
"""Vectors on their way between Spark and Python at a time."""


def compare_rows(
    session: SparkSession,
    parts: Sequence[RowRange],
    settings: EmbeddingSettings,
    before: VectorTable | None,
    folder: Location,
) -> tuple[dict[str, int], Changes]:
    """Compare keys and texts, and write the vectors of equal ones for their parts.

    ``parts`` are all of the new table, in order; vectors of ``before``, if given, may be kept. Each
    part finds its vectors in ``folder``, created if there are any. Return the numbers of rows with
    kept vectors, by the name of their part, and the changes. Rows of kept parts count as unchanged.

    Raises:
        InputError: A key is missing or repeated.
    """
    assert settings.key_column is not None, "rows are compared by key"
    scans = key_scans(parts, settings.key_column, settings.text_column, before)
    rows = sum(scan.rows for scan in scans)
    with Scratch(folder.with_name("_keys")) as scratch:
        numbers = session.range(0, len(scans), 1, tasks_to_read(session, scans))
        found = numbers.mapInArrow(partial(_scan, scans=scans), ROWS_DDL)
        # All rows with one key meet in one partition.
        together = found.repartition(-(-rows // ROWS_OF_TASK), "key")
        totals = Totals(("kind",), ("rows",))
        kept, counted = scratch.keep_arrow(together, match_batches, MATCHES, totals)
        counts = dict(zip(counted["kind"].to_pylist(), counted["rows"].to_pylist(), strict=True))
        if counts.keys() & {TWICE, MISSING}:
            raise _refusal(kept.frame, parts, settings.key_column)
        changes = Changes(*(counts.get(kind, 0) for kind in (UNCHANGED, CHANGED, ADDED, GONE)))
        in_parts = sum(scan.rows for scan in scans if scan.side == STAYS)
        if before is None or changes.unchanged == in_parts:
            return {}, changes
        return bring_vectors(kept.frame, before, parts, folder), changes


def _refusal(matches: DataFrame, parts: Sequence[RowRange], key: str) -> InputError:
    """Name the first row with an unusable key."""
    unusable = matches.where(f"kind in ('{TWICE}', '{MISSING}')")
    row = unusable.orderBy("second").limit(1).collect()[0]
    place = _place_in_input(row["second"], parts)
    remedy = "Name a column with a different value in each row and no nulls"
    if row["kind"] == MISSING:
        return InputError(KEY_COLUMN, f"`{key}` is null in {place}", remedy)
    earlier = _place_in_input(row["first"], parts)
    places = f"{earlier} and in {place}" if earlier != place else "two rows of the table"
    return InputError(KEY_COLUMN, f"`{key}` is `{row['key']}` in {places}", remedy)


def _place_in_input(position: int, parts: Sequence[RowRange]) -> str:
    """Name a row by its file and row number; for staged formats these mean nothing."""
    firsts = list(accumulate((part.rows for part in parts), initial=0))
    number = int(np.searchsorted(firsts[:-1], position, side="right")) - 1
    part = parts[number]
    if part.path.parent.name == STAGED:
        return "a row of the table"
    return f"row {part.start + position - firsts[number]} of {part.path}"


@dataclass(frozen=True)
class KeyScan:
    """Rows to read keys of.

    ``side`` is :data:`NEW`, :data:`STAYS` or :data:`OLD`. ``start`` to before ``stop`` are rows of
    the file; ``first`` is the position of ``start`` in its table. ``text`` is None if texts are not
    compared. ``constants`` are columns in the names of the file's folders.
    """

    side: int
    path: Location
    start: int
    stop: int
    first: int
    key: str
    text: str | None
    constants: Constants = ()

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.stop - self.start


class HasRows(Protocol):
    """A value with a number of rows."""

    @property
    def rows(self) -> int:
        """The number of rows."""


def tasks_to_read(session: SparkSession, scans: Sequence[HasRows]) -> int:
    """Return the number of tasks for scans, at most one each.

    Small tables get a few for each slot: a task costs a tenth of a CPU second, like 20,000 rows.
    """
    rows = sum(scan.rows for scan in scans)
    wanted = max(PARTS_OF_SLOT * default_parallelism(session), -(-rows // ROWS_OF_TASK))
    return min(len(scans), MAX_TASKS, wanted)


def key_scans(
    parts: Sequence[RowRange], key: str, text: str, before: VectorTable | None
) -> list[KeyScan]:
    """Return the rows to read to compare tables.

    ``parts`` are of the new table, in order. ``key`` names the column of both tables, ``text`` that
    of the new one. ``before`` is the earlier table, if its vectors may be kept.
    """
    compared = None if before is None else text
    firsts = accumulate((part.rows for part in parts), initial=0)
    scans = [
        KeyScan(NEW, part.path, part.start, part.stop, first, key, compared, part.constants)
        if part.copied_from is None
        else KeyScan(STAYS, part.copied_from, 0, part.rows, first, key, None)
        for first, part in zip(firsts, parts, strict=False)
    ]
    if before is not None:
        kept = {part.name for part in parts if part.copied_from is not None}
        scans += [
            KeyScan(OLD, file.path, 0, file.rows, file.first, key, before.text)
            for file in before.files
            if file.path.stem not in kept
        ]
    return scans


def _scan(
    batches: Iterator[pa.RecordBatch], *, scans: Sequence[KeyScan]
) -> Iterator[pa.RecordBatch]:
    """Read the scans of the numbers in `id`. Runs on an executor."""
    numbers = (number for batch in batches for number in batch.column("id").to_pylist())
    return scan_keys(scans[number] for number in numbers)


def scan_keys(scans: Iterable[KeyScan]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of scans, as :data:`ROWS`. Runs on an executor.

    If a key is missing or repeated, only such rows come: they suffice to refuse the table, and
    there may be any number.
    """
    for scan in scans:
        tables = [_rows(scan, place, batch) for place, batch in _batches(scan)]
        if tables:
            rows = pa.concat_tables(tables)
            # A table made without keys may hold missing and repeated ones.
            kept = _with_key(rows) if scan.side == OLD else _usable(rows)
            yield from kept.combine_chunks().to_batches()


def _batches(scan: KeyScan) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the columns of a scan, with positions of first rows; nothing without the key."""
    names = pq.read_schema(arrow_source(scan.path)).names
    constants = {constant.name for constant in scan.constants}
    wanted = [name for name in dict.fromkeys((scan.key, scan.text)) if name is not None]
    if any(name not in names and name not in constants for name in wanted):
        return
    place = scan.first
    stored = [name for name in wanted if name in names]
    for batch in read_rows(scan.path, scan.start, scan.stop, stored):
        yield place, with_constants(batch, scan.constants)
        place += batch.num_rows


def _rows(scan: KeyScan, place: int, batch: pa.RecordBatch) -> pa.Table:
    count = batch.num_rows
    digests = pa.nulls(count, pa.binary()) if scan.text is None else digests_of(batch[scan.text])
    columns = [
        as_text(batch[scan.key]),
        pa.repeat(pa.scalar(scan.side, pa.int8()), count),
        pa.array(np.arange(place, place + count)),
        digests,
    ]
    return pa.Table.from_arrays(columns, schema=ROWS)


def digests_of(texts: pa.Array) -> pa.Array:
    """Return a digest for each text; all nulls share one."""
    found = (
        _NO_TEXT
        if text is None
        else hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()
        for text in as_text(texts).to_pylist()
    )
    return pa.array(found, pa.binary())


def _with_key(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.is_valid(rows["key"]))


def _usable(rows: pa.Table) -> pa.Table:
    keys = rows["key"]
    if keys.null_count:
        return rows.filter(pc.is_null(keys)).slice(0, 1)
    if pc.count_distinct(keys).as_py() == len(keys):
        return rows
    counts = pc.value_counts(keys)
    twice = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")[0]
    return rows.filter(pc.equal(keys, twice)).slice(0, 2)


def match_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Call :func:`match` with all rows of a partition. Runs on an executor."""
    rows = pa.Table.from_batches(list(batches), ROWS)
    if rows.num_rows:
        yield from match(rows).combine_chunks().to_batches()


def match(rows: pa.Table) -> pa.Table:
    """Match all rows (:data:`ROWS`, in any order) of some keys; return :data:`MATCHES`.

    These have a row for each kept vector, one for each unusable key, and a count for each occurring
    kind of row.
    """
    sides = rows["side"]
    new, old = (rows.filter(pc.equal(sides, side)) for side in (NEW, OLD))
    current = rows.filter(pc.not_equal(sides, OLD))
    before = old.group_by(["key", "digest"], use_threads=False).aggregate([("position", "min")])
    # Equal texts have equal vectors, so any of several rows with one key may give it.
    kept = new.join(before, ["key", "digest"], join_type="inner", use_threads=False)
    to_embed = new.join(before, ["key", "digest"], join_type="left anti", use_threads=False)
    changed = pc.sum(_among(to_embed["key"], old["key"])).as_py() or 0
    gone = pc.unique(old["key"].filter(pc.invert(_among(old["key"], current["key"]))))
    counts = {
        UNCHANGED: len(current) - len(new),
        CHANGED: changed,
        ADDED: len(to_embed) - changed,
        GONE: len(gone),
    }
    counted = [{"kind": kind, "rows": number} for kind, number in counts.items() if number]
    return pa.concat_tables(
        [
            _matches(UNCHANGED, kept["key"], kept["position_min"], kept["position"]),
            _unusable(current),
            pa.Table.from_pylist(counted, schema=MATCHES),
        ]
    )


def _unusable(current: pa.Table) -> pa.Table:
    """Return the missing and the repeated keys of the new table."""
    missing = current.filter(pc.is_null(current["key"]))
    positions = [("position", "count"), ("position", "min"), ("position", "max")]
    counted = _with_key(current).group_by("key", use_threads=False).aggregate(positions)
    twice = counted.filter(pc.greater(counted["position_count"], 1))
    nothing = pa.chunked_array([pa.nulls(len(missing), pa.int64())])
    return pa.concat_tables(
        [
            _matches(MISSING, missing["key"], nothing, missing["position"]),
            _matches(TWICE, twice["key"], twice["position_min"], twice["position_max"]),
        ]
    )


def _matches(
    kind: str, keys: pa.ChunkedArray, first: pa.ChunkedArray, second: pa.ChunkedArray
) -> pa.Table:
    ones = pa.chunked_array([pa.repeat(pa.scalar(1, pa.int64()), len(keys))])
    kinds = pa.chunked_array([pa.repeat(pa.scalar(kind, pa.string()), len(keys))])
    return pa.Table.from_arrays([kinds, ones, keys, first, second], schema=MATCHES)


def _among(values: pa.ChunkedArray, known: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.is_in(values, value_set=known.combine_chunks())


def bring_vectors(
    matches: DataFrame, before: VectorTable, parts: Sequence[RowRange], folder: Location
) -> dict[str, int]:
    """Write the kept vectors of ``matches``, a file for each part with any.

    ``parts`` are all of the new table, in order; ``folder`` is created. Return the numbers of rows
    with kept vectors, by the name of their part.
    """
    folder.mkdir()
    *firsts, rows = accumulate((part.rows for part in parts), initial=0)
    locate = partial(_locate, old=[file.first for file in before.files], new=firsts)
    fetch = partial(_fetch, table=before)
    write = partial(_write, folder=folder, names=[part.name for part in parts])
    most = -(-rows // ROWS_OF_TASK)
    # Each row carries a vector, so batches of the usual number of rows would be large.
    with batches_of(matches.sparkSession, max(64, BATCH_BYTES // (4 * before.dimensions))):
        places = matches.where(f"kind = '{UNCHANGED}' and first is not null")
        found = (
            places.mapInArrow(locate, PLACES_DDL)
            .repartition(max(1, min(len(before.files), most)), "file")
            .sortWithinPartitions("file", "old")
            .mapInArrow(fetch, VECTORS_DDL)
            .repartition(max(1, min(len(parts), most)), "part")
            .sortWithinPartitions("part", "row")
            .mapInArrow(write, COUNTS_DDL)
            .collect()
        )
    return {parts[row["part"]].name: row["rows"] for row in found}


def _locate(
    batches: Iterable[pa.RecordBatch], *, old: Sequence[int], new: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    """Turn positions into files and parts, and rows in them. Runs on an executor."""
    for batch in batches:
        places = (*_place(batch["first"], old), *_place(batch["second"], new))
        arrays = [
            pa.array(values, kind) for values, kind in zip(places, _PLACES.types, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=_PLACES)


def _place(positions: pa.Array, firsts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    places = positions.to_numpy()
    begins = np.asarray(firsts, np.int64)
    # Of files that begin at one position, all but the last are empty.
    numbers = np.searchsorted(begins, places, side="right") - 1
    return numbers, places - begins[numbers]


def _fetch(batches: Iterable[pa.RecordBatch], *, table: VectorTable) -> Iterator[pa.RecordBatch]:
    """Read the vectors of places, sorted by file and row. Runs on an executor."""
    for number, places in runs(batches, "file"):
        old = places["old"].to_numpy()
        first = int(old[0])
        rows = read_rows(table.files[number].path, first, int(old[-1]) + 1, table.vector_columns)
        for batch in rows:
            low, high = np.searchsorted(old, [first, first + batch.num_rows])
            places_in_batch = places.slice(low, high - low)
            taken = batch.take(pa.array(old[low:high] - first))
            first += batch.num_rows
            yield from _with_vectors(places_in_batch, taken, table).to_batches()


def _with_vectors(places: pa.Table, rows: pa.RecordBatch, table: VectorTable) -> pa.Table:
    """Join places with their vectors; null for rows without a text."""
    column = rows.column(table.vector)
    present = column.is_valid().to_numpy(zero_copy_only=False)
    vectors = as_bytes(column.drop_null()).take(pa.array(np.cumsum(present) - 1, mask=~present))
    scales = rows.column(table.scale) if table.scale else pa.nulls(len(rows), pa.float32())
    columns = [places["part"], places["row"], vectors, scales]
    return pa.Table.from_arrays(columns, schema=_VECTORS).combine_chunks()


def as_bytes(vectors: pa.ListArray) -> pa.BinaryArray:
    """Return each vector as its bytes; lists have one size and no nulls."""
    flat = vectors.flatten().to_numpy(zero_copy_only=False)
    size = flat.nbytes // max(len(vectors), 1)
    offsets = np.arange(len(vectors) + 1, dtype=np.int32) * size
    values = pa.py_buffer(np.ascontiguousarray(flat))
    return pa.Array.from_buffers(pa.binary(), len(vectors), [None, pa.py_buffer(offsets), values])


def _write(
    batches: Iterable[pa.RecordBatch], *, folder: Location, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Write a file for each part; its vectors stand together. Runs on an executor."""
    for number, vectors in runs(batches, "part"):
        columns = vectors.select(["row", "vector", "scale"])
        with storage.built_file(folder / f"{names[number]}.parquet") as aside:
            pq.write_table(columns, aside, compression="none", use_dictionary=False)
        yield pa.RecordBatch.from_pydict(
            {"part": pa.array([number], pa.int32()), "rows": pa.array([len(vectors)], pa.int64())}
        )


def runs(batches: Iterable[pa.RecordBatch], column: str) -> Iterator[tuple[int, pa.Table]]:
    """Yield each value of a column with all of its rows; batches are sorted by the column."""
    for number, found in groupby(runs_of(batches, column), key=itemgetter(0)):
        yield number, pa.Table.from_batches([batch for _, batch in found])
