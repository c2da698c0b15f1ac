"""Distinct texts, and the places of each pair's texts, for the search.

A row goes to the bucket given by the hash of its text, one file for each bucket. Its *place* is the
bucket and the row in it. The number of buckets depends on the number of rows, and rows are sorted
within buckets, so files are the same however Spark cuts its work. A pair is in the bucket of its
anchor, so one file has all pairs of an anchor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.errors import InputError
from pipelines.files import records, storage
from pipelines.files.locations import Location
from pipelines.spark.frames import read_parquet, shuffle_partitions
from pipelines.vectors.mining_inputs import INPUTS
from pipelines.vectors.parts import runs_of
from pipelines.vectors.sources import has_text
from pipelines.vectors.store import VectorTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, kw_only=True)
class Anchors:
    """Pairs of anchors and positives, and the documents known to belong to each anchor.

    Documents are positions in the table of all documents. Sets of pairs of small numbers are sorted
    arrays of `first * documents + second`, for vectorised lookups.

    Attributes:
        documents: Number of all documents.
        ids: int64 [pairs], the same for equal pairs of texts everywhere; may be negative.
        vectors: fp32 [pairs, dimensions], of the anchors, of length 1.
        positive_scores: [pairs], cosines of anchors and positives.
        numbers: int64 [pairs]: equal for pairs of the same anchor text, ascending from 0.
        own_documents: int64 [pairs]: the document with the anchor's text; -1 if there is none.
        positives: Sorted int64: pairs of an anchor's number and a document.
        group_starts: int64 [anchors + 1]: where the groups of an anchor begin in ``groups``.
        groups: int64: numbers of groups, anchor by anchor.
        group_documents: Sorted int64: pairs of a group's number and a document.
    """

    documents: int
    ids: np.ndarray
    vectors: np.ndarray
    positive_scores: np.ndarray
    numbers: np.ndarray
    own_documents: np.ndarray
    positives: np.ndarray
    group_starts: np.ndarray
    groups: np.ndarray
    group_documents: np.ndarray

    def __len__(self) -> int:
        return len(self.numbers)

    def lowest_positive_scores(self) -> np.ndarray:
        """Return, for each pair, the lowest positive score of its anchor: [pairs]."""
        lowest = np.full(int(self.numbers.max(initial=-1)) + 1, np.inf)
        np.minimum.at(lowest, self.numbers, self.positive_scores)
        found: np.ndarray = lowest[self.numbers]
        return found

    def are_positives(self, rows: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """Return whether each document (a position) is a known positive of the pair at its row."""
        return is_in(self.numbers[rows] * self.documents + documents, self.positives)

    def are_of_group(self, rows: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """Return whether each document shares a group with the anchor of the pair at its row."""
        found = np.zeros(len(rows), bool)
        if not len(self.group_documents):
            return found
        numbers = self.numbers[rows]
        counts = self.group_starts[numbers + 1] - self.group_starts[numbers]
        for start, stop in _anchor_runs(counts):
            run = counts[start:stop]
            rows_of = np.repeat(np.arange(start, stop), run)
            offsets = np.arange(len(rows_of)) - np.repeat(np.cumsum(run) - run, run)
            groups = self.groups[self.group_starts[numbers[rows_of]] + offsets]
            shared = is_in(groups * self.documents + documents[rows_of], self.group_documents)
            found[rows_of[shared]] = True
        return found


_LOOKED_UP = 2**21
"""Document-group pairs looked up at a time; one document may have more."""


def _anchor_runs(counts: np.ndarray) -> list[tuple[int, int]]:
    """Cut rows with these numbers of groups into runs of about :data:`_LOOKED_UP` groups."""
    if not len(counts):
        return []
    turns = np.cumsum(counts) // _LOOKED_UP
    starts = [0, *(np.flatnonzero(np.diff(turns)) + 1).tolist(), len(counts)]
    return list(pairwise(starts))


def is_in(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return whether each value is in a sorted array."""
    if not len(known):
        return np.zeros(len(values), bool)
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    found: np.ndarray = known[places] == values
    return found


