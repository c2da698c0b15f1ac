"""Alignment and uniformity: how close partners lie, and how evenly all texts do.

Source: Wang and Isola, "Understanding contrastive representation learning through alignment and
uniformity on the hypersphere", ICML 2020.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from pipelines.evaluation.base import Evaluation, Figure, OnObserved, SnapshotTables, Tables
from pipelines.evaluation.embedder import Batches, EmbedderLoader, cores_for
from pipelines.evaluation.held_out import held_out_sets, read_held_out
from pipelines.vectors.nearest import unit_length

MAX_PAIRS = 1_000
"""Uniformity compares all texts of a side with one another; of more pairs the first are taken."""

_BLOCK_ROWS = 1024
SCHEMA = "first binary, second binary"


def measure(tables: Tables, load: EmbedderLoader, on_observed: OnObserved) -> dict[str, float]:
    """The figures of the held-out pairs: each query with a document that is relevant to it.

    Args:
        tables: `asked` and `documents`; see :func:`pipelines.evaluation.held_out.held_out_tables`.
        load: Loads the model on an executor.
        on_observed: Not called.
    """
    pairs = partners(tables)["pairs"]
    # The first pairs of all are a single partition.
    dealt = pairs.repartition(cores_for(pairs))
    rows = dealt.mapInArrow(embedding_batches(load), SCHEMA).collect()
    return geometry_figures(*matrices((row["first"], row["second"]) for row in rows))


def measure_snapshot(tables: SnapshotTables, load: EmbedderLoader) -> dict[str, float]:
    """The same in this process, on what :func:`partners` gives."""
    batches = embedding_batches(load)(tables("pairs"))
    rows = (row for batch in batches for row in batch.to_pylist())
    return geometry_figures(*matrices((row["first"], row["second"]) for row in rows))


def partners(tables: Tables) -> Tables:
    """The pairs that are compared, at most :data:`MAX_PAIRS`: ``text_0`` and ``text_1``."""
    texts = tables["documents"].withColumnRenamed("text", "text_1")
    pairs = tables["asked"].withColumnRenamed("text", "text_0").join(texts, "document_id")
    ordered = pairs.orderBy("query_id", "document_id")
    return {"pairs": ordered.limit(MAX_PAIRS).select("text_0", "text_1")}


def embedding_batches(load: EmbedderLoader) -> Batches:
    """Embeds ``text_0``, ``text_1``: ``first``, ``second`` (float32 of length 1, as bytes)."""

    def embed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        embedder = None
        for batch in batches:
            embedder = embedder or load()
            sides = []
            readers = {"text_0": embedder.queries, "text_1": embedder.documents}
            for name, embed_side in readers.items():
                embeddings = unit_length(embed_side(batch.column(name).to_pylist()))
                sides.append(pa.array([row.tobytes() for row in embeddings], pa.binary()))
            yield pa.RecordBatch.from_arrays(sides, names=["first", "second"])

    return embed


def matrices(rows: Iterable[Sequence[bytes]]) -> tuple[np.ndarray, np.ndarray]:
    """The two sides of rows of :func:`embedding_batches`, each [pairs, width]."""
    # In one order, whatever the partitions were, so that sums are the same to the last bit.
    first, second = zip(*sorted(tuple(row) for row in rows), strict=True)
    return _matrix(first), _matrix(second)


def geometry_figures(first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    """``pairs`` (a count), ``alignment`` and ``uniformity``; of both less is better.

    Alignment is the mean of the squared distance of partners. Uniformity is the logarithm of the
    mean of exp(-2 d²) over the distances d of all different texts of a side, and the mean of the
    two sides.

    Args:
        first: [pairs, width], rows of length 1.
        second: The same, of their partners.
    """
    distances = ((first.astype(np.float64) - second) ** 2).sum(axis=1)
    return {
        "pairs": len(first),
        "alignment": float(distances.mean()),
        "uniformity": (uniformity(first) + uniformity(second)) / 2,
    }


def uniformity(embeddings: np.ndarray) -> float:
    """The logarithm of the mean of exp(-2 d²) over the distances d of all different rows.

    A text that is there several times counts once. 0, the worst, if all are one.

    Args:
        embeddings: [texts, width], rows of length 1.
    """
    rows = np.unique(embeddings, axis=0).astype(np.float64)
    count = len(rows)
    if count < 2:
        return 0.0
    total = 0.0
    for start in range(0, count, _BLOCK_ROWS):
        block = rows[start : start + _BLOCK_ROWS]
        squared = np.maximum(2 - 2 * block @ rows.T, 0.0)
        total += float(np.exp(-2 * squared).sum())
    # Each row is at distance 0 from itself, which is no pair.
    return float(np.log((total - count) / (count * (count - 1))))


def _matrix(rows: Sequence[bytes]) -> np.ndarray:
    return np.stack([np.frombuffer(row, np.float32) for row in rows])


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
    measure=measure,
    snapshot=partners,
    measure_snapshot=measure_snapshot,
    held_out=True,
)
