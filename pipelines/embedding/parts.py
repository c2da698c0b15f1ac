"""Ranges of rows of Parquet files: the unit of work, and of starting again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.encoder.inference import TEXTS_AT_ONCE

BATCH_ROWS = TEXTS_AT_ONCE


@dataclass(frozen=True)
class Part:
    """Some rows of a file that stand together.

    Attributes:
        name: Of what is made of it.
        path: The file.
        start: The first row, counted from the file's.
        stop: Behind the last one.
    """

    name: str
    path: str
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many they are."""
        return self.stop - self.start


def cut_files(files: Sequence[Path], part_rows: int) -> list[Part]:
    """All rows of Parquet files in parts of at most so many; the same for the same files.

    Only footers are read.
    """
    return [
        Part(f"part-{number:05d}-{place:05d}", str(file), start, min(start + part_rows, rows))
        for number, file in enumerate(files)
        for rows in [pq.read_metadata(file).num_rows]
        for place, start in enumerate(range(0, rows, part_rows))
    ]


def tasks(parts: Sequence[Part], task_rows: int) -> list[list[Part]]:
    """Parts that stand together, small ones in one task, up to so many rows each."""
    found: list[list[Part]] = []
    rows = 0
    for part in parts:
        if not found or rows + part.rows > task_rows:
            found.append([])
            rows = 0
        found[-1].append(part)
        rows += part.rows
    return found


def read_rows(
    path: str | Path, start: int, stop: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """A range of a file's rows, in batches; row groups outside of it are not read.

    Args:
        path: A Parquet file.
        start: The first row.
        stop: Behind the last one.
        columns: None for all.
    """
    with pq.ParquetFile(path) as file:
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
                yield batch.slice(low, high - low)
            if place >= stop:
                return