DOCUMENTS, ANCHORS, PAIRS = "documents", "anchors", "pairs"
"""Folders: all documents, anchors outside the documents, and pairs."""
STAGED_FILE = "staged.json"
PLACE_BITS = 32
"""Bits of a place for the row in its bucket."""
LEAST_ROWS, MOST_ROWS = 512, 8192
PARTS = 64
"""Least number of parts, as far as there are enough rows."""
_BUCKET = "bucket"
_ROWS_OF_SHUFFLE = 100_000


@dataclass(frozen=True)
class Staged:
    """The counts of the collected texts and pairs.

    ``read`` and ``without_text`` (an anchor or a positive is missing) are rows of the pairs' input;
    ``rows`` are those of each file, by folder and by bucket number as text.
    """

    read: int
    without_text: int
    rows: Mapping[str, Mapping[str, int]]

    def names(self, folder: str) -> list[str]:
        """Return the files of a folder without their ending, in order."""
        return [part_name(int(bucket)) for bucket in self.rows[folder]]

    def write(self, folder: Location) -> None:
        """Mark the folder as complete."""
        storage.write_json(folder / STAGED_FILE, asdict(self))

    @classmethod
    def read_from(cls, folder: Location) -> Staged | None:
        """Return the counts of a folder; None if it is incomplete."""
        path = folder / STAGED_FILE
        known: Staged | None = records.read(path, cls) if path.is_file() else None
        return known


def part_name(bucket: int) -> str:
    """Return the name of a file, without its ending."""
    return f"part-{bucket:05d}"


def stage(
    pairs: DataFrame,
    documents: DataFrame | None,
    folder: Location,
    *,
    asked_rows: int | None,
    parts_of_file: int,
    alike: bool,
) -> Staged:
    """Write documents, anchors and pairs into their folders, and remove remains of a killed job.

    ``pairs`` and further ``documents`` are those of :mod:`pipelines.vectors.mining_inputs`.
    ``asked_rows`` of a file are None if the settings leave them open. A file of documents is as
    large as ``parts_of_file`` files of pairs. ``alike``: an anchor with the text of a document has
    the document's vector.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    for name in (DOCUMENTS, ANCHORS, PAIRS):
        storage.discard_folder(folder / name)
    read, kept = _counted(pairs)
    pairs = pairs.where(has_text("anchor", "positive"))
    texts = pairs.select(F.col("positive").alias("text"), "group_id")
    texts = texts if documents is None else texts.union(documents)
    rows = kept + (0 if documents is None else documents.count())
    size = asked_rows or int(np.clip(rows // PARTS, LEAST_ROWS, MOST_ROWS))
    buckets = -(-rows // (size * parts_of_file)) or 1, -(-kept // size) or 1
    session = pairs.sparkSession
    with shuffle_partitions(session, rows // _ROWS_OF_SHUFFLE):
        groups = F.sort_array(F.collect_set("group_id")).alias("groups")
        texts = texts.groupBy("text").agg(groups)
        found = {DOCUMENTS: _write_texts(texts, buckets[0], folder / DOCUMENTS)}
        searched = _placed(session, folder / DOCUMENTS)
        anchors = pairs.select(F.col("anchor").alias("text")).distinct()
        if alike:
            anchors = anchors.join(searched, "text", "left_anti")
        found[ANCHORS] = _write_texts(anchors, buckets[1], folder / ANCHORS)
        placed_anchors = _placed(session, folder / ANCHORS) if found[ANCHORS] else None
        found[PAIRS] = _write_pairs(pairs, searched, placed_anchors, folder / PAIRS, buckets[1])
    # Last, as the mark of a complete folder.
    staged = Staged(read, read - kept, found)
    staged.write(folder)
    return staged


def _counted(pairs: DataFrame) -> tuple[int, int]:
    """Count the rows, and the rows with both texts; refuse an input without any."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    kept = F.count(F.when(has_text("anchor", "positive"), 1)).alias("kept")
    found = pairs.agg(F.count(F.lit(1)).alias("read"), kept).collect()[0]
    if not found["kept"]:
        problem = f"none of {found['read']} rows has an anchor and a positive"
        raise InputError(INPUTS, problem, "Name a table of pairs")
    return found["read"], found["kept"]


