"""The held-out pairs of a preparation, as evaluations read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from pipelines.errors import InputError
from pipelines.evaluation.intervals import GROUP
from pipelines.evaluation.rows import Tables
from pipelines.files.locations import Location, arrow_source
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.settings import Config
from pipelines.spark.frames import read_parquet
from pipelines.tokens.examples import SOURCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def held_out_sets(config: Config) -> Sequence[str]:
    """Return the folder of the corpus, if it has held-out queries and documents."""
    corpus = PreparedFolder.of(config).corpus
    return [str(corpus.path)] if corpus.queries.exists() and corpus.documents.exists() else []


def held_out_sources(config: Config) -> Sequence[str]:
    """Return the names of the sources with held-out queries; none without sources."""
    corpus = PreparedFolder.of(config).corpus
    if not config.corpus.sources or not held_out_sets(config):
        return []
    with pq.ParquetFile(arrow_source(corpus.queries)) as file:
        if SOURCE not in file.schema_arrow.names:
            return []
        held = {*file.read(columns=[SOURCE]).column(SOURCE).to_pylist()}
    return [source.name for source in config.corpus.sources if source.name in held]


def set_name(config: Config, evaluation: str, given: str) -> str:
    """Return the name in ``metrics.json`` of the corpus folder's, or a source's, held-out pairs."""
    is_source = any(given == source.name for source in config.corpus.sources)
    return f"{evaluation}.{given}" if is_source else evaluation


def read_held_out(session: SparkSession, config: Config, given: str) -> Tables:
    """Read the tables `asked` and `documents`; see :func:`held_out_tables`.

    Queries search documents of training pairs too, as far as the preparation has drawn them.
    ``given`` is the corpus' folder; or a source, and its queries search only its documents.
    """
    path = PreparedFolder.of(config).corpus.distractors
    distractors = read_parquet(session, path) if path.exists() else None
    return _read(session, config, given, distractors)


def read_held_out_alone(session: SparkSession, config: Config, given: str) -> Tables:
    """Read the held-out tables, without documents of training pairs."""
    return _read(session, config, given, None)


def _read(
    session: SparkSession, config: Config, given: str, distractors: DataFrame | None
) -> Tables:
    corpus = PreparedFolder.of(config).corpus
    tables = held_out_tables(session, corpus.queries, corpus.documents)
    if not config.corpus.sources:
        return _with_distractors(tables, distractors)
    if given not in held_out_sources(config):
        # Two sources may ask for one document by one query, and hold one document for training.
        together = {**tables, "asked": tables["asked"].distinct()}
        distinct = None if distractors is None else distractors.drop(SOURCE).distinct()
        return _with_distractors(together, distinct)
    queries = read_parquet(session, corpus.queries)
    asked = queries.where(queries[SOURCE] == given).drop(SOURCE).dropna().distinct()
    wanted = asked.select("document_id").distinct()
    documents = tables["documents"].join(wanted, "document_id", "left_semi")
    if distractors is not None:
        distractors = distractors.where(distractors[SOURCE] == given).drop(SOURCE)
    return _with_distractors({"asked": asked, "documents": documents}, distractors)


def _with_distractors(tables: Tables, distractors: DataFrame | None) -> Tables:
    """Add the documents of training pairs, if any, to the documents to search.

    No document occurs twice: a held-out document of one source is left out of all training pairs.
    """
    if distractors is None:
        return tables
    documents = tables["documents"]
    return {**tables, "documents": documents.unionByName(distractors.select(documents.columns))}


def held_out_tables(
    session: SparkSession, queries_path: Location, documents_path: Location
) -> Tables:
    """Read and check the tables `asked` and `documents`.

    Args:
        queries_path: Parquet: ``query_id`` (int64), ``text`` and ``document_id`` (int64) of a
            relevant document; a row for each of several. Perhaps ``group`` (int64): queries of a
            group gain and lose together.
        documents_path: Parquet: ``document_id`` (int64, unique) and ``text``.

    Raises:
        InputError: A table is missing, lacks a column or is empty.
    """
    return {
        "asked": _table(session, queries_path, ("query_id", "text", "document_id"), (GROUP,)),
        "documents": _table(session, documents_path, ("document_id", "text")),
    }


def _table(
    session: SparkSession, path: Location, columns: Sequence[str], optional: Sequence[str] = ()
) -> DataFrame:
    """Read the columns of a Parquet file or folder, without rows that have nulls."""
    remedy = "Run `sentence-pipelines prepare` with the same settings first"
    if not path.exists():
        raise InputError("prepared.folder", f"there is no {path}", remedy)
    frame = read_parquet(session, path)
    for column in columns:
        if column not in frame.columns:
            raise InputError("prepared.folder", f"{path} has no column `{column}`", remedy)
    optional_columns = [name for name in optional if name in frame.columns]
    frame = frame.select(*columns, *optional_columns).dropna()
    if frame.isEmpty():
        raise InputError("prepared.folder", f"{path} is empty", remedy)
    return frame
