"""Semantic textual similarity: do cosines order pairs as people do?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipelines.errors import InputError
from pipelines.evaluation.embedder import (
    Batches,
    EmbedderLoader,
    embedder_loader,
    spread,
    unit_length,
)
from pipelines.evaluation.metrics import pearson, spearman
from pipelines.settings import CorpusSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES = "evaluation.similarity"
COLUMNS = "evaluation.similarity_columns"

_FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv"} | dict.fromkeys(
    (".jsonl", ".ndjson", ".json"), "jsonl"
)
_COMPRESSED = (".gz", ".bz2")
_KEYS = {
    "corpus.inputs": FILES,
    "corpus.pair_columns": COLUMNS,
    "corpus.score_column": COLUMNS,
}


def evaluate_similarity(
    session: SparkSession,
    model_folder: Path | str,
    files: Sequence[str],
    columns: tuple[str, str, str],
) -> dict[str, dict[str, float]]:
    """Correlates the model's cosine similarities with the scores of people, file by file.

    The measure of sentence-transformers' `EmbeddingSimilarityEvaluator`; see Reimers, Beyer and
    Gurevych, "Task-oriented intrinsic evaluation of semantic textual similarity", COLING 2016,
    for why Spearman's comes first. The driver receives two numbers a pair.

    Args:
        session: The Spark session.
        model_folder: The model, where every executor can read it.
        files: Parquet, CSV (or TSV) and JSON lines files, told apart by their endings.
        columns: Names of the first text, the second text and the score.

    Returns:
        By :func:`file_names` of the files: ``pairs`` (a count), ``spearman`` and ``pearson``
        (times 100).

    Raises:
        InputError: A file or column is missing or not what it is said to be, or a file holds
            fewer than two pairs or only one score; or there is no model.
    """
    load = embedder_loader(session, model_folder)
    # All files are looked at before the first is worked on.
    pairs = {
        name: scored_pairs(session, file, columns)
        for file, name in zip(files, file_names(files), strict=True)
    }
    return {name: correlations(frame, load) for name, frame in pairs.items()}


def file_names(files: Sequence[str]) -> list[str]:
    """Short names of the files: name without endings, or the whole path where two would be one."""
    stems = [_stem_and_suffix(file)[0] for file in files]
    often = Counter([*stems, "retrieval"])
    return [stem if often[stem] == 1 else file for file, stem in zip(files, stems, strict=True)]


def scored_pairs(session: SparkSession, file: str, columns: tuple[str, str, str]) -> DataFrame:
    """The pairs of a file: ``text_0``, ``text_1`` (strings) and ``score`` (double).

    Raises:
        InputError: See :func:`evaluate_similarity`.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    rows = _read(session, file, columns)
    unread = rows.where("quarantined is not null").orderBy("offset").first()
    if unread is not None:
        raise InputError(
            FILES, f"{file} has an unreadable row ({unread['quarantined']})", "mend the file"
        )
    pairs = rows.select("text_0", "text_1", F.expr("try_cast(score as double)").alias("score"))
    _check(file, pairs, columns)
    return pairs


def correlations(pairs: DataFrame, load: EmbedderLoader) -> dict[str, float]:
    """``pairs``, ``spearman`` and ``pearson`` of a frame of :func:`scored_pairs`."""
    found = spread(pairs).mapInArrow(_cosine_batches(load), "cosine double, score double").collect()
    cosines = np.array([row["cosine"] for row in found])
    scores = np.array([row["score"] for row in found])
    return {
        "pairs": len(found),
        "spearman": 100 * spearman(cosines, scores),
        "pearson": 100 * pearson(cosines, scores),
    }


def _cosine_batches(load: EmbedderLoader) -> Batches:
    def compare(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        embedder = None
        for batch in batches:
            embedder = embedder or load()
            first, second = (
                unit_length(embedder(batch.column(name).to_pylist())).astype(np.float64)
                for name in ("text_0", "text_1")
            )
            cosines = pa.array(np.einsum("ij,ij->i", first, second))
            yield pa.RecordBatch.from_arrays(
                [cosines, batch.column("score")], names=["cosine", "score"]
            )

    return compare


def _read(session: SparkSession, file: str, columns: tuple[str, str, str]) -> DataFrame:
    """The raw rows, as the corpus reads them; its errors under the names of these settings."""
    from pipelines.corpus.sources import read_rows

    kind = _FORMATS.get(_stem_and_suffix(file)[1])
    if kind is None:
        endings = ", ".join(_FORMATS)
        raise InputError(
            FILES, f"`{file}` says no format", f"its name must end in one of {endings}"
        )
    settings = CorpusSettings.model_validate(
        {
            "inputs": (file,),
            "format": kind,
            "pairs": "columns",
            "pair_columns": columns[:2],
            "score_column": columns[2],
        }
    )
    try:
        return read_rows(session, settings)
    except InputError as error:
        by_name = "corpus.format" in error.remedy
        remedy = "give it the ending of its format" if by_name else error.remedy
        raise InputError(_KEYS.get(error.key, FILES), error.problem, remedy) from None


def _check(file: str, pairs: DataFrame, columns: tuple[str, str, str]) -> None:
    """Reads the pairs once, before any model is loaded.

    Raises:
        InputError: A row lacks a text or a finite score, or nothing can be ranked.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    is_text = F.col("text_0").isNotNull() & F.col("text_1").isNotNull()
    # Infinities and NaN fall out of the range too.
    is_number = F.col("score").isNotNull() & (F.abs("score") < float("inf"))
    found = pairs.agg(
        F.count("*").alias("rows"),
        F.count(F.when(~is_text, 1)).alias("textless"),
        F.count(F.when(~is_number, 1)).alias("scoreless"),
        F.min("score").alias("lowest"),
        F.max("score").alias("highest"),
    ).collect()[0]
    if found["rows"] < 2:
        raise InputError(FILES, f"{file} holds {found['rows']} pairs", "at least 2")
    if found["textless"]:
        names = f"`{columns[0]}` or `{columns[1]}`"
        raise InputError(
            COLUMNS, f"{found['textless']} rows of {file} have no {names}", "fill or remove them"
        )
    if found["scoreless"]:
        raise InputError(
            COLUMNS,
            f"`{columns[2]}` of {found['scoreless']} rows of {file} is no number",
            "fill or remove them",
        )
    if found["lowest"] == found["highest"]:
        raise InputError(
            COLUMNS,
            f"every `{columns[2]}` of {file} is {found['lowest']:g}",
            "name a column of different scores",
        )


def _stem_and_suffix(file: str) -> tuple[str, str]:
    path = Path(file)
    if path.suffix.lower() in _COMPRESSED:
        path = path.with_suffix("")
    return path.stem, path.suffix.lower()
