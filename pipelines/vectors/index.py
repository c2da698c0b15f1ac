"""Approximate nearest neighbours: a graph index beside each file of a table, by usearch.

One process builds or searches one index at a time, so memory holds at most one. Indexes of a table
in an object store lie beside the table's versions, in separate versions; a search copies them to
its machine. An index knows rows by their place in the file, so it stays valid when other files of
the table change. Source of the graph: Malkov and
Yashunin, "Efficient and robust approximate nearest neighbor search using Hierarchical Navigable
Small World graphs", 2018, arXiv:1603.09320.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from typing_extensions import TypedDict

from pipelines.errors import InputError
from pipelines.files import records, storage
from pipelines.files.copies import local_file
from pipelines.files.locations import Location
from pipelines.files.ownership import INDEX, check_ours
from pipelines.files.versions import current, home
from pipelines.libraries import check_installed
from pipelines.spark.errors import executor_failures
from pipelines.spark.tasks import collect_from_tasks
from pipelines.vectors.exact import best_of_files, check_queries
from pipelines.vectors.nearest import SCORE_DECIMALS, Neighbours
from pipelines.vectors.store import KEY, VectorFile, VectorTable, read_blocks
from pipelines.vectors.table_job import INDEX_FOLDER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

INDEX_FILE = "index.json"
Stamp: TypeAlias = int | str | None
"""Changes with the content of a file."""
FORM = 2
"""Version of the files: version 1 knew rows by their position in the table."""
CONNECTIVITY = 16
"""Neighbours of a vector in the graph."""
EXPANSION_ADD = 128
"""Candidates examined when a vector is added."""
EXPANSION_SEARCH = 128
"""Candidates examined for a query; more give a higher recall."""


class _Known(TypedDict, total=False):
    """The content of an index's file; see :class:`_Index`."""

    form: int
    vector_column: str
    files: dict[str, Stamp]
    digests: dict[str, str | None]


@dataclass(frozen=True)
class _Index:
    """The existing indexes of a table's files.

    By file name: ``stamps`` of the indexed files, and ``digests`` (SHA-256 of the indexes, if
    known).
    """

    folder: Location
    stamps: Mapping[str, Stamp]
    digests: Mapping[str, str | None]

    @classmethod
    def find(cls, table: VectorTable) -> _Index:
        """Return the indexes of a table."""
        folder = current(index_folder(table))
        path = folder / INDEX_FILE
        known: _Known = records.read(path, _Known) if path.is_file() else {}
        if known.get("form") != FORM or known.get("vector_column") != table.vector:
            return cls(folder, {}, {})
        return cls(folder, known.get("files", {}), known.get("digests", {}))

    def has(self, file: VectorFile) -> bool:
        return self.stamps.get(file.path.name, "none") == _stamp(file)

    def is_whole(self, table: VectorTable) -> bool:
        return all(map(self.has, table.files))


def build_index(session: SparkSession, table: VectorTable) -> Location:
    """Index each file of a table that has no index, one file a task; remove outdated indexes.

    Return the folder, `_index` in the table's place.

    Raises:
        InputError: usearch is not installed, or the user has files in the index's place.
        PipelineError: An executor could not build an index; the old indexes stay.
    """
    check_installed("--index", "usearch")
    target = index_folder(table)
    # The folder is replaced as a whole, so foreign files in it would be lost.
    check_ours(KEY, target, INDEX, whole=True)
    earlier = _Index.find(table)
    missing, digests = [], {}
    with storage.new_folder(target) as folder:
        for file in table.files:
            if earlier.has(file):
                # Without links, the index is built again.
                with suppress(OSError):
                    storage.link(_path(earlier.folder, file), _path(folder, file))
                    digests[file.path.name] = earlier.digests.get(file.path.name)
                    continue
            missing.append(file)
        if missing:
            work = partial(_build_task, table=table, folder=folder)
            with executor_failures("building the index"):
                digests |= dict(collect_from_tasks(session, missing, work))
        # The indexes are of the table's files in their present state.
        stamps = {file.path.name: _stamp(file) for file in table.files}
        known = _Known(form=FORM, vector_column=table.vector, files=stamps, digests=digests)
        storage.write_json(folder / INDEX_FILE, known)
    logger.info("index: %d of %d files built", len(missing), len(table.files))
    return target


