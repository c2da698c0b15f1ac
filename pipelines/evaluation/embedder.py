"""A model that executors load to embed texts, and exact neighbours by the vectors that it gives.

Models compute in fp32, so that figures do not depend on the processor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from pipelines.errors import InputError
from pipelines.files.locations import Location, location
from pipelines.spark.capacity import task_threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.models.inference.embedder import TextEmbedder


SCORE_DECIMALS = 6
"""Cosines are compared to so many decimals: the last bits of a float32 product depend on how
the work was cut, and must not decide the order of two equal texts."""

BLOCK_CELLS = 4 * 2**20
"""Scores that are in memory at a time: 32 MiB."""


@dataclass(frozen=True)
class Neighbours:
    """The nearest documents of each query, the best first.

    Attributes:
        queries: Row of the query, int64, ascending.
        documents: Id of the document, int64.
        scores: Cosine similarity, or another score, float64; rounded to :data:`SCORE_DECIMALS`
            where it was computed from embeddings.
    """

    queries: np.ndarray
    documents: np.ndarray
    scores: np.ndarray

    @classmethod
    def none(cls) -> Neighbours:
        """Return no neighbours of any query."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float64))


def nearest(queries: np.ndarray, documents: np.ndarray, ids: np.ndarray, k: int) -> Neighbours:
    """Return the k documents of highest cosine for each query; of equal ones the lower id wins.

    At most about 32 MB of scores are in memory.

    Args:
        queries: [queries, width], rows of length 1.
        documents: [documents, width], rows of length 1.
        ids: [documents], int64.
        k: Neighbours of a query; all documents where there are fewer.
    """
    rows = max(1, BLOCK_CELLS // max(len(documents), 1))
    found = [Neighbours.none()]
    for start in range(0, len(queries), rows):
        scores = np.round(
            (queries[start : start + rows] @ documents.T).astype(float), SCORE_DECIMALS
        )
        # NaN would be ranked somewhere; a model that gives it finds nothing.
        scores[np.isnan(scores)] = -np.inf
        found.append(best_of_block(scores, start, ids, k))
    return joined(found)


def merged(left: Neighbours, right: Neighbours, k: int) -> Neighbours:
    """Return the k best of both for each query."""
    return best_of(joined([left, right]), k)


def best_of_block(scores: np.ndarray, start: int, ids: np.ndarray, k: int) -> Neighbours:
    """Return the k best of a block of scores; of equal ones the lower id wins.

    Args:
        scores: [queries, documents]; minus infinity where a document is not found.
        start: Number of the first query.
        ids: [documents], int64.
        k: Neighbours of a query.
    """
    count = scores.shape[1]
    if count > k:
        # All ties with the k-th score are kept here; the ids decide among them later.
        limit = np.partition(scores, count - k, axis=1)[:, count - k, None]
        rows, columns = np.nonzero(scores >= limit)
    else:
        rows, columns = (index.ravel() for index in np.indices(scores.shape))
    is_found = np.isfinite(scores[rows, columns])
    rows, columns = rows[is_found], columns[is_found]
    return best_of(Neighbours(rows + start, ids[columns], scores[rows, columns]), k)


def best_of(found: Neighbours, k: int) -> Neighbours:
    """Return the k best of each query, in their order; of equal ones the lower id wins."""
    order = np.lexsort((found.documents, -found.scores, found.queries))
    queries = found.queries[order]
    first_of_query = np.searchsorted(queries, queries)
    order = order[np.arange(len(order)) - first_of_query < k]
    return Neighbours(found.queries[order], found.documents[order], found.scores[order])


def joined(parts: Sequence[Neighbours]) -> Neighbours:
    """Return all neighbours one behind the other, in no order."""
    columns = ((part.queries, part.documents, part.scores) for part in parts)
    return Neighbours(*map(np.concatenate, zip(*columns, strict=True)))


EmbedderLoader: TypeAlias = "Callable[[], TextEmbedder]"
"""Called once in each task, on the executor."""


def embedder_loader(session: SparkSession, model_folder: Location | str) -> EmbedderLoader:
    """Return what loads a model on an executor, with a thread for each CPU of the task.

    Args:
        model_folder: A folder that the driver and every executor can reach.

    Raises:
        InputError: The folder holds no model.
    """
    folder = location(model_folder).absolute()
    if not any((folder / name).is_file() for name in ("modules.json", "config.json")):
        raise InputError(
            "run.folder", f"{folder} holds no model", "name a folder that training wrote"
        )
    threads = task_threads(session)

    def load() -> TextEmbedder:
        from pipelines.models.inference.embedder import load_embedder

        return load_embedder(folder, threads=threads)

    return load


def unit_length(embeddings: np.ndarray) -> np.ndarray:
    """Return the rows scaled to length 1, in float32; a zero row stays zero.

    Args:
        embeddings: [texts, width].
    """
    lengths = np.linalg.norm(embeddings.astype(np.float64), axis=1, keepdims=True)
    scaled: np.ndarray = (embeddings / np.maximum(lengths, 1e-12)).astype(np.float32)
    return scaled
