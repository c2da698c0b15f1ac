"""Ranges of rows of Parquet files: what is embedded at a time, and skipped when a job resumes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.embedding.partitions import (
    Constants,
    InputFile,
    common_schema,
    in_common_types,
    open_parquet,
    with_constants,
)
from pipelines.files.locations import Location
from pipelines.models.inference.embedder import TEXTS_AT_ONCE

BATCH_ROWS = TEXTS_AT_ONCE
LEAST_BYTES = 8 * 2**20
"""Of a part of a table that is shared among the slots of a cluster: thousands of rows, so that
texts of equal length meet, and a task is worth its start."""
PARTS_OF_SLOT = 4
"""Into which such a table is cut at least, so that slots end at about the same time."""
TASK_ROWS = 16384
"""Of a task that makes many small parts."""
ROWS_COPIED_FOR_ONE = 20
"""Rows whose vectors are copied in the time that embedding one takes."""


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows of a file, of which a file of the output is made.

    Attributes:
        name: Of the file that is made of it, without its ending.
        path: The file.
        start: The first row, counted from the file's.
        stop: Behind the last one.
        constants: Columns that the file has in the names of its folders.
        reused: Rows whose vectors an earlier table has.
        copied_from: A file of an earlier table that is this part; None where there is none.
    """

    name: str
    path: Location
    start: int
    stop: int
    constants: Constants = ()
    reused: int = 0
    copied_from: Location | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.stop - self.start

    @property
    def embedded(self) -> int:
        """Rows that are to be embedded."""
        return self.rows - self.reused


@dataclass(frozen=True)
class PartSize:
    """How much a part holds.

    Attributes:
        size: Bytes of its file, about.
        rows: At most; None for any number.
        vector_bytes: Of a row's vector, as it is stored.
    """

    size: int
    rows: int | None
    vector_bytes: int

    def rows_of(self, file: InputFile) -> int:
        """Rows of a part of a file."""
        a_row = file.size / max(file.rows, 1) + self.vector_bytes
        wanted = max(1, int(self.size / a_row))
        return wanted if self.rows is None else min(wanted, self.rows)

    def shared(self, files: Sequence[InputFile], slots: int) -> PartSize:
        """The size that gives all slots of a cluster some parts, where the files are few rows.

        Args:
            files: All that are to be embedded.
            slots: Tasks that run at once.
        """
        total = sum(file.size + file.rows * self.vector_bytes for file in files)
        size = max(LEAST_BYTES, total // (PARTS_OF_SLOT * max(slots, 1)))
        return replace(self, size=min(self.size, size))


def cut_file(file: InputFile, size: PartSize, name: str, constants: Constants) -> list[RowRange]:
    """All rows of a file in parts.

    Args:
        file: Its footer.
        size: Of a part.
        name: What the names of its parts begin with.
        constants: Columns in the names of its folders.
    """
    rows = size.rows_of(file)
    starts = range(0, file.rows, rows)
    return [
        RowRange(f"{name}-{place:05d}", file.path, start, min(start + rows, file.rows), constants)
        for place, start in enumerate(starts)
    ]


def tasks(parts: Sequence[RowRange], slots: int) -> list[list[RowRange]]:
    """Parts that stand together, small ones in one task; of about the work of the largest part.

    Args:
        parts: That are to be made.
        slots: Tasks that run at once; small parts are shared among them.
    """
    work = [_work(part) for part in parts]
    shared = sum(work) / (PARTS_OF_SLOT * max(slots, 1))
    most = max(*work, min(shared, TASK_ROWS)) if work else 0
    found: list[list[RowRange]] = []
    filled = 0.0
    for part, more in zip(parts, work, strict=True):
        if not found or filled + more > most:
            found.append([])
            filled = 0
        found[-1].append(part)
        filled += more
    return found


def _work(part: RowRange) -> float:
    """What a part takes, in rows that are embedded; one that is copied is hardly any."""
    return part.embedded + part.reused / ROWS_COPIED_FOR_ONE


def read_part(part: RowRange) -> Iterator[pa.RecordBatch]:
    """The rows of a part with all columns. Runs on an executor."""
    for batch in read_rows(part.path, part.start, part.stop):
        yield with_constants(batch, part.constants)


def _batches(
    file: pq.ParquetFile, path: Location, row_groups: list[int], columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """Read row groups; of damage pyarrow says what it is, and not where.

    Raises:
        OSError: Names the file.
    """
    names = None if columns is None else list(columns)
    try:
        yield from file.iter_batches(BATCH_ROWS, row_groups, names, use_threads=False)
    except (pa.ArrowInvalid, OSError) as error:
        # The system's own errors have a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise OSError(f"{path} is damaged ({str(error).splitlines()[0]})") from error


def read_rows(
    path: Location, start: int, stop: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """A range of a file's rows, in batches; row groups outside of it are not read.

    Types and metadata are those of :func:`~pipelines.embedding.partitions.common_schema`.

    Args:
        path: A Parquet file.
        start: The first row.
        stop: Behind the last one.
        columns: None for all.
    """
    with open_parquet(path) as file:
        schema = common_schema(file)
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns], schema.metadata)
        wanted: list[int] = []
        first = begins = 0
        for number in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            if first < stop and first + rows > start:
                begins = first if not wanted else begins
                wanted.append(number)
            first += rows
        place = begins
        for batch in _batches(file, path, wanted, columns):
            low, high = max(start - place, 0), min(stop - place, batch.num_rows)
            place += batch.num_rows
            if low < high:
                rows_inside = batch.select(schema.names) if columns is not None else batch
                yield in_common_types(rows_inside.slice(low, high - low), schema, path)
            if place >= stop:
                return
