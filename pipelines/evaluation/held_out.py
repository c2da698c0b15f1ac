"""The pairs that the preparation has held out, as evaluations read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines.errors import InputError
from pipelines.evaluation.base import Tables
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.settings import Config
from pipelines.spark.frames import read_parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def held_out_sets(config: Config) -> Sequence[str]:
    """The folder of the corpus, if it has queries and documents that are held out."""
    corpus = PreparedFolder.of(config).corpus
    return [str(corpus.path)] if corpus.queries.exists() and corpus.documents.exists() else []


def read_held_out(session: SparkSession, config: Config, given: str) -> Tables:
    """The tables `asked` and `documents`; see :func:`held_out_tables`."""
    corpus = PreparedFolder.of(config).corpus
    return held_out_tables(session, corpus.queries, corpus.documents)


def held_out_tables(
    session: SparkSession, queries_path: Location, documents_path: Location
) -> Tables:
    """The tables `asked` and `documents`.

    Args:
        queries_path: Parquet: ``query_id`` (int64), ``text`` and ``document_id`` (int64) of a
            relevant document; a row for each where there are several.
        documents_path: Parquet: ``document_id`` (int64, unique) and ``text``.

    Raises:
        InputError: A table is missing, lacks a column or is empty.
    """
    return {
        "asked": _table(session, queries_path, ("query_id", "text", "document_id")),
        "documents": _table(session, documents_path, ("document_id", "text")),
    }


def _table(session: SparkSession, path: Location, columns: Sequence[str]) -> DataFrame:
    """The columns of a Parquet file or folder, rows with nulls left out."""
    remedy = "run `sentence-pipelines prepare` with the same settings first"
    if not path.exists():
        raise InputError("prepared.folder", f"there is no {path}", remedy)
    frame = read_parquet(session, path)
    for column in columns:
        if column not in frame.columns:
            raise InputError("prepared.folder", f"{path} has no column `{column}`", remedy)
    frame = frame.select(*columns).dropna()
    if frame.isEmpty():
        raise InputError("prepared.folder", f"{path} is empty", remedy)
    return frame
