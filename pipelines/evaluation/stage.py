"""All that is measured of a model, as the settings ask for it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.evaluation.retrieval import evaluate_retrieval
from pipelines.evaluation.similarity import evaluate_similarity
from pipelines.settings import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


def evaluate(
    session: SparkSession, config: Config, model_folder: Path | str
) -> dict[str, dict[str, float]]:
    """Measures a model on the held-out pairs and on the files of scored pairs.

    Args:
        session: The Spark session.
        config: ``evaluation`` says what is measured; the held-out pairs are those of
            ``<prepared.folder>/corpus/evaluation``, where there are any.
        model_folder: The model, where every executor can read it.

    Returns:
        ``retrieval`` and the name of each file, with the figures of
        :func:`~pipelines.evaluation.retrieval.evaluate_retrieval` and
        :func:`~pipelines.evaluation.similarity.evaluate_similarity`.

    Raises:
        InputError: What is asked for cannot be read.
    """
    figures: dict[str, dict[str, float]] = {}
    held_out = Path(config.prepared.folder).absolute() / "corpus" / "evaluation"
    queries, documents = held_out / "queries.parquet", held_out / "documents.parquet"
    if config.evaluation.retrieval and queries.exists() and documents.exists():
        figures["retrieval"] = evaluate_retrieval(session, model_folder, queries, documents)
    elif config.evaluation.retrieval:
        logger.info("no retrieval evaluation: there are no held-out pairs in %s", held_out)
    if config.evaluation.similarity:
        figures |= evaluate_similarity(
            session,
            model_folder,
            config.evaluation.similarity,
            config.evaluation.similarity_columns,
        )
    return figures
