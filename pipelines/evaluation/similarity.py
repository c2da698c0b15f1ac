"""Semantic textual similarity: do cosines order pairs as people do?

The measure of sentence-transformers' `EmbeddingSimilarityEvaluator`; see Reimers, Beyer and
Gurevych, "Task-oriented intrinsic evaluation of semantic textual similarity", COLING 2016, for why
Spearman's comes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipelines.errors import InputError
from pipelines.evaluation.base import Figure
from pipelines.evaluation.pairs import PairFiles, pair_evaluation, read_pairs
from pipelines.evaluation.rankings import pearson, spearman

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES = "evaluation.similarity"


def scored_pairs(session: SparkSession, file: str, kind: PairFiles) -> DataFrame:
    """The pairs of a file: ``text_0``, ``text_1`` (strings) and ``score`` (double).

    Raises:
        InputError: A file or column is missing or not what it is said to be, or the file holds
            fewer than two pairs or only one score.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    pairs = read_pairs(session, file, kind)
    lowest, highest = pairs.agg(F.min("score"), F.max("score")).collect()[0]
    if lowest == highest:
        raise InputError(
            kind.columns_key,
            f"every `{kind.columns[2]}` of {file} is {lowest:g}",
            "name a column of different scores",
        )
    return pairs


def similarity_figures(cosines: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """``pairs``, ``spearman`` and ``pearson`` (times 100) of two vectors [pairs]."""
    return {
        "pairs": len(cosines),
        "spearman": 100 * spearman(cosines, scores),
        "pearson": 100 * pearson(cosines, scores),
    }


EVALUATION = pair_evaluation(
    FILES,
    figures=(
        Figure.count("pairs"),
        Figure("spearman", "Spearman"),
        Figure("pearson", "Pearson"),
    ),
    read=scored_pairs,
    measure=similarity_figures,
    guards=True,
)
