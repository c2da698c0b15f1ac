"""Paraphrase classification: does one threshold on the cosine tell pairs that mean the same?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipelines.errors import InputError
from pipelines.evaluation.embedder import EmbedderLoader, embedder_loader
from pipelines.evaluation.metrics import average_precision, best_accuracy, best_f1
from pipelines.evaluation.pairs import PairFiles, cosines_of, file_names, read_pairs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES = "evaluation.classification"
FIGURES = ("average_precision", "f1", "f1_threshold", "accuracy", "accuracy_threshold")


def evaluate_classification(
    session: SparkSession,
    model_folder: Path | str,
    files: Sequence[str],
    columns: tuple[str, str, str],
    names: Sequence[str] | None = None,
) -> dict[str, dict[str, float]]:
    """Measures how well the model's cosines tell pairs of label 1 from pairs of label 0.

    The measure of sentence-transformers' `BinaryClassificationEvaluator`, by cosine.

    Args:
        session: The Spark session.
        model_folder: The model, where every executor can read it.
        files: Parquet, CSV (or TSV) and JSON lines files, told apart by their endings.
        columns: Names of the first text, the second text and the label.
        names: Of the files, in the result; by default of
            :func:`~pipelines.evaluation.pairs.file_names`.

    Returns:
        By the names of the files the figures of :func:`classification_figures`.

    Raises:
        InputError: A file or column is missing or not what it is said to be, a label is neither 0
            nor 1, or all are alike; or there is no model.
    """
    load = embedder_loader(session, model_folder)
    pairs = {
        name: labelled_pairs(session, file, columns)
        for file, name in zip(files, names or file_names(files), strict=True)
    }
    return {name: separation(frame, load) for name, frame in pairs.items()}


def labelled_pairs(session: SparkSession, file: str, columns: tuple[str, str, str]) -> DataFrame:
    """The pairs of a file: ``text_0``, ``text_1`` (strings) and ``score`` (0 or 1, double).

    Raises:
        InputError: See :func:`evaluate_classification`.
    """
    kind = PairFiles(FILES, columns)
    pairs = read_pairs(session, file, kind)
    labels = sorted(row["score"] for row in pairs.select("score").distinct().limit(20).collect())
    strange = [label for label in labels if label not in (0.0, 1.0)]
    if strange:
        raise InputError(
            kind.columns_key, f"`{columns[2]}` of {file} has {strange[0]:g}", "labels are 0 and 1"
        )
    if len(labels) == 1:
        raise InputError(
            kind.columns_key,
            f"every `{columns[2]}` of {file} is {labels[0]:g}",
            "some pairs must be 0 and some 1",
        )
    return pairs


def separation(pairs: DataFrame, load: EmbedderLoader) -> dict[str, float]:
    """The figures of a frame of :func:`labelled_pairs`."""
    return classification_figures(*cosines_of(pairs, load))


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
    if not np.isfinite(cosines).all():
        return {"pairs": len(cosines), **dict.fromkeys(FIGURES, math.nan)}
    # The last bits of a cosine must not part pairs that are equal.
    rounded = np.round(cosines, 6)
    f1, f1_threshold = best_f1(rounded, labels)
    accuracy, accuracy_threshold = best_accuracy(rounded, labels)
    return {
        "pairs": len(cosines),
        "average_precision": 100 * average_precision(rounded, labels),
        "f1": 100 * f1,
        "f1_threshold": f1_threshold,
        "accuracy": 100 * accuracy,
        "accuracy_threshold": accuracy_threshold,
    }
