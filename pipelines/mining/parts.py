"""Makes the files of a table of negatives, each of the pairs of one file. Runs on executors."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.catalog import SEARCHES
from pipelines.embedding.part_files import SIGN_SECONDS
from pipelines.embedding.store import VectorTable, on_this_machine, rows_at
from pipelines.files import storage
from pipelines.files.locations import Location, RemotePath, arrow_source
from pipelines.mining.anchors import Anchors
from pipelines.mining.choosing import NONE, Negatives, choose, fill, wanted
from pipelines.mining.figures import PartFigures
from pipelines.mining.pairs import Pairs, Texts, read_pairs, scores_of
from pipelines.mining.searches import GetOn
from pipelines.mining.selection import Selection
from pipelines.settings import MiningSettings

FIGURES = b"sentence_pipelines.mining"
"""Key in the footer of a file: what became of its pairs."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What all parts of a job have in common; sent to executors.

    Attributes:
        settings: Of the job.
        pairs: Folder of the pairs.
        texts: Their texts, with vectors.
        folder: Of the output.
        attempts: Folder for signs of life, of this job alone.
        threads: CPU threads of a task.
    """

    settings: MiningSettings
    pairs: Location
    texts: Texts
    folder: Location
    attempts: Location
    threads: int


def make_parts(names: Iterable[str], *, work: Work) -> Iterator[int]:
    """Makes files of the output, each of which appears as a whole; yields pairs that it read."""
    pa.set_cpu_count(work.threads)
    documents = work.texts.documents
    if any(isinstance(file.path, RemotePath) for file in documents.files):
        # Every part reads all of them.
        documents = on_this_machine(documents)
    work = replace(work, texts=replace(work.texts, documents=documents))
    for name in names:
        yield _make(name, work)


def _make(name: str, work: Work) -> int:
    """Makes a file; returns how many pairs it read."""
    found = read_pairs(work.pairs / f"{name}.parquet", work.texts)
    settings, documents, anchors = work.settings, work.texts.documents, found.anchors
    selection = Selection(anchors, settings, wanted(settings))
    sign = work.attempts / f"{name}.sign"
    SEARCHES.load(settings.search).find(selection, documents, _signs(sign))
    negatives = mined = choose(selection.result(), anchors, settings)
    if settings.fill == "random":
        negatives = _scored(fill(mined, anchors, settings), anchors, documents)
    written = np.flatnonzero(negatives.is_whole)
    kept = Negatives(negatives.documents[written], negatives.scores[written])
    figures = PartFigures(
        pairs=found.read,
        repeated=found.read - len(anchors),
        short=len(anchors) - len(written),
        written=len(written),
        filled=int((~mined.is_whole[written]).sum()),
        dropped=selection.dropped(),
        negatives=kept.documents.size,
        of_own_group=_of_own_group(anchors, written, kept),
        positive_scores=float(anchors.positive_scores[written].sum()),
        negative_scores=float(kept.scores.sum()),
    )
    table = _table(found, written, kept, documents)
    with storage.built_file(work.folder / f"{name}.parquet") as path:
        told = table.replace_schema_metadata({FIGURES: figures.as_json()})
        pq.write_table(told, path, compression="zstd", write_page_checksum=True)
    sign.unlink(missing_ok=True)
    return found.read


def _signs(sign: Location) -> GetOn:
    """Has a file grow every so often, by which the driver sees that the task gets on."""
    told, count = time.monotonic(), 0

    def get_on() -> None:
        nonlocal told, count
        if time.monotonic() - told > SIGN_SECONDS:
            told, count = time.monotonic(), count + 1
            storage.write_text(sign, "." * count)

    return get_on


def _scored(negatives: Negatives, anchors: Anchors, documents: VectorTable) -> Negatives:
    """With the scores of documents that were drawn at random."""
    rows, places = np.nonzero((negatives.documents != NONE) & np.isnan(negatives.scores))
    scores = negatives.scores.copy()
    scores[rows, places] = scores_of(anchors, rows, negatives.documents[rows, places], documents)
    return Negatives(negatives.documents, scores)


def _of_own_group(anchors: Anchors, written: np.ndarray, kept: Negatives) -> int:
    rows = np.repeat(written, kept.documents.shape[1])
    return int(anchors.are_of_group(rows, kept.documents.reshape(-1)).sum())


def _table(found: Pairs, written: np.ndarray, kept: Negatives, documents: VectorTable) -> pa.Table:
    """The rows of the output: texts, scores, and what else the input has."""
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


def read_figures(file: Location) -> PartFigures:
    """What became of the pairs of a file.

    Raises:
        pyarrow.ArrowInvalid: The file is not whole.
    """
    footer = pq.read_schema(arrow_source(file)).metadata or {}
    return PartFigures.from_json(footer[FIGURES])
