"""The report's view of the held-out pairs: a map of a sample, and neighbours of a few queries.

Rankings are those of the retrieval evaluation. It keeps no embeddings of documents, so executors
embed the documents of the map's pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pipelines.evaluation.embedder import embedder_loader
from pipelines.evaluation.retrieval import (
    DEPTH,
    EMBEDDED,
    Queries,
    Retrieved,
    embeddings_by_id,
    query_batches,
)
from pipelines.evaluation.rows import SparkRows, spread
from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.run_folder import RunFolder
from pipelines.libraries import left_out
from pipelines.settings import Config
from pipelines.spark.frames import read_parquet
from pipelines.vectors.nearest import unit_length

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PERPLEXITY = 15.0
"""About how many neighbours of a text decide its place."""
_SPREAD = 1e-6


def place_on_map(embeddings: np.ndarray, seed: int) -> np.ndarray:
    """Place texts so that neighbours by cosine stay together; long distances mean nothing.

    Places are [texts, 2], between -1 and 1, the middle at 0. All are 0 for too few, equal, NaN or
    infinite embeddings, and without scikit-learn. ``embeddings`` are [texts, width]; the same
    ``seed`` gives the same map.

    Source: van der Maaten and Hinton, "Visualizing Data using t-SNE", JMLR 9, 2008, started from
    the principal components.
    """
    vectors = unit_length(embeddings)
    if (
        len(vectors) < 4
        or not np.isfinite(vectors).all()
        or np.ptp(vectors, axis=0).max() < _SPREAD
    ):
        return np.zeros((len(vectors), 2))
    if left_out("the map of the report is", ["sklearn"]):
        return np.zeros((len(vectors), 2))
    from sklearn.manifold import TSNE

    # The exact method: the sums of Barnes-Hut depend on the number of processors.
    projection = TSNE(
        init="pca",
        method="exact",
        # scikit-learn demands less than the number of texts.
        perplexity=min(PERPLEXITY, (len(vectors) - 1) / 3),
        random_state=seed,
    )
    return _centred(projection.fit_transform(vectors.astype(np.float64)))


def turned_onto(places: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Rotate or mirror a map, [texts, 2], to match another one of the same texts best.

    Source: Schönemann, "A generalized solution of the orthogonal Procrustes problem", Psychometrika
    31, 1966.
    """
    from scipy.linalg import orthogonal_procrustes

    turn, _ = orthogonal_procrustes(places, target)
    return _centred(places @ turn)


def _centred(places: np.ndarray) -> np.ndarray:
    """Centre and scale places to a square from -1 to 1."""
    middle = (places.max(axis=0) + places.min(axis=0)) / 2
    reach = np.abs(places - middle).max()
    scaled: np.ndarray = (places - middle) / max(reach, 1e-12)
    return scaled


SHOWN_DOCUMENTS = 3
MAX_CHARACTERS = 400
_DECIMALS = 4

Texts: TypeAlias = Mapping[int, str]
ByModel: TypeAlias = Mapping[str, Retrieved]
"""Keys are `before` and `after`."""


def write_samples(
    session: SparkSession, config: Config, models: Mapping[str, Location], retrieved: ByModel
) -> Location | None:
    """Write ``samples.json`` into the run folder, for the report.

    ``evaluation.samples`` is the number of pairs, ``corpus.report_examples`` that of queries of
    each kind (found better, found worse, random); with 0 of these, the file holds no text. Without
    samples or retrieved documents there is no file: None.
    """
    path = RunFolder.of(config).samples
    if not config.evaluation.samples or models.keys() != retrieved.keys():
        path.unlink(missing_ok=True)
        return None
    held_out = PreparedFolder.of(config).corpus
    queries = next(iter(retrieved.values())).queries
    pairs = sample_pairs(queries, config.evaluation.samples)
    ranks = {name: ranks_of(found) for name, found in retrieved.items()}
    chosen = choose_queries(ranks["before"], ranks["after"], config.corpus.report_examples)
    wanted = {key for keys in chosen.values() for key in keys}
    neighbours = {
        document
        for found in retrieved.values()
        for key in wanted
        for document in found.ranked.get(key, ())[:SHOWN_DOCUMENTS]
    }
    neighbours |= {min(queries.relevant[key]) for key in wanted}
    asked = _texts(session, held_out.queries, "query_id", wanted | pairs.keys())
    shown = neighbours | set(pairs.values())
    documents = _texts(session, held_out.documents, "document_id", shown)
    if held_out.distractors.exists():
        documents |= _texts(session, held_out.distractors, "document_id", shown - documents.keys())
    pairs = {
        key: document for key, document in pairs.items() if key in asked and document in documents
    }
    storage.write_json(
        path,
        {
            "depth": DEPTH,
            "changes": count_changes(ranks["before"], ranks["after"]),
            "pairs": _pairs(session, config, models, retrieved, ranks, (pairs, asked, documents)),
            "neighbours": [
                {
                    "kind": kind,
                    "text": asked[key],
                    "right": documents[min(queries.relevant[key])],
                }
                | {
                    name: _found(key, found, ranks[name], documents)
                    for name, found in retrieved.items()
                }
                for kind, keys in chosen.items()
                for key in keys
            ],
        },
    )
    return path


