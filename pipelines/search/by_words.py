"""Search in the texts of a table of vectors by the words of queries: BM25.

All texts are read twice: to count the words of the queries, and to score. Both are spread over
executors as an exact search by vectors is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from pipelines.arrow_columns import as_text
from pipelines.embedding.parts import read_rows
from pipelines.embedding.store import VectorFile, VectorTable
from pipelines.errors import InputError
from pipelines.evaluation.nearest import Neighbours
from pipelines.lexical.bm25 import (
    TextBlock,
    WordQueries,
    WordStatistics,
    best_by_words,
    total,
    word_statistics,
)
from pipelines.search.exact import best_of_files, deal
from pipelines.spark.capacity import Shared, collect_from_tasks, default_parallelism, shared_value
from pipelines.spark.errors import executor_failures
from pipelines.spark.parquet_parts import read_footers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _Asked(NamedTuple):
    """What each file is searched for."""

    queries: WordQueries
    statistics: WordStatistics


def search_words(
    table: VectorTable, queries: Sequence[str], k: int, session: SparkSession | None = None
) -> Neighbours:
    """The k rows of highest BM25 for each query; of equal ones the first.

    Args:
        table: What is searched; rows without a text are not in it.
        queries: Texts.
        k: Rows of a query; fewer where fewer share a word with it.
        session: Has its executors read the files; without one, this process does.

    Returns:
        ``documents`` are positions in the table, ``scores`` are not cosines.

    Raises:
        InputError: The table has no texts.
        PipelineError: An executor could not search its files.
    """
    column = text_column(table)
    asked = WordQueries.of(queries)
    statistics = _statistics(table.files, asked, column, session)
    search = partial(_search_file, column=column, k=k)
    return best_of_files(table, _Asked(asked, statistics), k, search, session)


def text_column(table: VectorTable) -> str:
    """The column of a table's texts.

    Raises:
        InputError: No embedding job has said which it is.
    """
    if table.text is None:
        raise InputError(
            "embedding.output",
            f"{table.folder} does not say which column has its texts, whose words --hybrid counts",
            "search it without --hybrid, or name a table that `embed` has written",
        )
    return table.text


def text_bytes(table: VectorTable) -> int:
    """How much the texts of a table are, by the footers of its files.

    Raises:
        InputError: The table has no texts.
    """
    column = text_column(table)
    footers = read_footers([file.path for file in table.files])
    return sum(map(partial(_column_bytes, name=column), footers))


def _column_bytes(footer: pq.FileMetaData, name: str) -> int:
    """Of a column that is no list, in all row groups; neither compressed nor decoded."""
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    place = paths.index(name)
    groups = range(footer.num_row_groups)
    return sum(footer.row_group(one).column(place).total_uncompressed_size for one in groups)


def _statistics(
    files: Sequence[VectorFile], queries: WordQueries, column: str, session: SparkSession | None
) -> WordStatistics:
    if session is None:
        return word_statistics(queries, _texts(files, column))
    tasks = deal(files, default_parallelism(session))
    with shared_value(session, queries) as shared, executor_failures("counting words"):
        work = partial(_count_task, column=column, shared=shared)
        return total(collect_from_tasks(session, tasks, work), queries)


def _count_task(
    tasks: Iterable[Sequence[VectorFile]], *, column: str, shared: Shared[WordQueries]
) -> Iterator[WordStatistics]:
    """Runs on an executor."""
    for files in tasks:
        yield word_statistics(shared.value, _texts(files, column))


def _search_file(asked: _Asked, file: VectorFile, *, column: str, k: int) -> Neighbours:
    """Runs on an executor."""
    return best_by_words(asked.queries, asked.statistics, _blocks(file, column), k)


def _texts(files: Sequence[VectorFile], column: str) -> Iterator[str]:
    for file in files:
        for texts, _ in _blocks(file, column):
            yield from texts


def _blocks(file: VectorFile, column: str) -> Iterator[TextBlock]:
    """The texts of a file with their positions, in batches; nulls are left out."""
    first = file.first
    for batch in read_rows(file.path, 0, file.rows, [column]):
        texts = as_text(batch.column(0))
        present = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
        yield texts.drop_null().to_pylist(), first + present
        first += batch.num_rows
