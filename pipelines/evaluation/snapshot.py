"""The evaluations as plain Parquet files, for a process without Spark to measure by.

While training goes on its workers hold the executors, so checkpoints are measured by one process
beside the driver. What it needs is read and checked by Spark before the training starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipelines import storage
from pipelines.evaluation import geometry
from pipelines.evaluation.beir import read_retrieval_set
from pipelines.evaluation.classification import classification_figures, labelled_pairs
from pipelines.evaluation.embedder import EmbedderLoader
from pipelines.evaluation.pairs import cosine_batches
from pipelines.evaluation.retrieval import (
    DEPTH,
    held_out_tables,
    neighbour_batches,
    queries_of,
    query_batches,
    relevant_of,
    retrieval_metrics,
    without_themselves,
)
from pipelines.evaluation.similarity import scored_pairs, similarity_figures
from pipelines.evaluation.stage import Names, held_out_files
from pipelines.frames import write_path
from pipelines.settings import Config

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLAN = "plan.json"
BATCH_ROWS = 1024


@dataclass(frozen=True)
class Snapshot:
    """An evaluation and its tables.

    Attributes:
        name: What it is called.
        kind: How it is measured, of :data:`MEASURES`.
        tables: By name.
    """

    name: str
    kind: str
    tables: Mapping[str, DataFrame]


def read_snapshots(session: SparkSession, config: Config) -> list[Snapshot]:
    """Reads and checks all that ``evaluation`` asks for.

    Raises:
        InputError: Something cannot be read.
    """
    return list(_snapshots(session, config))


def write_snapshots(snapshots: Sequence[Snapshot], folder: Path) -> None:
    """Writes the tables, for :func:`measure`."""
    plan = []
    with storage.new_folder(folder) as aside:
        for number, snapshot in enumerate(snapshots):
            for name, frame in snapshot.tables.items():
                frame.write.parquet(write_path(_table_path(aside, number, name)))
            plan.append({"name": snapshot.name, "kind": snapshot.kind, "number": number})
        storage.write_json(aside / PLAN, plan)


def _snapshots(session: SparkSession, config: Config) -> Iterator[Snapshot]:
    wanted, names = config.evaluation, Names.of(config.evaluation)
    held_out = held_out_files(config)
    if held_out and (wanted.retrieval or wanted.geometry):
        asked, documents = held_out_tables(session, *held_out)
        if wanted.retrieval:
            graded = asked.selectExpr("*", "1D AS gain")
            yield Snapshot("retrieval", "retrieval", {"asked": graded, "documents": documents})
        if wanted.geometry:
            yield Snapshot("geometry", "geometry", {"pairs": geometry.partners(asked, documents)})
    for file, name in zip(wanted.similarity, names.similarity, strict=True):
        pairs = scored_pairs(session, file, wanted.similarity_columns)
        yield Snapshot(name, "similarity", {"pairs": pairs})
    for file, name in zip(wanted.classification, names.classification, strict=True):
        pairs = labelled_pairs(session, file, wanted.classification_columns)
        yield Snapshot(name, "classification", {"pairs": pairs})
    for given, name in zip(wanted.retrieval_sets, names.retrieval_sets, strict=True):
        tables = read_retrieval_set(session, given)
        both = {"asked": tables.asked, "documents": tables.documents}
        yield Snapshot(name, "retrieval_set", both)


def measure(folder: Path, load: EmbedderLoader) -> dict[str, dict[str, float]]:
    """Measures a model in this process, with the figures that the cluster gives.

    Args:
        folder: Of :func:`write_snapshots`.
        load: Loads the model.

    Returns:
        As :func:`pipelines.evaluation.stage.evaluate`.
    """
    embedder = load()
    return {
        line["name"]: MEASURES[line["kind"]](
            partial(_batches, folder, line["number"]), lambda: embedder
        )
        for line in storage.read_json(folder / PLAN)
    }


Tables = Callable[[str], Iterator[pa.RecordBatch]]


def _table_path(folder: Path, number: int, name: str) -> Path:
    return folder / f"{number:03}-{name}"


def _batches(folder: Path, number: int, name: str) -> Iterator[pa.RecordBatch]:
    from pyarrow import dataset

    table = dataset.dataset(_table_path(folder, number, name), format="parquet")
    for batch in table.to_batches(batch_size=BATCH_ROWS):
        if batch.num_rows:
            yield batch


def _column(batches: list[pa.RecordBatch], name: str) -> np.ndarray:
    return np.concatenate([batch.column(name).to_numpy() for batch in batches])


def _similarity(tables: Tables, load: EmbedderLoader) -> dict[str, float]:
    found = list(cosine_batches(load)(tables("pairs")))
    return similarity_figures(_column(found, "cosine"), _column(found, "score"))


def _classification(tables: Tables, load: EmbedderLoader) -> dict[str, float]:
    found = list(cosine_batches(load)(tables("pairs")))
    return classification_figures(_column(found, "cosine"), _column(found, "score"))


def _geometry(tables: Tables, load: EmbedderLoader) -> dict[str, float]:
    rows = _rows(geometry.embedding_batches(load)(tables("pairs")))
    return geometry.geometry_figures(
        *geometry.matrices((row["first"], row["second"]) for row in rows)
    )


def _retrieval(
    tables: Tables, load: EmbedderLoader, *, skip_themselves: bool = False
) -> dict[str, float]:
    asked = pa.Table.from_batches(list(tables("asked")))
    judged = asked.select(["query_id", "document_id", "gain"]).to_pylist()
    relevant = relevant_of(tuple(row.values()) for row in judged)
    texts = asked.group_by("query_id").aggregate([("text", "min")])
    texts = texts.rename_columns({"text_min": "text"}).select(["query_id", "text"])
    embedded = _rows(query_batches(load)(iter(texts.to_batches(BATCH_ROWS))))
    queries = queries_of(((row["query_id"], row["embedding"]) for row in embedded), relevant)

    documents = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal documents
        for batch in tables("documents"):
            documents += batch.num_rows
            yield batch

    shared = SimpleNamespace(value=queries.embeddings)
    ranked: dict[int, list[int]] = {}
    # The best first, since one task has seen all documents.
    for row in _rows(neighbour_batches(load, shared, DEPTH + 1)(counted())):
        ranked.setdefault(int(queries.ids[row["query"]]), []).append(row["document_id"])
    best = without_themselves(ranked) if skip_themselves else ranked
    return {
        "queries": len(queries.ids),
        "documents": documents,
        **retrieval_metrics(best, queries.relevant),
    }


def _retrieval_set(tables: Tables, load: EmbedderLoader) -> dict[str, float]:
    return _retrieval(tables, load, skip_themselves=True)


def _rows(batches: Any) -> Iterator[dict[str, Any]]:
    return (row for batch in batches for row in batch.to_pylist())


MEASURES: Mapping[str, Callable[[Tables, EmbedderLoader], dict[str, float]]] = {
    "retrieval": _retrieval,
    "geometry": _geometry,
    "similarity": _similarity,
    "classification": _classification,
    "retrieval_set": _retrieval_set,
}
