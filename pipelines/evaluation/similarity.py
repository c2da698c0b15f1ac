"""Semantic textual similarity: do cosines order pairs as people do?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipelines.errors import InputError
from pipelines.evaluation.embedder import EmbedderLoader, embedder_loader
from pipelines.evaluation.metrics import pearson, spearman
from pipelines.evaluation.pairs import PairFiles, cosines_of, file_names, read_pairs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES = "evaluation.similarity"


def evaluate_similarity(
    session: SparkSession,
    model_folder: Path | str,
    files: Sequence[str],
    columns: tuple[str, str, str],
    names: Sequence[str] | None = None,
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
        names: Of the files, in the result; by default of :func:`file_names`.

    Returns:
        By the names of the files: ``pairs`` (a count), ``spearman`` and ``pearson`` (times 100).

    Raises:
        InputError: A file or column is missing or not what it is said to be, or a file holds
            fewer than two pairs or only one score; or there is no model.
    """
    load = embedder_loader(session, model_folder)
    # All files are looked at before the first is worked on.
    pairs = {
        name: scored_pairs(session, file, columns)
        for file, name in zip(files, names or file_names(files), strict=True)
    }
    return {name: correlations(frame, load) for name, frame in pairs.items()}


def scored_pairs(session: SparkSession, file: str, columns: tuple[str, str, str]) -> DataFrame:
    """The pairs of a file: ``text_0``, ``text_1`` (strings) and ``score`` (double).

    Raises:
        InputError: See :func:`evaluate_similarity`.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    kind = PairFiles(FILES, columns)
    pairs = read_pairs(session, file, kind)
    lowest, highest = pairs.agg(F.min("score"), F.max("score")).collect()[0]
    if lowest == highest:
        raise InputError(
            kind.columns_key,
            f"every `{columns[2]}` of {file} is {lowest:g}",
            "name a column of different scores",
        )
    return pairs


def correlations(pairs: DataFrame, load: EmbedderLoader) -> dict[str, float]:
    """``pairs``, ``spearman`` and ``pearson`` of a frame of :func:`scored_pairs`."""
    return similarity_figures(*cosines_of(pairs, load))


def similarity_figures(cosines: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """``pairs``, ``spearman`` and ``pearson`` (times 100) of two vectors [pairs]."""
    return {
        "pairs": len(cosines),
        "spearman": 100 * spearman(cosines, scores),
        "pearson": 100 * pearson(cosines, scores),
    }
