"""Approximate nearest neighbours: a graph index beside each file of a table, by usearch.

An index is built where its file is read and searched where it lies, so that no process holds more
than one of them. It knows rows by their place in the file, so that it stays when other files of the
table change. Source of the graph: Malkov and Yashunin, "Efficient and robust approximate
nearest neighbor search using Hierarchical Navigable Small World graphs", 2018, arXiv:1603.09320.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.embedding.plan import INDEX_FOLDER
from pipelines.embedding.store import VectorFile, VectorTable, read_blocks
from pipelines.errors import InputError
from pipelines.evaluation.nearest import SCORE_DECIMALS, Neighbours
from pipelines.files import storage
from pipelines.search.exact import best_of_files, check_queries
from pipelines.spark.errors import executor_failures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

INDEX_FILE = "index.json"
FORM = 2
"""Of the files: 1 knew rows by their position in the table."""
CONNECTIVITY = 16
"""Neighbours of a vector in the graph."""
EXPANSION_ADD = 128
"""Candidates that are looked at when a vector is added."""
EXPANSION_SEARCH = 128
"""Candidates that are looked at for a query; more find more of the true neighbours."""


def build_index(session: SparkSession, table: VectorTable) -> Path:
    """Builds the index of each file of a table that has none; what is there of others goes.

    Args:
        session: Its executors build, one file a task.
        table: What is to be searched.

    Returns:
        The folder, `_index` in the table's.

    Raises:
        InputError: usearch is not installed.
        PipelineError: An executor could not build an index; what was there stays.
    """
    _check_installed()
    context = session.sparkContext
    target = Path(table.folder) / INDEX_FOLDER
    with storage.built_folder(target) as folder:
        files = _without_index(table, folder)
        work = partial(_build_task, table=table, folder=str(folder))
        if files:
            with executor_failures("building the index"):
                context.parallelize(files, len(files)).foreachPartition(work)
        storage.write_json(folder / INDEX_FILE, _identity(table))
    logger.info("index: %d of %d files built", len(files), len(table.files))
    return target


def _without_index(table: VectorTable, folder: Path) -> list[VectorFile]:
    """The files whose index is to be built; links those that are there into a folder."""
    there = Path(table.folder) / INDEX_FOLDER
    known = _known(table)
    missing = []
    for file in table.files:
        if known.get(Path(file.path).name, "none") == _stamp(file):
            # Where links cannot be, it is built again.
            with suppress(OSError):
                _path(folder, file).hardlink_to(_path(there, file))
                continue
        missing.append(file)
    return missing


def has_index(table: VectorTable) -> bool:
    """Whether there is an index of the table as it is now."""
    known = _known(table)
    return all(known.get(Path(file.path).name, "none") == _stamp(file) for file in table.files)


def _known(table: VectorTable) -> dict[str, int | None]:
    """The files whose index is there, with their times of change when it was built."""
    path = Path(table.folder) / INDEX_FOLDER / INDEX_FILE
    if not path.is_file():
        return {}
    known = storage.read_json(path)
    is_same = {**_identity(table), "files": known["files"]} == known
    return dict(known["files"]) if is_same else {}


def _stamp(file: VectorFile) -> int | None:
    """When a file was written; None of one that is gone, which its reader reports."""
    with suppress(FileNotFoundError):
        return Path(file.path).stat().st_mtime_ns
    return None


def search_index(
    table: VectorTable,
    queries: np.ndarray,
    k: int,
    session: SparkSession | None = None,
    *,
    expansion: int = EXPANSION_SEARCH,
) -> Neighbours:
    """About the k rows of highest cosine for each query.

    They are fewer where the graph leads to fewer, as it does among many equal vectors.

    Args:
        table: Has an index.
        queries: [queries, dimensions].
        k: Neighbours of a query.
        session: Its executors search; without one, this process does.
        expansion: Candidates that are looked at, in each file.

    Raises:
        InputError: There is no index of this table, or the queries do not fit.
        PipelineError: An executor could not search.
    """
    _check_installed()
    if not has_index(table):
        raise InputError(
            "embedding.output", f"{table.folder} has no index of its rows", "build one first"
        )
    search = partial(_search_file, table=table, k=k, expansion=max(expansion, k))
    return best_of_files(table, check_queries(table, queries), k, search, session)


def _check_installed() -> None:
    if find_spec("usearch") is None:
        raise InputError(
            "--index", "usearch is not installed", 'pip install "sentence-pipelines[search]"'
        )


def _identity(table: VectorTable) -> dict[str, Any]:
    """What an index follows from: the table's files with their times of change."""
    stamps = {Path(file.path).name: _stamp(file) for file in table.files}
    return {"form": FORM, "vector_column": table.vector, "files": stamps}


def _path(folder: str | Path, file: VectorFile) -> Path:
    return Path(folder) / f"{Path(file.path).stem}.usearch"


def _open(dimensions: int) -> Any:
    from usearch.index import Index

    return Index(
        ndim=dimensions,
        metric="cos",
        dtype="f16",
        connectivity=CONNECTIVITY,
        expansion_add=EXPANSION_ADD,
    )


def _build_task(files: Iterable[VectorFile], *, table: VectorTable, folder: str) -> None:
    """Runs on an executor."""
    for file in files:
        index = _open(table.dimensions)
        for block in read_blocks(table, [file]):
            rows = (block.positions - file.first).astype(np.uint64)
            index.add(rows, block.vectors, threads=1)
        index.save(str(_path(folder, file)))


def _search_file(
    queries: np.ndarray, file: VectorFile, *, table: VectorTable, k: int, expansion: int
) -> Neighbours:
    """The best of a file, whose index is mapped, not read. Runs on an executor."""
    index = _open(table.dimensions)
    index.view(str(_path(Path(table.folder) / INDEX_FOLDER, file)))
    if not len(index) or not len(queries):
        return Neighbours.none()
    index.expansion_search = expansion
    found = index.search(queries, min(k, len(index)), threads=1)
    keys, distances = np.atleast_2d(found.keys), np.atleast_2d(found.distances)
    # For several queries usearch pads rows where fewer were found; for a single one it does not.
    counts = found.counts if len(queries) > 1 else np.array([len(found)])
    there = np.arange(keys.shape[1]) < counts[:, None]
    rows = np.repeat(np.arange(len(queries)), counts)
    scores = np.round(1.0 - distances[there].astype(float), SCORE_DECIMALS)
    return Neighbours(rows, keys[there].astype(np.int64) + file.first, scores)
