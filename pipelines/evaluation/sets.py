"""What figures were measured on, so that only figures of the same texts are compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines import __version__
from pipelines.evaluation.beir import read_retrieval_set
from pipelines.evaluation.classification import labelled_pairs
from pipelines.evaluation.similarity import scored_pairs
from pipelines.evaluation.stage import Names, held_out_files
from pipelines.frames import read_path
from pipelines.settings import Config

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def digest_sets(session: SparkSession, config: Config) -> dict[str, str]:
    """A digest of each set that :func:`pipelines.evaluation.stage.evaluate` measures on.

    It follows from the rows in any order, and from the release of this package, which decides how
    they are measured: two models measured under one digest may be compared.

    Returns:
        By the names of the evaluations, 16 hexadecimal digits.

    Raises:
        InputError: See :func:`read_sets`.
    """
    wanted = config.evaluation
    digests: dict[str, str] = {}
    held_out = held_out_files(config)
    if held_out:
        queries, documents = (session.read.parquet(read_path(table)) for table in held_out)
        digest = _digest(
            queries.select("query_id", "text", "document_id"),
            documents.select("document_id", "text"),
        )
        asked = {"retrieval": wanted.retrieval, "geometry": wanted.geometry}
        digests |= {name: digest for name, is_asked in asked.items() if is_asked}
    return digests | {name: _digest(*tables) for name, tables in read_sets(session, config).items()}


def read_sets(session: SparkSession, config: Config) -> dict[str, tuple[DataFrame, ...]]:
    """The files and folders that a model is to be measured on, by the names of the evaluations.

    Raises:
        InputError: One is missing, or not what it is said to be.
    """
    wanted, names = config.evaluation, Names.of(config.evaluation)
    sets: dict[str, tuple[DataFrame, ...]] = {}
    for name, file in zip(names.similarity, wanted.similarity, strict=True):
        sets[name] = (scored_pairs(session, file, wanted.similarity_columns),)
    for name, file in zip(names.classification, wanted.classification, strict=True):
        sets[name] = (labelled_pairs(session, file, wanted.classification_columns),)
    for name, given in zip(names.retrieval_sets, wanted.retrieval_sets, strict=True):
        tables = read_retrieval_set(session, given)
        sets[name] = (tables.asked, tables.documents)
    return sets


def _digest(*tables: DataFrame) -> str:
    told = json.dumps([__version__, [_row_sum(table) for table in tables]])
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _row_sum(table: DataFrame) -> Sequence[str]:
    """Count and sum of the rows' hashes: the same in whichever order Spark has the rows."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    hashes = F.xxhash64(*table.columns).cast("decimal(20,0)")
    found = table.agg(F.count("*"), F.sum(hashes)).collect()[0]
    return [str(value) for value in found]
