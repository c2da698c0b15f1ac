"""Paraphrase classification: does one threshold on the cosine separate the pairs?

The measure of sentence-transformers' `BinaryClassificationEvaluator`, by cosine.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from pipelines.errors import InputError
from pipelines.evaluation.base import Figure
from pipelines.evaluation.pairs import PairFiles, pair_evaluation, read_pairs
from pipelines.evaluation.rankings import best_accuracy, best_f1
from pipelines.libraries import check_installed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES = "evaluation.classification"
FIGURES = (
    Figure("average_precision", "Average precision"),
    Figure("f1", "F1"),
    Figure("f1_threshold", "F1 threshold", better=None),
    Figure("accuracy", "Accuracy"),
    Figure("accuracy_threshold", "Accuracy threshold", better=None),
)


def labelled_pairs(session: SparkSession, file: str, kind: PairFiles) -> DataFrame:
    """The pairs of a file: ``text_0``, ``text_1`` (strings) and ``score`` (0 or 1, double).

    Raises:
        InputError: A file or column is missing or not what it is said to be, a label is neither 0
            nor 1, or all are alike.
    """
    pairs = read_pairs(session, file, kind)
    labels = sorted(row["score"] for row in pairs.select("score").distinct().limit(20).collect())
    strange = [label for label in labels if label not in (0.0, 1.0)]
    if strange:
        raise InputError(
            kind.columns_key,
            f"`{kind.columns[2]}` of {file} has {strange[0]:g}",
            "labels are 0 and 1",
        )
    if len(labels) == 1:
        raise InputError(
            kind.columns_key,
            f"every `{kind.columns[2]}` of {file} is {labels[0]:g}",
            "some pairs must be 0 and some 1",
        )
    return pairs


def classification_figures(cosines: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """How well a threshold on the cosines gives the labels.

    Args:
        cosines: [pairs].
        labels: [pairs], 0 or 1, both of them there.

    Returns:
        ``pairs`` (a count), ``average_precision``, ``f1`` and ``accuracy`` (times 100, the latter
        two at their best thresholds), ``f1_threshold`` and ``accuracy_threshold`` (cosines); NaN
        where a cosine is no number, since those have no order.
    """
    from sklearn.metrics import average_precision_score

    if not np.isfinite(cosines).all():
        return {"pairs": len(cosines), **{figure.name: math.nan for figure in FIGURES}}
    # Cosines of equal pairs may differ in their last bits, and must still be ties.
    rounded = np.round(cosines, 6)
    f1, f1_threshold = best_f1(rounded, labels)
    accuracy, accuracy_threshold = best_accuracy(rounded, labels)
    return {
        "pairs": len(cosines),
        "average_precision": 100 * float(average_precision_score(labels, rounded)),
        "f1": 100 * f1,
        "f1_threshold": f1_threshold,
        "accuracy": 100 * accuracy,
        "accuracy_threshold": accuracy_threshold,
    }


EVALUATION = pair_evaluation(
    FILES,
    figures=(Figure.count("pairs"), *FIGURES),
    read=labelled_pairs,
    measure=classification_figures,
    check=partial(check_installed, FILES, "sklearn"),
)
