"""Vectors of an earlier table on their way to the rows that keep them.

Each file of the earlier table is read once, and Spark brings its vectors to the parts that want
them: rows may stand in another order than before, and every part would otherwise have to look into
every file. A part then finds its vectors in one small file, in its own order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.embedding.keys import UNCHANGED
from pipelines.embedding.parts import RowRange, read_rows
from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.spark.frames import batches_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipelines.embedding.store import VectorTable

PLACES_DDL = "file int, old long, part int, row long"
VECTORS_DDL = "part int, row long, vector binary, scale float"
COUNTS_DDL = "part int, rows long"
ROWS_OF_TASK = 200_000
"""Rows that a task sorts and hands on."""
BATCH_BYTES = 8 * 2**20
"""Vectors that pass between Spark and Python at a time."""

_PLACES = pa.schema(
    [("file", pa.int32()), ("old", pa.int64()), ("part", pa.int32()), ("row", pa.int64())]
)
_VECTORS = pa.schema(
    [
        ("part", pa.int32()),
        ("row", pa.int64()),
        ("vector", pa.binary()),
        ("scale", pa.float32()),
    ]
)


def bring_vectors(
    matches: DataFrame, before: VectorTable, parts: Sequence[RowRange], folder: Location
) -> dict[str, int]:
    """Writes the vectors that rows keep: a file for each part that has any.

    Args:
        matches: Of :data:`~pipelines.embedding.keys.MATCHES`.
        before: Has the vectors.
        parts: Of the new table, all of them, in order.
        folder: Of the files; is made.

    Returns:
        The rows that keep their vectors, by the name of their part.
    """
    folder.mkdir()
    firsts = list(accumulate((part.rows for part in parts), initial=0))
    locate = partial(_locate, old=[file.first for file in before.files], new=firsts[:-1])
    fetch = partial(_fetch, table=before)
    write = partial(_write, folder=folder, names=[part.name for part in parts])
    tasks = max(1, min(len(before.files), -(-firsts[-1] // ROWS_OF_TASK)))
    with batches_of(matches.sparkSession, max(64, BATCH_BYTES // (4 * before.dimensions))):
        places = matches.where(f"kind = '{UNCHANGED}' and first is not null")
        found = (
            places.mapInArrow(locate, PLACES_DDL)
            .repartition(tasks, "file")
            .sortWithinPartitions("file", "old")
            .mapInArrow(fetch, VECTORS_DDL)
            .repartition(max(1, min(len(parts), -(-firsts[-1] // ROWS_OF_TASK))), "part")
            .sortWithinPartitions("part", "row")
            .mapInArrow(write, COUNTS_DDL)
            .collect()
        )
    return {parts[row["part"]].name: row["rows"] for row in found}


def _locate(
    batches: Iterable[pa.RecordBatch], *, old: Sequence[int], new: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    """Positions as files and parts, and rows in them. Runs on an executor."""
    for batch in batches:
        files, rows = _place(batch["first"], old)
        parts, wanted = _place(batch["second"], new)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(values, field.type)
                for values, field in zip((files, rows, parts, wanted), _PLACES, strict=True)
            ],
            schema=_PLACES,
        )


def _place(positions: pa.Array, firsts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    places = positions.to_numpy()
    begins = np.asarray(firsts, np.int64)
    # Behind those that begin there, of which all but the last are empty.
    numbers = np.searchsorted(begins, places, side="right") - 1
    return numbers, places - begins[numbers]


def _fetch(batches: Iterable[pa.RecordBatch], *, table: VectorTable) -> Iterator[pa.RecordBatch]:
    """The vectors of places, which are sorted by file and row. Runs on an executor."""
    for number, places in runs(batches, "file"):
        old = places["old"].to_numpy()
        names = [table.vector, *([table.scale] if table.scale else [])]
        first = int(old[0])
        for batch in read_rows(table.files[number].path, first, int(old[-1]) + 1, names):
            low, high = np.searchsorted(old, [first, first + batch.num_rows])
            some = places.slice(low, high - low)
            taken = batch.take(pa.array(old[low:high] - first))
            first += batch.num_rows
            yield from _with_vectors(some, taken, table).to_batches()


def _with_vectors(places: pa.Table, rows: pa.RecordBatch, table: VectorTable) -> pa.Table:
    """Where vectors are wanted, and what they are; null of rows without a text."""
    column = rows.column(table.vector)
    there = column.is_valid().to_numpy(zero_copy_only=False)
    vectors = as_bytes(column.drop_null()).take(pa.array(np.cumsum(there) - 1, mask=~there))
    scales = rows.column(table.scale) if table.scale else pa.nulls(len(rows), pa.float32())
    columns = [places["part"], places["row"], vectors, scales]
    return pa.Table.from_arrays(columns, schema=_VECTORS).combine_chunks()


def as_bytes(vectors: pa.ListArray) -> pa.BinaryArray:
    """Each vector of a column as its bytes.

    Args:
        vectors: Lists of one size, none of them null.
    """
    flat = vectors.flatten().to_numpy(zero_copy_only=False)
    size = flat.nbytes // max(len(vectors), 1)
    offsets = np.arange(len(vectors) + 1, dtype=np.int32) * size
    values = pa.py_buffer(np.ascontiguousarray(flat))
    return pa.Array.from_buffers(pa.binary(), len(vectors), [None, pa.py_buffer(offsets), values])


def _write(
    batches: Iterable[pa.RecordBatch], *, folder: Location, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Writes a file for each part, whose vectors stand together. Runs on an executor."""
    for number, vectors in runs(batches, "part"):
        columns = vectors.select(["row", "vector", "scale"])
        with storage.built_file(folder / f"{names[number]}.parquet") as aside:
            pq.write_table(columns, aside, compression="none", use_dictionary=False)
        yield pa.RecordBatch.from_pydict(
            {"part": pa.array([number], pa.int32()), "rows": pa.array([len(vectors)], pa.int64())}
        )


def runs(batches: Iterable[pa.RecordBatch], column: str) -> Iterator[tuple[int, pa.Table]]:
    """Rows that stand together and have one value in a column, each time all of them.

    Args:
        batches: Sorted by the column.
        column: Of whole numbers.
    """
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        values = batch.column(column).to_numpy()
        ends = np.flatnonzero(np.diff(values)) + 1
        for start, stop in zip([0, *ends], [*ends, len(values)], strict=True):
            if start == stop:
                continue
            if waiting and waiting[0].column(column)[0].as_py() != values[start]:
                yield _run(waiting, column)
                waiting = []
            waiting.append(batch.slice(start, stop - start))
    if waiting:
        yield _run(waiting, column)


def _run(batches: Sequence[pa.RecordBatch], column: str) -> tuple[int, pa.Table]:
    return batches[0].column(column)[0].as_py(), pa.Table.from_batches(batches)
