"""From replies to training pairs: questions are parsed, filtered, and searched for their documents.

The round trip is the filter of Alberti, Andor, Pitler, Devlin and Collins, "Synthetic QA corpora
generation with roundtrip consistency", ACL 2019, arXiv:1906.05416, with a search in place of a
reader: a question whose own document is not among those found for it is too vague, or wrong.

Questions lie in files by a hash of their words, so the same question about several documents is in
one file. It is dropped: each of these documents would be a false negative of the others.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pipelines.files import storage
from pipelines.files.locations import Location, arrow_source
from pipelines.questions.filters import NOT_FOUND, REPEATED, Asked, Filters, plain_form
from pipelines.questions.generator import CUT
from pipelines.questions.parsing import questions_of
from pipelines.spark.frames import read_columns_of_any, read_parquet, shuffle_partitions
from pipelines.vectors.bm25 import ranks_of
from pipelines.vectors.embedding import vectors_of
from pipelines.vectors.exact import search_table
from pipelines.vectors.mining_texts import positions_of, write_buckets
from pipelines.vectors.nearest import unit_length
from pipelines.vectors.search import candidates, fuse_with_words
from pipelines.vectors.store import VectorTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUESTIONS = "questions"
"""Folder of the parsed questions."""
FIGURES = b"sentence_pipelines.questions"
"""Footer key of a file's :class:`QuestionFigures`."""
FILE_ROWS = 4096
"""Questions searched at a time."""
_ROWS_OF_SHUFFLE = 100_000
_READ = ("text", "title", "key", "prompt", "reply", "problem")


@dataclass(frozen=True)
class QuestionFigures:
    """The counts of a file, stored in its footer.

    Attributes:
        parsed: Questions found in the replies.
        kept: Rows of the output.
        dropped: Questions by the filter that dropped them.
    """

    parsed: int = 0
    kept: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Location) -> QuestionFigures:
        """Read the figures of a file.

        Raises:
            pyarrow.ArrowInvalid: The file is not whole.
        """
        footer = pq.read_schema(arrow_source(file)).metadata or {}
        return cls(**json.loads(footer[FIGURES]))

    @classmethod
    def total(cls, files: Iterable[QuestionFigures]) -> QuestionFigures:
        """Add up the figures of several files."""
        parsed, kept, dropped = 0, 0, Counter[str]()
        for one in files:
            parsed, kept = parsed + one.parsed, kept + one.kept
            dropped.update(one.dropped)
        return cls(parsed, kept, dict(dropped))


