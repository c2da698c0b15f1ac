"""Alignment and uniformity: how close partners lie, and how evenly all texts do.

Source: Wang and Isola, "Understanding contrastive representation learning through alignment and
uniformity on the hypersphere", ICML 2020.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from pipelines.evaluation.base import Evaluation, Figure, Forms, Measured
from pipelines.evaluation.embedder import EmbedderLoader
from pipelines.evaluation.held_out import held_out_sets, read_held_out
from pipelines.evaluation.rows import Batches, Rows, Tables, cores_for
from pipelines.vectors.nearest import unit_length

MAX_PAIRS = 1_000
"""Uniformity compares all texts of a side with one another, so only the first pairs count."""


def partners(tables: Tables) -> Tables:
    """Return the pairs to compare: queries (`text_0`), each with a relevant document (`text_1`).

    The tables are those of :func:`pipelines.evaluation.held_out.held_out_tables`.
    """
    texts = tables["documents"].withColumnRenamed("text", "text_1")
    pairs = tables["asked"].withColumnRenamed("text", "text_0").join(texts, "document_id")
    first = pairs.orderBy("query_id", "document_id").limit(MAX_PAIRS)
    # Spark leaves the rows of `limit` in a single partition.
    return {"pairs": first.select("text_0", "text_1").repartition(cores_for(pairs))}


def measure(tables: Mapping[str, Rows], load: EmbedderLoader, forms: Forms) -> list[Measured]:
    """Embed the pairs of :func:`partners`, and return their :func:`geometry_figures`."""
    found = tables["pairs"].map(_embedding_batches(load), "first binary, second binary")
    # Sorted, so that sums are the same to the last bit however Spark divides the rows.
    sides = zip(*sorted((row["first"], row["second"]) for row in found), strict=True)
    first, second = (np.stack([np.frombuffer(row, np.float32) for row in side]) for side in sides)
    return [Measured(geometry_figures(first, second))]


def _embedding_batches(load: EmbedderLoader) -> Batches:
    """Return a function that embeds ``text_0``, ``text_1``: float32 of length 1, as bytes."""

    def embed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        embedder = None
        for batch in batches:
            embedder = embedder or load()
            sides = []
            for name, embed_side in (
                ("text_0", embedder.queries),
                ("text_1", embedder.documents),
            ):
                embeddings = unit_length(embed_side(batch.column(name).to_pylist()))
                sides.append(pa.array([row.tobytes() for row in embeddings], pa.binary()))
            yield pa.RecordBatch.from_arrays(sides, names=["first", "second"])

    return embed


def geometry_figures(first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    """Return ``pairs`` (a count), ``alignment`` and ``uniformity``; of both, lower is better.

    Alignment is the mean squared distance of partners, uniformity the mean of both sides'. Both
    arguments are [pairs, width], rows of length 1; ``second`` has the partners.
    """
    distances = ((first.astype(np.float64) - second) ** 2).sum(axis=1)
    return {
        "pairs": len(first),
        "alignment": float(distances.mean()),
        "uniformity": (uniformity(first) + uniformity(second)) / 2,
    }


def uniformity(embeddings: np.ndarray) -> float:
    """Return the logarithm of the mean of exp(-2 d²) over the distances d of all different rows.

    ``embeddings`` are [texts, width], rows of length 1. Equal rows count once; 0, the worst, if all
    are equal.
    """
    from scipy.spatial.distance import pdist

    rows = np.unique(embeddings, axis=0).astype(np.float64)
    return float(np.log(np.exp(-2 * pdist(rows, "sqeuclidean")).mean())) if len(rows) > 1 else 0.0


EVALUATION = Evaluation(
    name="geometry",
    part="geometry",
    figures=(
        Figure.count("pairs"),
        Figure("alignment", "Alignment", better="lower"),
        Figure("uniformity", "Uniformity", better="lower"),
    ),
    sets=lambda config: held_out_sets(config) if config.evaluation.geometry else (),
    read=read_held_out,
    arrange=partners,
    measure=measure,
    held_out=True,
)