def _write_texts(texts: DataFrame, buckets: int, folder: Location) -> Mapping[str, int]:
    return write_buckets(texts, buckets, ["text"], folder, placed=True)


def _write_pairs(
    pairs: DataFrame,
    searched: DataFrame,
    anchors: DataFrame | None,
    folder: Location,
    buckets: int,
) -> Mapping[str, int]:
    """Write the pairs with the places of their texts, sorted by texts, group and key."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    def places(frame: DataFrame, text: str, place: str) -> DataFrame:
        return frame.select(F.col("text").alias(text), F.col("place").alias(place))

    joined = pairs.join(places(searched, "positive", "positive_at"), "positive")
    joined = joined.join(places(searched, "anchor", "own_at"), "anchor", "left")
    if anchors is None:
        joined = joined.withColumn("anchor_at", F.lit(None).cast("long"))
    else:
        joined = joined.join(places(anchors, "anchor", "anchor_at"), "anchor", "left")
    # A hash of the texts, so the random choice of negatives does not depend on the order of pairs.
    joined = joined.withColumn("id", F.xxhash64("anchor", "positive"))
    known = [name for name in ("group", "key") if name in joined.columns]
    order = ["anchor", "positive", *known, "group_id"]
    return write_buckets(joined, buckets, order, folder, placed=False)


def _placed(session: SparkSession, folder: Location) -> DataFrame:
    return read_parquet(session, folder).select("text", "place")


def write_buckets(
    frame: DataFrame, buckets: int, order: Sequence[str], folder: Location, *, placed: bool
) -> Mapping[str, int]:
    """Have executors write one file for each bucket with rows, into a new folder.

    A hash of the first column of ``order`` decides the bucket; ``order`` sorts rows in it. With
    ``placed`` a column `place` is added. Return the rows of each file, by the number of the bucket,
    ascending.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema)
    bucket = F.pmod(F.xxhash64(order[0]), F.lit(buckets)).alias(_BUCKET)
    folder.mkdir(parents=True)
    rows = frame.select(bucket, "*").repartition(buckets, _BUCKET)
    write = partial(_write_buckets, folder=folder, schema=schema, placed=placed)
    written = rows.sortWithinPartitions(_BUCKET, *order).mapInArrow(
        write, f"{_BUCKET} long, rows long"
    )
    found = {row[_BUCKET]: row["rows"] for row in written.collect()}
    return {str(number): found[number] for number in sorted(found)}


def _write_buckets(
    batches: Iterable[pa.RecordBatch], *, folder: Location, schema: pa.Schema, placed: bool
) -> Iterator[pa.RecordBatch]:
    """Write rows, sorted by their bucket. Runs on an executor."""
    file_schema = schema.append(pa.field("place", pa.int64())) if placed else schema
    for bucket, runs in groupby(runs_of(batches, _BUCKET), key=itemgetter(0)):
        rows = 0
        with (
            storage.built_file(folder / f"{part_name(bucket)}.parquet") as aside,
            pq.ParquetWriter(aside, file_schema, compression="zstd") as writer,
        ):
            for _, run in runs:
                columns = [run.column(name).cast(schema.field(name).type) for name in schema.names]
                if placed:
                    place = (bucket << PLACE_BITS) + rows + np.arange(run.num_rows)
                    columns.append(pa.array(place, pa.int64()))
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=file_schema))
                rows += run.num_rows
        yield pa.RecordBatch.from_pydict({_BUCKET: [bucket], "rows": [rows]})


def positions_of(table: VectorTable | None, places: pa.ChunkedArray) -> np.ndarray:
    """Return the positions in a table of the places of rows; -1 for a null."""
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
