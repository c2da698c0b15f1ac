"""Files of hard negatives: pairs are read, searched and written. Runs on executors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.catalog import SEARCHES
from pipelines.files import storage
from pipelines.files.locations import Location, arrow_source
from pipelines.settings import MiningSettings
from pipelines.vectors.mining_texts import Anchors, positions_of
from pipelines.vectors.nearest import SCORE_DECIMALS
from pipelines.vectors.negatives import NONE, Negatives, Selection, choose, fill, wanted
from pipelines.vectors.parts import read_rows
from pipelines.vectors.store import VectorTable, on_this_machine, rows_at, vectors_at
from pipelines.vectors.table_job import life_signs

GROUPS = "groups"
"""Column of documents with the 64-bit ids of their groups."""
FIGURES = b"sentence_pipelines.mining"
"""Footer key of a file's :class:`PartFigures`."""


@dataclass(frozen=True)
class PartFigures:
    """The counts of a part's pairs, stored in the footer of its file.

    Attributes:
        pairs: Pairs read.
        repeated: Duplicates among them.
        short: Pairs left out because they have too few negatives.
        written: Rows of the output.
        filled: Rows of the output with negatives drawn at random.
        dropped: See :meth:`~pipelines.vectors.negatives.Selection.dropped`.
        negatives: Negatives written.
        of_own_group: Negatives written of their anchor's group.
        positive_scores: Sum of the scores of written positives; ``negative_scores`` likewise.
    """

    pairs: int = 0
    repeated: int = 0
    short: int = 0
    written: int = 0
    filled: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    negatives: int = 0
    of_own_group: int = 0
    positive_scores: float = 0.0
    negative_scores: float = 0.0

    @classmethod
    def read(cls, file: Location) -> PartFigures:
        """Read the figures of a file.

        Raises:
            pyarrow.ArrowInvalid: The file is not whole.
        """
        footer = pq.read_schema(arrow_source(file)).metadata or {}
        return cls(**json.loads(footer[FIGURES]))

    @classmethod
    def total(cls, parts: Iterable[PartFigures]) -> PartFigures:
        """Add up the figures of several parts, in their order."""
        sums: dict[str, Any] = dict.fromkeys(cls.__dataclass_fields__, 0)
        dropped: Counter[str] = Counter()
        for part in parts:
            figures = asdict(part)
            dropped.update(figures.pop("dropped"))
            for name, value in figures.items():
                sums[name] += value
        return cls(**{**sums, "dropped": dict(dropped)})


@dataclass(frozen=True)
class Texts:
    """The texts of a job, with their vectors; sent to executors.

    ``anchors`` are only the anchors outside ``documents``; None if all are documents.
    """

    documents: VectorTable
    anchors: VectorTable | None


@dataclass(frozen=True, kw_only=True)
class Work:
    """The inputs of all parts of a job; sent to executors. ``pairs`` is the folder of pairs."""

    settings: MiningSettings
    pairs: Location
    texts: Texts
    folder: Location
    threads: int


def mine_parts(names: Iterable[str], *, work: Work, attempts: Location) -> Iterator[int]:
    """Make files of the output, each atomically; yield the number of pairs read."""
    pa.set_cpu_count(work.threads)
    # Every part reads all documents, so they are copied once; an index is of the original files.
    table = work.texts.documents
    work = replace(work, texts=replace(work.texts, documents=on_this_machine(table)))
    for name in names:
        yield _make(name, work, table, attempts / f"{name}.sign")


def _make(name: str, work: Work, table: VectorTable, sign: Location) -> int:
    """Make a file; return the number of pairs read."""
    found = read_pairs(work.pairs / f"{name}.parquet", work.texts)
    settings, documents, anchors = work.settings, work.texts.documents, found.anchors
    selection = Selection(anchors, settings, wanted(settings))
    search = SEARCHES.load(settings.search)
    search.find(selection, table if search.in_place else documents, life_signs(sign))
    negatives = mined = choose(selection.result(), anchors, settings)
    if settings.fill == "random":
        negatives = _scored(fill(mined, anchors, settings), anchors, documents)
    written = np.flatnonzero(negatives.is_whole)
    kept = Negatives(negatives.documents[written], negatives.scores[written])
    rows_of = np.repeat(written, kept.documents.shape[1])
    figures = PartFigures(
        pairs=found.read,
        repeated=found.read - len(anchors),
        short=len(anchors) - len(written),
        written=len(written),
        filled=int((~mined.is_whole[written]).sum()),
        dropped=selection.dropped(),
        negatives=kept.documents.size,
        of_own_group=int(anchors.are_of_group(rows_of, kept.documents.reshape(-1)).sum()),
        positive_scores=float(anchors.positive_scores[written].sum()),
        negative_scores=float(kept.scores.sum()),
    )
    rows = _rows(found, written, kept, documents)
    with storage.built_file(work.folder / f"{name}.parquet") as path:
        stored = rows.replace_schema_metadata({FIGURES: json.dumps(asdict(figures)).encode()})
        pq.write_table(stored, path, compression="zstd", write_page_checksum=True)
    sign.unlink(missing_ok=True)
    return found.read


