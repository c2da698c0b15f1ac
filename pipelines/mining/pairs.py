"""Reads the pairs of a part, with the vectors of their texts. Runs on executors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.embedding.parts import read_rows
from pipelines.embedding.store import VectorTable, rows_at
from pipelines.embedding.vectors import vectors_of
from pipelines.evaluation.embedder import unit_length
from pipelines.evaluation.nearest import SCORE_DECIMALS
from pipelines.files.locations import Location, arrow_source
from pipelines.mining.anchors import Anchors
from pipelines.mining.staging import PLACE_BITS

GROUPS = "groups"
"""Column of documents: 64 bits for each of their groups."""


@dataclass(frozen=True)
class Texts:
    """The texts of a job, with their vectors; sent to executors.

    Attributes:
        documents: All that are searched.
        anchors: Those that are none of these; None where all are.
    """

    documents: VectorTable
    anchors: VectorTable | None


@dataclass(frozen=True)
class Pairs:
    """The pairs of a part.

    Attributes:
        rows: The different ones.
        anchors: The same as arrays.
        read: How many there were.
    """

    rows: pa.Table
    anchors: Anchors
    read: int


def read_pairs(file: Location, texts: Texts) -> Pairs:
    """The pairs of a part.

    Args:
        file: The pairs, sorted by anchor and positive.
        texts: What the places of the pairs are in.
    """
    with pq.ParquetFile(arrow_source(file)) as opened:
        rows = opened.read(use_threads=False)
    own = _positions(texts.documents, rows["own_at"])
    others = _positions(texts.anchors, rows["anchor_at"])
    positives = _positions(texts.documents, rows["positive_at"])
    is_other = np.diff(np.stack([own, others]), axis=1, prepend=-2).any(axis=0)
    numbers = np.cumsum(is_other) - 1
    is_first = is_other | (np.diff(positives, prepend=-2) != 0)
    size = sum(document.rows for document in texts.documents.files)
    kept = np.flatnonzero(is_first)
    vectors = _vectors_of_anchors(texts, own[kept], others[kept])
    matching = _vectors(texts.documents, positives[kept])
    scores = np.round(np.einsum("ij,ij->i", vectors, matching).astype(float), SCORE_DECIMALS)
    starts, groups, group_documents = _groups(rows["group_id"], numbers, texts.documents)
    anchors = Anchors(
        documents=size,
        ids=rows["id"].to_numpy()[kept],
        vectors=vectors,
        positive_scores=scores,
        numbers=numbers[kept],
        own=own[kept],
        positives=np.unique(numbers * size + positives),
        group_starts=starts,
        groups=groups,
        group_documents=group_documents,
    )
    return Pairs(rows.take(pa.array(kept)), anchors, rows.num_rows)


def _positions(table: VectorTable | None, places: pa.ChunkedArray) -> np.ndarray:
    """Positions in a table of the places of rows; -1 where there is none."""
    found = np.full(len(places), -1, np.int64)
    if table is None:
        return found
    present = places.is_valid().to_numpy()
    known = places.drop_null().to_numpy()
    buckets = {int(file.path.stem.rpartition("-")[2]): file.first for file in table.files}
    firsts = np.zeros(max(buckets) + 1, np.int64)
    firsts[list(buckets)] = list(buckets.values())
    found[present] = firsts[known >> PLACE_BITS] + (known & (2**PLACE_BITS - 1))
    return found


def _vectors_of_anchors(texts: Texts, own: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Those of documents where an anchor is known by none of its own."""
    vectors = np.empty((len(own), texts.documents.dimensions), np.float32)
    is_document = others < 0
    vectors[is_document] = _vectors(texts.documents, own[is_document])
    if texts.anchors is not None:
        vectors[~is_document] = _vectors(texts.anchors, others[~is_document])
    return vectors


def _vectors(table: VectorTable, positions: np.ndarray) -> np.ndarray:
    if not len(positions):
        return np.empty((0, table.dimensions), np.float32)
    return unit_length(vectors_of(rows_at(table, positions, [table.vector]).column(table.vector)))


def _groups(
    ids: pa.ChunkedArray, numbers: np.ndarray, documents: VectorTable
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The last three of :class:`~pipelines.mining.anchors.Anchors`."""
    present = ids.is_valid().to_numpy()
    known, groups = np.unique(ids.drop_null().to_numpy(), return_inverse=True)
    anchors = int(numbers[-1]) + 1 if len(numbers) else 0
    of_anchors = np.unique(np.stack([numbers[present], groups], axis=1), axis=0)
    starts = np.searchsorted(of_anchors[:, 0], np.arange(anchors + 1))
    if not len(known):
        return starts, of_anchors[:, 1], np.empty(0, np.int64)
    found = [
        _documents_of_groups(known, documents, number) for number in range(len(documents.files))
    ]
    return starts, of_anchors[:, 1], np.sort(np.concatenate(found))


def _documents_of_groups(known: np.ndarray, table: VectorTable, number: int) -> np.ndarray:
    """Pairs of a group of this part and a document of a file, as one number each."""
    file = table.files[number]
    size = sum(one.rows for one in table.files)
    batches = list(read_rows(file.path, 0, file.rows, [GROUPS]))
    lists = pa.Table.from_batches(batches).column(GROUPS).combine_chunks()
    positions = np.repeat(
        file.first + np.arange(len(lists)), lists.value_lengths().to_numpy(zero_copy_only=False)
    )
    values = lists.flatten().to_numpy()
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    shared = known[places] == values
    pairs: np.ndarray = places[shared] * size + positions[shared]
    return pairs


def scores_of(
    anchors: Anchors, rows: np.ndarray, documents: np.ndarray, table: VectorTable
) -> np.ndarray:
    """Cosines of anchors and documents that no search has compared.

    Args:
        anchors: The pairs.
        rows: Of pairs.
        documents: Positions, as many.
        table: Has their vectors.
    """
    products = np.einsum("ij,ij->i", anchors.vectors[rows], _vectors(table, documents))
    scores: np.ndarray = np.round(products.astype(float), SCORE_DECIMALS)
    return scores
