"""Ranges of rows of Parquet files: what is embedded at a time, and skipped when a job resumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.embedding.partitions import Constants, with_constants
from pipelines.embedding.schemas import common_schema, in_common_types, open_parquet
from pipelines.models.inference.embedder import TEXTS_AT_ONCE

BATCH_ROWS = TEXTS_AT_ONCE


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows of a file.

    Attributes:
        name: Of the file that is made of it, without its ending.
        path: The file.
        start: The first row, counted from the file's.
        stop: Behind the last one.
        constants: Columns that the file has in the names of its folders.
    """

    name: str
    path: str
    start: int
    stop: int
    constants: Constants = ()

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.stop - self.start


def cut_files(
    files: Sequence[Path], part_rows: int, constants: Mapping[Path, Constants] | None = None
) -> list[RowRange]:
    """All rows of Parquet files in parts of at most so many; the same for the same files.

    Only footers are read.

    Args:
        files: In order.
        part_rows: Of a part.
        constants: Columns in the names of a file's folders, where there are some.
    """
    known = constants or {}
    return [
        RowRange(
            f"part-{number:05d}-{place:05d}",
            str(file),
            start,
            min(start + part_rows, rows),
            known.get(file, ()),
        )
        for number, file in enumerate(files)
        for rows in [pq.read_metadata(file).num_rows]
        for place, start in enumerate(range(0, rows, part_rows))
    ]


def tasks(parts: Sequence[RowRange], task_rows: int) -> list[list[RowRange]]:
    """Parts that stand together, small ones in one task, up to so many rows each."""
    found: list[list[RowRange]] = []
    rows = 0
    for part in parts:
        if not found or rows + part.rows > task_rows:
            found.append([])
            rows = 0
        found[-1].append(part)
        rows += part.rows
    return found


def read_part(part: RowRange) -> Iterator[pa.RecordBatch]:
    """The rows of a part with all columns. Runs on an executor."""
    for batch in read_rows(part.path, part.start, part.stop):
        yield with_constants(batch, part.constants)


def read_rows(
    path: str | Path, start: int, stop: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """A range of a file's rows, in batches; row groups outside of it are not read.

    Types and metadata are those of :func:`~pipelines.embedding.schemas.common_schema`.

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
        for batch in file.iter_batches(
            batch_size=BATCH_ROWS,
            row_groups=wanted,
            columns=None if columns is None else list(columns),
            use_threads=False,
        ):
            low, high = max(start - place, 0), min(stop - place, batch.num_rows)
            place += batch.num_rows
            if low < high:
                rows_inside = batch.select(schema.names) if columns is not None else batch
                yield in_common_types(rows_inside.slice(low, high - low), schema, path)
            if place >= stop:
                return
