"""Executors write the lanes: granules into part files, and the index of each lane."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np
import pyarrow as pa

from pipelines.errors import PipelineError
from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.lanes.files import (
    IndexEntry,
    checksum,
    encode_index,
    index_path,
    lane_schema,
    padded_width,
    part_path,
    ragged,
    text_columns,
)

# What an example may be without, and the setting that names where it comes from.
OPTIONAL = {
    "positive": "corpus.pair_columns",
    "score": "corpus.score_column",
    "candidate_scores": "corpus.score_columns",
    "teacher": "teacher.model",
}
# Counted in every lane, for each source; a column's name counts the examples that have it.
COUNTED = ("granules", "tokens", "slots", *OPTIONAL)
_KEYS = ("lane int", "source int", "checksum string")
WRITTEN = ", ".join((*_KEYS, *(f"{name} long" for name in COUNTED)))


def write_lanes(
    batches: Iterable[pa.RecordBatch],
    *,
    folder: Location,
    columns: Sequence[str],
    granule: int,
    rows_per_part: int,
    vocabulary: int,
    first_rows: Sequence[int] = (0,),
) -> Iterator[pa.RecordBatch]:
    """Writes the lanes of one partition. Runs on an executor.

    Args:
        batches: Rows sorted by lane, row and slot; each lane whole, so that every ``granule``
            rows are one granule.
        columns: The optional columns that the lanes have.
        rows_per_part: Granules in a part file.
        vocabulary: Token ids are from 0 to one less than this.
        first_rows: The first row of each source.

    Yields:
        A row per lane and source with the checksum of the lane's index and what is ``COUNTED``:
        granules, tokens, tokens with padding, and the examples that have each of the optional
        columns.

    Raises:
        PipelineError: A text has ids that the vocabulary does not have.
    """
    writer = _LaneWriter(folder, lane_schema(columns), rows_per_part, vocabulary, first_rows)
    for rows in _regroup(batches, granule):
        yield from writer.add(rows)
    yield from writer.finish()


def _regroup(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Cuts a stream of rows into batches of ``size`` rows."""
    pending: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        pending.append(batch)
        count += batch.num_rows
        if count < size:
            continue
        table = pa.Table.from_batches(pending).combine_chunks()
        whole = table.to_batches()[0]
        for start in range(0, count - size + 1, size):
            yield whole.slice(start, size)
        rest = count % size
        pending = [whole.slice(count - rest)] if rest else []
        count = rest
    if count:
        raise PipelineError(f"{count} rows are not a whole granule of {size}")


class _LaneWriter:
    """Writes granules to the part files of one lane after the other, and the lane's index."""

    def __init__(
        self,
        folder: Location,
        schema: pa.Schema,
        rows_per_part: int,
        vocabulary: int,
        first_rows: Sequence[int],
    ) -> None:
        self._folder = folder
        self._schema = schema
        self._rows_per_part = rows_per_part
        self._vocabulary = vocabulary
        self._first_rows = first_rows
        self._lane = -1
        # Of each source.
        self._counts: list[Counter[str]] = []
        self._index: list[IndexEntry] = []
        self._file: tuple[pa.OSFile, pa.RecordBatchFileWriter] | None = None
        self._path = folder
        self._part = ExitStack()

    def add(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Writes a granule; yields the summary of the lane before when a new one begins."""
        lane = rows.column("lane")[0].as_py()
        if lane != self._lane:
            yield from self.finish()
            self._lane, self._index = lane, []
            self._counts = [Counter() for _ in self._first_rows]
        granules = len(self._index)
        if granules % self._rows_per_part == 0:
            self._close_part()
            self._path = part_path(self._folder, lane, granules // self._rows_per_part)
            # An attempt that dies leaves a hidden file, and another one writes its own.
            aside = self._part.enter_context(storage.built_file(self._path))
            sink = pa.OSFile(str(aside), "wb")
            self._file = (sink, pa.ipc.new_file(sink, self._schema))
        batch = rows.select(self._schema.names).cast(self._schema)
        self._count(batch)
        self._write(batch)

    def _count(self, batch: pa.RecordBatch) -> None:
        counts = self._counts[bisect_right(self._first_rows, len(self._index)) - 1]
        counts["granules"] += 1
        for name in OPTIONAL:
            if name in self._schema.names:
                counts[name] += batch.num_rows - batch.column(name).null_count
        for column in text_columns(batch).values():
            ids, lengths = ragged(column)
            self._check_range(ids)
            counts["tokens"] += int(lengths.sum())
            counts["slots"] += len(lengths) * padded_width(lengths)

    def _check_range(self, ids: np.ndarray) -> None:
        least, most = int(ids.min(initial=0)), int(ids.max(initial=0))
        if least < 0 or most >= self._vocabulary:
            granule = len(self._index) % self._rows_per_part
            raise PipelineError(
                f"{self._path}: granule {granule} would have the token id "
                f"{least if least < 0 else most}, and the vocabulary has "
                f"{self._vocabulary} entries; the tokens are damaged, and "
                "`sentence-pipelines prepare` with prepared.reuse=false writes them anew"
            )

    def _write(self, batch: pa.RecordBatch) -> None:
        assert self._file is not None
        sink, file = self._file
        # The very bytes that the file gets, which end where it ends now.
        message = batch.serialize()
        file.write_batch(batch)
        offset = sink.tell() - message.size
        self._index.append(IndexEntry(offset, message.size, checksum(message)))

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Closes the lane, writes its index, and yields its summaries."""
        self._close_part()
        if self._lane >= 0:
            content, digest = encode_index(self._index)
            with storage.built_file(index_path(self._folder, self._lane)) as aside:
                aside.write_bytes(content)
            sources = len(self._first_rows)
            lane = {
                "lane": pa.array([self._lane] * sources, pa.int32()),
                "source": pa.array(range(sources), pa.int32()),
                "checksum": [digest] * sources,
            }
            counts = {name: [one[name] for one in self._counts] for name in COUNTED}
            yield pa.RecordBatch.from_pydict(lane | counts)

    def _close_part(self) -> None:
        if self._file is not None:
            sink, file = self._file
            file.close()
            sink.close()
            self._file = None
            self._part.close()