def index_folder(table: VectorTable) -> Location:
    """Return the place of a table's index: in its folder; a store has versions of it."""
    return home(table.folder) / INDEX_FOLDER


def has_index(table: VectorTable) -> bool:
    """Return whether all current files of the table are indexed."""
    return _Index.find(table).is_whole(table)


def _stamp(file: VectorFile) -> Stamp:
    """Return the write time of a file; None if it is gone: its reader reports that.

    In a store, return the content id of the footer: copies of unchanged parts share it.
    """
    if file.part is not None:
        return file.part
    with suppress(FileNotFoundError):
        return file.path.stat().st_mtime_ns
    return None


def _path(folder: Location, file: VectorFile) -> Location:
    return folder / f"{file.path.stem}.usearch"


def _open(dimensions: int) -> Any:
    from usearch.index import Index

    return Index(
        ndim=dimensions,
        metric="cos",
        dtype="f16",
        connectivity=CONNECTIVITY,
        expansion_add=EXPANSION_ADD,
    )


def _build_task(
    files: Iterable[VectorFile], *, table: VectorTable, folder: Location
) -> Iterator[tuple[str, str]]:
    """Yield the names of files and the digests of their indexes. Runs on an executor."""
    for file in files:
        index = _open(table.dimensions)
        for block in read_blocks(table, [file]):
            # Keys of usearch are uint64; places in the file stay valid when other files change.
            rows = (block.positions - file.first).astype(np.uint64)
            index.add(rows, block.vectors, threads=1)
        with storage.built_file(_path(folder, file)) as made:
            index.save(str(made))
            digest = _sha256(made)
        yield file.path.name, digest


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def search_index(
    table: VectorTable,
    queries: np.ndarray,
    k: int,
    session: SparkSession | None = None,
    *,
    expansion: int = EXPANSION_SEARCH,
) -> Neighbours:
    """Find about the k rows of highest cosine for each query, [queries, dimensions].

    A query may find fewer, as among many equal vectors. ``expansion`` is the number of candidates
    examined in each file. Without a session, this process searches.

    Raises:
        InputError: There is no index of this table, or the queries do not fit.
        PipelineError: An executor could not search.
    """
    check_installed("--index", "usearch")
    indexes = _Index.find(table)
    if not indexes.is_whole(table):
        raise InputError(KEY, f"{table.folder} has no index of its rows", "Build one first")
    search = partial(_search_file, indexes=indexes, table=table, k=k, expansion=max(expansion, k))
    return best_of_files(table, check_queries(table, queries), k, search, session)


def _search_file(
    queries: np.ndarray,
    file: VectorFile,
    *,
    indexes: _Index,
    table: VectorTable,
    k: int,
    expansion: int,
) -> Neighbours:
    """Find the best rows of a file; its index is mapped, not read. Runs on an executor."""
    check = partial(_check_digest, digest=indexes.digests.get(file.path.name))
    index = _open(table.dimensions)
    index.view(str(local_file(_path(indexes.folder, file), check)))
    if not len(index) or not len(queries):
        return Neighbours.none()
    index.expansion_search = expansion
    found = index.search(queries, min(k, len(index)), threads=1)
    keys, distances = np.atleast_2d(found.keys), np.atleast_2d(found.distances)
    # usearch pads the rows of several queries that found fewer; it does not pad a single one.
    counts = found.counts if len(queries) > 1 else np.array([len(found)])
    is_found = np.arange(keys.shape[1]) < counts[:, None]
    rows = np.repeat(np.arange(len(queries)), counts)
    scores = np.round(1.0 - distances[is_found].astype(float), SCORE_DECIMALS)
    return Neighbours(rows, keys[is_found].astype(np.int64) + file.first, scores)


def _check_digest(copy: Path, *, digest: str | None) -> None:
    """Check a copy of an index; an OSError reports a mismatch."""
    if digest is not None and _sha256(copy) != digest:
        raise OSError(f"the copy of {copy.name} differs from the original. Build the index again.")
