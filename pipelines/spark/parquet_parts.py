"""Parts of a Parquet folder, read by the tasks themselves.

The way of rows through Spark's JVM to Python and back costs more than the work on them here. So
Spark only assigns parts to tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.files.locations import Location, arrow_source, as_local, listed
from pipelines.spark.tasks import collect_from_tasks, frame_from_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

T = TypeVar("T")
SomePart = TypeVar("SomePart", bound="Part")

PART_BYTES = 32 * 2**20
"""Unpacked bytes of one part, which one task reads; a row group is never split."""
BATCH_BYTES = 8 * 2**20
"""Unpacked bytes in memory at a time, if all rows had one size."""
MAX_ROWS = 2**16
_READERS = 16


@dataclass(frozen=True)
class Part:
    """Row groups of one file.

    ``name`` is for outputs made of the part: the same files under other paths have the same
    name. ``row_groups`` are indices, in order; ``size`` is in unpacked bytes.
    """

    name: str
    path: Location
    row_groups: tuple[int, ...]
    rows: int
    size: int


def data_files(folder: Location) -> list[Location]:
    """Return the Parquet files of a folder by name, or the file itself; no hidden ones."""
    if folder.suffix == ".parquet" and folder.is_file():
        return [folder]
    # Spark's readers skip the same names.
    return [path for path in listed(folder, "*.parquet") if path.name[0] not in "._"]


def read_footers(files: Sequence[Location]) -> list[pq.FileMetaData]:
    """Return the footers of files, read by many threads: a store answers slowly."""
    if not files:
        return []
    with ThreadPoolExecutor(min(_READERS, len(files))) as threads:
        return list(threads.map(lambda file: pq.read_metadata(arrow_source(file)), files))


def read_table(folder: Location, columns: Sequence[str] | None = None) -> pa.Table:
    """Return all rows of a file or a folder of them, in this process."""
    wanted = list(columns) if columns is not None else None
    local = as_local(folder)
    if local is not None:
        return pq.read_table(local, columns=wanted)
    tables = [pq.read_table(arrow_source(file), columns=wanted) for file in data_files(folder)]
    return pa.concat_tables(tables)


def find_parts(folder: Location) -> list[Part]:
    """Return the non-empty parts of a folder of Parquet files, by file name."""
    return parts_of_files(data_files(folder))


def parts_of_files(files: Sequence[Location]) -> list[Part]:
    """Return the non-empty parts of Parquet files, in their order."""
    footers = enumerate(zip(files, read_footers(files), strict=True))
    return [
        part for number, (path, footer) in footers for part in parts_of_file(path, number, footer)
    ]


def find_files(folder: Location) -> list[Part]:
    """Return the non-empty files of a folder, each as one part of any size."""
    files, paths = [], data_files(folder)
    for path, metadata in zip(paths, read_footers(paths), strict=True):
        groups = range(metadata.num_row_groups)
        size = sum(metadata.row_group(index).total_byte_size for index in groups)
        if metadata.num_rows:
            files.append(Part(path.stem, path, tuple(groups), metadata.num_rows, size))
    return files


def parts_of_file(path: Location, number: int, metadata: pq.FileMetaData) -> Iterator[Part]:
    """Yield the non-empty parts of a file, the ``number``-th of a table."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    runs = _runs([group.total_byte_size for group in groups])
    for place, run in enumerate(runs):
        rows = sum(groups[index].num_rows for index in run)
        size = sum(groups[index].total_byte_size for index in run)
        if rows:
            yield Part(f"part-{number:05d}-{place:05d}", path, tuple(run), rows, size)


def _runs(sizes: Sequence[int]) -> list[range]:
    """Cut a sequence into runs; all but the last reach :data:`PART_BYTES`."""
    runs, first, size = [], 0, 0
    for index, item in enumerate(sizes):
        size += item
        if size >= PART_BYTES or index == len(sizes) - 1:
            runs.append(range(first, index + 1))
            first, size = index + 1, 0
    return runs


def read_part(part: Part, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read columns of a part, in batches; skip absent ones. Runs on an executor."""
    average = max(part.size // part.rows, 1)
    # For a store, `pre_buffer` fetches the columns of the whole part in few requests.
    stored = as_local(part.path) is None
    with pq.ParquetFile(arrow_source(part.path), pre_buffer=stored) as file:
        yield from file.iter_batches(
            batch_size=min(max(BATCH_BYTES // average, 1), MAX_ROWS),
            row_groups=part.row_groups,
            columns=[name for name in columns if name in file.schema_arrow.names],
            use_threads=False,
        )


def read_whole(part: Part, schema: pa.Schema) -> pa.RecordBatch:
    """Read the columns of a schema of a part as one batch. Runs on an executor."""
    rows = pa.Table.from_batches(read_part(part, schema.names), schema).combine_chunks()
    (batch,) = rows.to_batches() or [pa.RecordBatch.from_pylist([], schema)]
    return batch


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join batches of one schema to row groups of a good size. Runs on an executor.

    They have at least :data:`BATCH_BYTES` or :data:`MAX_ROWS`, except the last; empty batches are
    left out. A row group costs a reader one request to a store for each run of its columns, and
    some functions give a batch for every few texts.
    """
    pending: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        pending.append(batch)
        size, rows = size + batch.nbytes, rows + batch.num_rows
        if size >= BATCH_BYTES or rows >= MAX_ROWS:
            yield pa.concat_batches(pending)
            pending, size, rows = [], 0, 0
    if pending:
        yield pa.concat_batches(pending)


def collect_from_parts(
    session: SparkSession, parts: Sequence[Part], work: Callable[[Iterator[Part]], Iterator[T]]
) -> list[T]:
    """Run tasks on parts, small ones together, and collect their results.

    All executors see the files under the same path. ``work`` runs on an executor, gets the parts of
    a task and yields little.
    """
    return collect_from_tasks(session, _tasks(parts), partial(_work_on_tasks, work=work))


def frame_from_parts(
    session: SparkSession,
    parts: Sequence[SomePart],
    work: Callable[[Iterator[SomePart]], Iterator[pa.RecordBatch]],
    schema: str | StructType,
) -> DataFrame:
    """Run tasks on parts, small ones together, and make a frame of their rows.

    All executors see the files under the same path. ``work`` runs on an executor and gets the parts
    of a task.
    """
    return frame_from_tasks(session, _tasks(parts), partial(_work_on_tasks, work=work), schema)


def _tasks(parts: Sequence[SomePart]) -> list[list[SomePart]]:
    runs = _runs([part.size for part in parts])
    return [[parts[index] for index in run] for run in runs]


def _work_on_tasks(
    tasks: Iterable[Sequence[SomePart]], *, work: Callable[[Iterator[SomePart]], Iterator[T]]
) -> Iterator[T]:
    """Do tasks one after the other. Runs on an executor."""
    # One task has one core; Arrow would start a thread for every core of the machine.
    pa.set_cpu_count(1)
    return work(part for parts in tasks for part in parts)