def sample_pairs(queries: Queries, count: int) -> dict[int, int]:
    """Return queries with distinct relevant documents, by id: a sample, since ids are hashes."""
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for key in queries.ids.tolist():
        document = min(queries.relevant[key])
        if len(pairs) < count and document not in taken:
            pairs[key] = document
            taken.add(document)
    return pairs


def ranks_of(found: Retrieved) -> dict[int, int | None]:
    """Return the rank of the first relevant document by query; None if below the kept ranks."""
    first_ranks: dict[int, int | None] = {}
    for key, wanted in found.queries.relevant.items():
        ranked = enumerate(found.ranked.get(key, ()), 1)
        first_ranks[key] = next((rank for rank, document in ranked if document in wanted), None)
    return first_ranks


def choose_queries(
    before: Mapping[int, int | None], after: Mapping[int, int | None], count: int
) -> dict[str, list[int]]:
    """Choose queries by gain in reciprocal rank: the highest, the lowest, and random others."""
    gains = _gains(before, after)
    gained = [key for key in gains if gains[key] > 0]
    lost = [key for key in gains if gains[key] < 0]
    better = sorted(gained, key=lambda key: -gains[key])[:count]
    worse = sorted(lost, key=lambda key: gains[key])[:count]
    # Ids are hashes, so the first ids are a random choice, the same in every run.
    remaining = [key for key in gains if key not in {*better, *worse}]
    return {"better": better, "worse": worse, "random": remaining[:count]}


def count_changes(
    before: Mapping[int, int | None], after: Mapping[int, int | None]
) -> dict[str, int]:
    """Count the queries with a better, and with a worse rank of their document than before."""
    gains = _gains(before, after).values()
    return {
        "queries": len(gains),
        "better": sum(gain > 0 for gain in gains),
        "worse": sum(gain < 0 for gain in gains),
    }


def _gains(before: Mapping[int, int | None], after: Mapping[int, int | None]) -> dict[int, float]:
    old, new = (
        {key: 0.0 if rank is None else 1 / rank for key, rank in ranks.items()}
        for ranks in (before, after)
    )
    return {key: new[key] - old[key] for key in sorted(old)}


def _pairs(
    session: SparkSession,
    config: Config,
    models: Mapping[str, Location],
    retrieved: ByModel,
    ranks: Mapping[str, Mapping[int, int | None]],
    sample: tuple[Mapping[int, int], Texts, Texts],
) -> list[dict[str, Any]]:
    """Return the pairs of the map: texts, and of each model places, cosines and rank."""
    pairs, asked, documents = sample
    is_shown = bool(config.corpus.report_examples)
    lines: list[dict[str, Any]] = [
        {"texts": [asked[key], documents[document]] if is_shown else ["", ""]}
        for key, document in pairs.items()
    ]
    if not lines:
        return []
    rows = [(document, documents[document]) for document in pairs.values()]
    shown = SparkRows(spread(session.createDataFrame(rows, "query_id long, text string")))
    earlier: np.ndarray | None = None
    for name, folder in models.items():
        left = _rows_of(retrieved[name].queries, pairs)
        embed = query_batches(embedder_loader(session, folder), as_documents=True)
        by_id = embeddings_by_id(shown.map(embed, EMBEDDED))
        right = np.stack([by_id[document] for document in pairs.values()])
        places = place_on_map(np.concatenate([left, right]), config.training.seed)
        places = places if earlier is None else turned_onto(places, earlier)
        earlier = places
        cosines = (left * right).sum(axis=1)
        # The cosine of each query with the document of another pair.
        strange = (left * np.roll(right, 1, axis=0)).sum(axis=1)
        for row, (key, line) in enumerate(zip(pairs, lines, strict=True)):
            both = places[[row, row + len(pairs)]]
            line[name] = {
                "rank": ranks[name][key],
                "places": [_rounded(place) for place in both],
                "cosine": _rounded([cosines[row]])[0],
                "strange_cosine": _rounded([strange[row]])[0],
            }
    return lines


def _rows_of(queries: Queries, ids: Iterable[int]) -> np.ndarray:
    # The ids of `Queries` are ascending.
    rows: np.ndarray = queries.embeddings[np.searchsorted(queries.ids, list(ids))]
    return rows


def _rounded(values: Iterable[float]) -> list[float | None]:
    """Round, with null for NaN and infinities, which JSON does not have."""
    return [round(float(value), _DECIMALS) if np.isfinite(value) else None for value in values]


def _found(
    key: int, found: Retrieved, ranks: Mapping[int, int | None], documents: Texts
) -> dict[str, Any]:
    """Return the first documents of a query, and the rank of the relevant one."""
    wanted = found.queries.relevant[key]
    return {
        "rank": ranks[key],
        "documents": [
            {"text": documents[document], "right": document in wanted}
            for document in found.ranked.get(key, ())[:SHOWN_DOCUMENTS]
        ],
    }


def _texts(
    session: SparkSession, path: Location, column: str, ids: Iterable[int]
) -> dict[int, str]:
    """Read the texts of ids, truncated to :data:`MAX_CHARACTERS`."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    frame = read_parquet(session, path)
    wanted = frame.where(F.col(column).isin(list(ids))).dropna()
    rows = wanted.groupBy(column).agg(F.min("text").alias("text")).collect()
    return {row[column]: row["text"][:MAX_CHARACTERS] for row in rows}