def write_questions(
    session: SparkSession,
    answers: Sequence[Location],
    documents: Location,
    folder: Location,
    *,
    replies: int,
    count: int,
    filters: Filters,
) -> Mapping[str, int]:
    """Parse the questions of answers into files; return the rows of each, by its bucket.

    ``replies`` is about the number of answers, ``count`` the most questions of each. Rows have the
    document's place in ``documents`` and the filter that dropped them; `asked` is the question,
    null for those.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know
    from pyspark.sql.types import StringType, StructField, StructType

    storage.discard_folder(folder)
    frame = read_columns_of_any(session, answers, _READ).where(F.col("reply").isNotNull())
    key_type = frame.schema["key"].dataType
    texts = ("plain", "question", "asked", "reason", "text", "title", "prompt")
    fields = [StructField(name, StringType()) for name in texts]
    schema = StructType([*fields, StructField("key", key_type)])
    parsed = frame.mapInArrow(partial(_parsed, count=count, filters=filters), schema)
    places = read_parquet(session, documents).select("text", "place")
    buckets = max(1, -(-replies * count // FILE_ROWS))
    with shuffle_partitions(session, replies * count // _ROWS_OF_SHUFFLE):
        placed = parsed.join(places, "text")
        order = ["plain", "text", "prompt", "question"]
        return write_buckets(placed, buckets, order, folder, placed=False)


def _parsed(
    batches: Iterable[pa.RecordBatch], *, count: int, filters: Filters
) -> Iterator[pa.RecordBatch]:
    """Yield the questions in replies. Runs on an executor."""
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            for question in questions_of(row["reply"], count, is_cut=row["problem"] == CUT):
                asked = Asked(question, row["prompt"], row["text"], row["title"])
                reason = filters.reason(asked)
                rows.append(
                    {
                        "plain": plain_form(question),
                        "question": question,
                        "asked": question if reason is None else None,
                        "reason": reason,
                        **{name: row[name] for name in ("text", "title", "prompt", "key")},
                    }
                )
        names = ("plain", "question", "asked", "reason", "text", "title", "prompt")
        schema = pa.schema([*((name, pa.string()) for name in names), batch.schema.field("key")])
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


@dataclass(frozen=True)
class RoundTrip:
    """The search of questions for their documents.

    A question's document must be among ``k`` found in ``documents``.
    """

    documents: VectorTable
    k: int


def repeated(rows: pa.Table) -> np.ndarray:
    """Return which questions repeat another one, bool [rows].

    Of a question's repetitions about one document the first stays; about several, none does. Only
    rows without a reason count.
    """
    documents: dict[str, set[str]] = {}
    counted = [reason is None for reason in rows["reason"].to_pylist()]
    plain, texts = rows["plain"].to_pylist(), rows["text"].to_pylist()
    for question, text, counts in zip(plain, texts, counted, strict=True):
        if counts:
            documents.setdefault(question, set()).add(text)
    seen: set[str] = set()
    found = np.zeros(len(counted), bool)
    for place, (question, counts) in enumerate(zip(plain, counted, strict=True)):
        if counts:
            found[place] = question in seen or len(documents[question]) > 1
            seen.add(question)
    return found


def ranks_of_documents(session: SparkSession | None, rows: pa.Table, trip: RoundTrip) -> np.ndarray:
    """Return the rank of each question's document by vectors and words, 0 beyond ``k``.

    ``rows`` are questions with vectors.
    """
    if not len(rows):
        return np.zeros(0, np.int64)
    vectors, table = unit_length(vectors_of(rows["vector"])), trip.documents
    questions = rows["question"].to_pylist()
    nearest = search_table(table, vectors, candidates(trip.k), session)
    found = fuse_with_words(table, questions, vectors, nearest, trip.k, session).found
    own = positions_of(table, rows["place"])
    ranks = np.zeros(len(rows), np.int64)
    is_own = found.documents == own[found.queries]
    ranks[found.queries[is_own]] = ranks_of(found)[is_own]
    return ranks


def write_pairs(
    session: SparkSession | None,
    file: Location,
    target: Location,
    trip: RoundTrip | None,
    carried: Sequence[str],
) -> None:
    """Filter the questions of a file as a whole, and write the others as training pairs.

    ``carried`` are the columns of documents to write, of `title` and `key`. Questions have vectors
    if there is a round trip; without a session this process searches.
    """
    with pq.ParquetFile(arrow_source(file)) as opened:
        rows = opened.read(use_threads=False)
    reasons = np.array(rows["reason"].to_pylist(), object)
    reasons[repeated(rows)] = REPEATED
    ranks = np.zeros(len(rows), np.int64)
    left = np.flatnonzero(reasons == None)  # noqa: E711 - element by element
    if trip is not None:
        ranks[left] = ranks_of_documents(session, rows.take(pa.array(left)), trip)
        reasons[left[ranks[left] == 0]] = NOT_FOUND
    kept = np.flatnonzero(reasons == None)  # noqa: E711 - element by element
    dropped = Counter(reason for reason in reasons.tolist() if reason is not None)
    figures = QuestionFigures(len(rows), len(kept), dict(dropped))
    pairs = _pairs(rows.take(pa.array(kept)), None if trip is None else ranks[kept], carried)
    stored = pairs.replace_schema_metadata({FIGURES: json.dumps(asdict(figures)).encode()})
    with storage.built_file(target) as path:
        pq.write_table(stored, path, compression="zstd", write_page_checksum=True)


def _pairs(rows: pa.Table, ranks: np.ndarray | None, carried: Sequence[str]) -> pa.Table:
    groups = [xxhash.xxh64_intdigest(text.encode()) >> 1 for text in rows["text"].to_pylist()]
    columns = {
        "anchor": rows["question"],
        "positive": rows["text"],
        "prompt": rows["prompt"],
        # The questions of a document are no negatives of each other's.
        "group": pa.array(groups, pa.int64()),
    }
    if ranks is not None:
        columns["rank"] = pa.array(ranks, pa.int32())
    columns |= {name: rows[name] for name in carried}
    return pa.table(columns)