def _scored(negatives: Negatives, anchors: Anchors, documents: VectorTable) -> Negatives:
    """Add the scores of random documents: no search has compared them."""
    rows, places = np.nonzero((negatives.documents != NONE) & np.isnan(negatives.scores))
    drawn = vectors_at(documents, negatives.documents[rows, places])
    products = np.einsum("ij,ij->i", anchors.vectors[rows], drawn)
    scores = negatives.scores.copy()
    scores[rows, places] = np.round(products.astype(float), SCORE_DECIMALS)
    return Negatives(negatives.documents, scores)


@dataclass(frozen=True)
class Pairs:
    """The pairs of a part.

    ``rows`` are the distinct pairs, ``anchors`` the same as arrays; ``read`` counts duplicates too.
    """

    rows: pa.Table
    anchors: Anchors
    read: int


def read_pairs(file: Location, texts: Texts) -> Pairs:
    """Read the pairs of a part, sorted by anchor and positive, with places in ``texts``."""
    with pq.ParquetFile(arrow_source(file)) as opened:
        rows = opened.read(use_threads=False)
    own_documents = positions_of(texts.documents, rows["own_at"])
    anchor_places = positions_of(texts.anchors, rows["anchor_at"])
    positives = positions_of(texts.documents, rows["positive_at"])
    # No position is -2, so the first row always begins an anchor.
    places = np.stack([own_documents, anchor_places])
    is_new_anchor = np.diff(places, axis=1, prepend=-2).any(axis=0)
    numbers = np.cumsum(is_new_anchor) - 1
    is_first = is_new_anchor | (np.diff(positives, prepend=-2) != 0)
    kept = np.flatnonzero(is_first)
    vectors = _vectors_of_anchors(texts, own_documents[kept], anchor_places[kept])
    matching = vectors_at(texts.documents, positives[kept])
    scores = np.round(np.einsum("ij,ij->i", vectors, matching).astype(float), SCORE_DECIMALS)
    starts, groups, group_documents = _groups(rows["group_id"], numbers, texts.documents)
    anchors = Anchors(
        documents=texts.documents.rows,
        ids=rows["id"].to_numpy()[kept],
        vectors=vectors,
        positive_scores=scores,
        numbers=numbers[kept],
        own_documents=own_documents[kept],
        positives=np.unique(numbers * texts.documents.rows + positives),
        group_starts=starts,
        groups=groups,
        group_documents=group_documents,
    )
    return Pairs(rows.take(pa.array(kept)), anchors, rows.num_rows)


def _vectors_of_anchors(
    texts: Texts, own_documents: np.ndarray, anchor_places: np.ndarray
) -> np.ndarray:
    """Return the vectors of anchors: from ``anchor_places``, or from their documents for -1."""
    vectors = np.empty((len(own_documents), texts.documents.dimensions), np.float32)
    is_document = anchor_places < 0
    vectors[is_document] = vectors_at(texts.documents, own_documents[is_document])
    if texts.anchors is not None:
        vectors[~is_document] = vectors_at(texts.anchors, anchor_places[~is_document])
    return vectors


def _groups(
    ids: pa.ChunkedArray, numbers: np.ndarray, documents: VectorTable
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the last three fields of :class:`~pipelines.vectors.mining_texts.Anchors`."""
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
    """Return pairs of a group of this part and a document of a file, as one number each."""
    file = table.files[number]
    batches = list(read_rows(file.path, 0, file.rows, [GROUPS]))
    lists = pa.Table.from_batches(batches).column(GROUPS).combine_chunks()
    positions = np.repeat(
        file.first + np.arange(len(lists)), lists.value_lengths().to_numpy(zero_copy_only=False)
    )
    values = lists.flatten().to_numpy()
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    shared = known[places] == values
    pairs: np.ndarray = places[shared] * table.rows + positions[shared]
    return pairs


def _rows(found: Pairs, written: np.ndarray, kept: Negatives, documents: VectorTable) -> pa.Table:
    """Return the rows of the output: texts, scores, and the input's group and key."""
    assert documents.text is not None, "documents are texts"
    rows = found.rows.take(pa.array(written))
    count = kept.documents.shape[1]
    texts = rows_at(documents, kept.documents.T.reshape(-1), [documents.text])
    texts = texts.column(documents.text).combine_chunks()
    columns = {name: rows.column(name) for name in ("anchor", "positive")}
    for number in range(count):
        columns[f"negative_{number}"] = texts.slice(number * len(written), len(written))
    scores = found.anchors.positive_scores[written]
    columns["positive_score"] = pa.array(scores, pa.float32())
    for number in range(count):
        scored = np.ascontiguousarray(kept.scores[:, number])
        columns[f"negative_{number}_score"] = pa.array(scored, pa.float32())
    columns |= {name: rows.column(name) for name in ("group", "key") if name in rows.column_names}
    return pa.table(columns)
