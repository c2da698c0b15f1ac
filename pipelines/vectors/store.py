"""Tables of vectors: the output of an embedding job, or any Parquet folder with a column of lists.

A row's position is the number of rows before it, in the order of the files' names. A table in an
object store is read there for a few rows, or copied to this machine (:func:`on_this_machine`) to
read all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import TypedDict

from pipelines.arrow_columns import concatenated, is_list
from pipelines.errors import InputError
from pipelines.files import records, versions
from pipelines.files.begun import begun_folders
from pipelines.files.copies import local_file
from pipelines.files.locations import Location, arrow_source, location
from pipelines.settings import StorageSettings
from pipelines.settings.spark import DEFAULT_STORES
from pipelines.spark.parquet_parts import data_files, read_footers
from pipelines.vectors.embedding import Columns, EmbeddingOptions, vectors_of
from pipelines.vectors.nearest import unit_length
from pipelines.vectors.parts import PART_ID, in_threads, open_parquet, read_rows
from pipelines.vectors.table_job import MANIFEST_FILE, PLAN_FILE

KEY = "embedding.output"
BLOCK_BYTES = 64 * 2**20
"""Vectors, as float32, in memory at a time."""


@dataclass(frozen=True)
class VectorFile:
    """A file of a table.

    ``first`` is the position of its first row. ``part`` is the content id in its footer; only for
    files in a version of a store, which never change.
    """

    path: Location
    first: int
    rows: int
    part: str | None = None


@dataclass(frozen=True)
class VectorTable:
    """A table of vectors; small, and sent to executors whole.

    In a store, ``folder`` is a version of the table's place, if it has any. ``vector``, ``scale``,
    ``text`` and ``key`` name columns. ``model`` (a folder), ``model_sha256`` (of its files),
    ``prompt_name`` (before the texts; None for the default one, if any) and ``precision`` made the
    vectors, as far as known. ``stores`` say how to reach the model's store.
    """

    folder: Location
    files: tuple[VectorFile, ...]
    vector: str
    scale: str | None
    text: str | None
    model: str | None
    dimensions: int
    model_sha256: str | None = None
    prompt_name: str | None = None
    key: str | None = None
    precision: str | None = None
    stores: StorageSettings = DEFAULT_STORES

    @property
    def rows(self) -> int:
        """Rows of all files, including those without a vector."""
        return sum(file.rows for file in self.files)

    @property
    def block_rows(self) -> int:
        """Rows whose vectors fill a block."""
        return max(1, BLOCK_BYTES // (4 * self.dimensions))

    @property
    def vector_columns(self) -> list[str]:
        """The columns of vectors and, if any, scales."""
        return [self.vector, *([self.scale] if self.scale else [])]

    def vectors(self, rows: pa.Table) -> np.ndarray:
        """Return the vectors of rows, none null: fp32 [rows, dimensions], of length 1."""
        scales = rows.column(self.scale).combine_chunks() if self.scale else None
        return unit_length(vectors_of(rows.column(self.vector), scales))


def table_of_parts(
    folder: Location, rows: Mapping[str, int], options: EmbeddingOptions, columns: Columns
) -> VectorTable:
    """Return a table in the making from the rows of its parts, by name and in their order."""
    firsts = accumulate(rows.values(), initial=0)
    files = (
        VectorFile(folder / f"{name}.parquet", first, count)
        for (name, count), first in zip(rows.items(), firsts, strict=False)
    )
    return VectorTable(
        folder=folder,
        files=tuple(files),
        vector=columns.vector,
        scale=None,
        text=columns.text,
        model=str(options.model),
        dimensions=options.dimensions,
    )


@dataclass(frozen=True)
class Block:
    """The vectors of some rows, skipping rows without one.

    ``vectors`` are fp32 [rows, dimensions], of length 1 (zeros stay zeros); ``positions`` int64
    [rows], ascending.
    """

    vectors: np.ndarray
    positions: np.ndarray


_MadeBy = TypedDict(
    "_MadeBy", {"embedding.model": str | None, "embedding.prompt_name": str | None}, total=False
)


# The known fields of an embedding job's manifest; it has more.
class _Manifest(TypedDict, total=False):
    vector_column: str
    scale_column: str | None
    text_column: str | None
    key_column: str | None
    model: str | None
    model_digest: str | None
    dimensions: int
    precision: str
    settings: _MadeBy


def open_table(
    folder: str | Location,
    vector_column: str | None = None,
    stores: StorageSettings = DEFAULT_STORES,
) -> VectorTable:
    """Open a table of vectors, of an embedding job or any Parquet files; reads footers only.

    ``vector_column`` is needed for tables of other origin than an embedding job.

    Raises:
        InputError: There is no such table or column, or the table is not finished.
        DamagedFileError: The manifest cannot be read.
    """
    home = versions.current(location(folder, stores).absolute())
    _check_finished(home)
    path = home / MANIFEST_FILE
    known: _Manifest = records.read(path, _Manifest) if path.is_file() else {}
    vector = vector_column or known.get("vector_column") or "embedding"
    # The scales and dimensions in the manifest are of this column alone.
    is_recorded = vector == known.get("vector_column")
    files = tuple(_vector_files(home))
    if not any(file.rows for file in files):
        raise InputError(KEY, f"{home} holds no rows", "Name a table of vectors")
    settings = known.get("settings", {})
    return VectorTable(
        folder=home,
        files=files,
        vector=vector,
        scale=known.get("scale_column") if is_recorded else None,
        text=known.get("text_column"),
        model=known.get("model"),
        dimensions=(is_recorded and known.get("dimensions")) or _dimensions(files, vector),
        model_sha256=known.get("model_digest") or settings.get("embedding.model"),
        prompt_name=settings.get("embedding.prompt_name"),
        key=known.get("key_column"),
        precision=known.get("precision"),
        stores=stores,
    )


def _check_finished(home: Location) -> None:
    if (home / MANIFEST_FILE).is_file():
        return
    is_begun = (home / PLAN_FILE).is_file()
    files = is_begun or (home.is_dir() and bool(data_files(home)))
    begun = [] if files else begun_folders(home)
    if is_begun or any((folder / PLAN_FILE).is_file() for folder in begun):
        raise InputError(KEY, f"{home} is not finished", "Run the same `embed` command again")
    if not home.is_dir():
        raise InputError(KEY, f"there is no folder {home}", "Run `sentence-pipelines embed` first")


def _vector_files(home: Location) -> Iterator[VectorFile]:
    paths = data_files(home)
    footers = read_footers(paths)
    # Elsewhere another program may have rewritten a file and kept the id in its footer.
    is_ours = versions.home(home) != home
    firsts = accumulate((footer.num_rows for footer in footers), initial=0)
    for path, footer, first in zip(paths, footers, firsts, strict=False):
        part = (footer.metadata or {}).get(PART_ID) if is_ours else None
        yield VectorFile(path, first, footer.num_rows, part and part.decode())


def on_this_machine(table: VectorTable) -> VectorTable:
    """Return the table with local files; copies from a store are checked and cached.

    Raises:
        OSError: The store cannot be read, or a copy differs from the original.
    """

    def copied(file: VectorFile) -> VectorFile:
        return replace(file, path=local_file(file.path, _check_pages))

    return replace(table, files=tuple(in_threads(copied, table.files)))


def _check_pages(path: Path) -> None:
    """Read a file to verify the checksums of its pages; an OSError reports a mismatch."""
    with open_parquet(path) as file:
        for _ in file.iter_batches(use_threads=False):
            pass


def _dimensions(files: Sequence[VectorFile], vector: str) -> int:
    """Return the length of the first vector; refuse a table without vectors in lists."""
    schema = pq.read_schema(arrow_source(files[0].path))
    if vector not in schema.names:
        problem = f"{files[0].path} has no column `{vector}`"
        raise InputError(KEY, problem, f"Name one of its columns: {', '.join(schema.names)}")
    kind = schema.field(vector).type
    if not is_list(kind):
        raise InputError(KEY, f"`{vector}` holds {kind}", "Name a column of vectors")
    for file in files:
        for batch in read_rows(file.path, 0, file.rows, [vector]):
            column = batch.column(vector).drop_null()
            if len(column):
                return len(column[0])
    raise InputError(KEY, f"`{vector}` holds no vector", "Name another table")


def read_blocks(table: VectorTable, files: Sequence[VectorFile]) -> Iterator[Block]:
    """Read the vectors of some files, block by block; rows without a vector are left out."""
    for file in files:
        for start in range(0, file.rows, table.block_rows):
            stop = min(start + table.block_rows, file.rows)
            batches = list(read_rows(file.path, start, stop, table.vector_columns))
            rows = pa.Table.from_batches(batches).combine_chunks()
            present = rows.column(table.vector).is_valid().to_numpy()
            kept = rows.filter(pa.array(present))
            if kept.num_rows:
                yield Block(table.vectors(kept), file.first + start + np.flatnonzero(present))


def rows_at(
    table: VectorTable, positions: Sequence[int] | np.ndarray, columns: Sequence[str]
) -> pa.Table:
    """Return the rows at some positions, in the order given; a position may repeat."""
    wanted = np.asarray(positions, np.int64)
    # Each file is read once, whatever the order of the positions.
    different, numbers = np.unique(wanted, return_inverse=True)
    found = []
    for file in table.files:
        low, high = np.searchsorted(different, [file.first, file.first + file.rows])
        if low == high:
            continue
        inside = different[low:high] - file.first
        start = int(inside[0])
        batches = list(read_rows(file.path, start, int(inside[-1]) + 1, columns))
        found.append(pa.Table.from_batches(batches).take(pa.array(inside - start)))
    if not found:
        return pq.read_schema(arrow_source(table.files[0].path)).empty_table().select(list(columns))
    return concatenated(found).take(pa.array(numbers))


def vectors_at(table: VectorTable, positions: np.ndarray) -> np.ndarray:
    """Return the vectors at some positions: fp32 [positions, dimensions], of length 1."""
    if not len(positions):
        return np.empty((0, table.dimensions), np.float32)
    return table.vectors(rows_at(table, positions, table.vector_columns))
