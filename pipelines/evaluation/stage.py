"""All that is measured of a model, as the settings ask for it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import InputError
from pipelines.evaluation.beir import evaluate_retrieval_sets, set_name
from pipelines.evaluation.classification import evaluate_classification
from pipelines.evaluation.geometry import evaluate_geometry
from pipelines.evaluation.pairs import RESERVED, file_names
from pipelines.evaluation.retrieval import OnRetrieved, evaluate_retrieval
from pipelines.evaluation.similarity import evaluate_similarity
from pipelines.settings import Config, EvaluationSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


def evaluate(
    session: SparkSession,
    config: Config,
    model_folder: Path | str,
    on_retrieved: OnRetrieved = lambda found: None,
) -> dict[str, dict[str, float]]:
    """Measures a model on the held-out pairs and on the files and sets that are named.

    Args:
        session: The Spark session.
        config: ``evaluation`` says what is measured; the held-out pairs are those of
            ``<prepared.folder>/corpus/evaluation``, where there are any.
        model_folder: The model, where every executor can read it.
        on_retrieved: Called with what was found among the held-out pairs, if that is measured.

    Returns:
        By ``retrieval``, ``geometry`` and the names of the files and sets the figures of
        :func:`~pipelines.evaluation.retrieval.evaluate_retrieval`,
        :func:`~pipelines.evaluation.geometry.evaluate_geometry`,
        :func:`~pipelines.evaluation.similarity.evaluate_similarity`,
        :func:`~pipelines.evaluation.classification.evaluate_classification` and
        :func:`~pipelines.evaluation.beir.evaluate_retrieval_sets`.

    Raises:
        InputError: What is asked for cannot be read.
    """
    wanted, names = config.evaluation, Names.of(config.evaluation)
    figures: dict[str, dict[str, float]] = {}
    held_out = held_out_files(config)
    if wanted.retrieval and held_out:
        figures["retrieval"] = evaluate_retrieval(
            session, model_folder, *held_out, on_retrieved=on_retrieved
        )
    elif wanted.retrieval:
        logger.info("no retrieval evaluation: there are no held-out pairs in %s", _folder(config))
    if wanted.geometry and held_out:
        figures["geometry"] = evaluate_geometry(session, model_folder, *held_out)
    figures |= evaluate_similarity(
        session, model_folder, wanted.similarity, wanted.similarity_columns, names.similarity
    )
    figures |= evaluate_classification(
        session,
        model_folder,
        wanted.classification,
        wanted.classification_columns,
        names.classification,
    )
    return figures | evaluate_retrieval_sets(
        session, model_folder, wanted.retrieval_sets, names.retrieval_sets
    )


def held_out_files(config: Config) -> tuple[Path, Path] | None:
    """The tables of the held-out queries and documents, where there are any."""
    queries, documents = (_folder(config) / f"{name}.parquet" for name in ("queries", "documents"))
    return (queries, documents) if queries.exists() and documents.exists() else None


def _folder(config: Config) -> Path:
    return Path(config.prepared.folder).absolute() / "corpus" / "evaluation"


@dataclass(frozen=True)
class Names:
    """What the evaluations of files and sets are called; no two have one name.

    Attributes:
        similarity: Of ``evaluation.similarity``, in its order.
        classification: Of ``evaluation.classification``.
        retrieval_sets: Of ``evaluation.retrieval_sets``.
    """

    similarity: Sequence[str]
    classification: Sequence[str]
    retrieval_sets: Sequence[str]

    @classmethod
    def of(cls, wanted: EvaluationSettings) -> Names:
        """The names; whole paths where short ones would be equal.

        Raises:
            InputError: A file is named twice.
        """
        files = (*wanted.similarity, *wanted.classification)
        short = [*file_names(files), *map(set_name, wanted.retrieval_sets)]
        whole = (*files, *wanted.retrieval_sets)
        taken = (*short, *RESERVED)
        names = [
            name if taken.count(name) == 1 else path
            for name, path in zip(short, whole, strict=True)
        ]
        for name in names:
            if names.count(name) > 1:
                raise InputError("evaluation", f"{name} is named twice", "name it once")
        first, second = len(wanted.similarity), len(files)
        return cls(names[:first], names[first:second], names[second:])
