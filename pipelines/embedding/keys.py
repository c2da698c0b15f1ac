"""Which rows of a table are as they were: keys are compared, and digests of texts.

Rows of the new table and of the one before are read, their keys and texts only, and brought
together by key. What is found is small: for each row whose vector can be kept, where it stands in
either table, and how many rows are new, changed or gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.arrow_columns import as_text
from pipelines.embedding.partitions import Constants, with_constants
from pipelines.embedding.parts import read_rows
from pipelines.files.locations import Location, arrow_source

NEW, STAYS, OLD = 0, 1, 2
"""A row of a part that is to be made; of a part that is kept as it is; of one that goes."""

UNCHANGED, CHANGED, ADDED, GONE = "unchanged", "changed", "new", "gone"
TWICE, MISSING = "twice", "missing"
"""Kinds of rows that were matched, and of keys that cannot be used."""

ROWS = pa.schema(
    [
        ("key", pa.string()),
        ("side", pa.int8()),
        ("position", pa.int64()),
        ("digest", pa.binary()),
    ]
)
MATCHES = pa.schema(
    [
        ("kind", pa.string()),
        ("rows", pa.int64()),
        ("key", pa.string()),
        ("first", pa.int64()),
        ("second", pa.int64()),
    ]
)
"""`first` and `second`: positions in the table before and in the new one; of a key that is there
twice, both in the new one; null for what is only counted."""

DIGEST_BYTES = 16
"""Of 2^64 texts two would share a digest by chance."""
_NO_TEXT = b""


@dataclass(frozen=True)
class KeyScan:
    """Rows whose keys are read.

    Attributes:
        side: :data:`NEW`, :data:`STAYS` or :data:`OLD`.
        path: The file.
        start: The first row.
        stop: Behind the last one.
        first: Position of the first row in its table.
        key: Column of the keys.
        text: Column of the texts; None where they are not compared.
        constants: Columns in the names of the file's folders.
    """

    side: int
    path: Location
    start: int
    stop: int
    first: int
    key: str
    text: str | None
    constants: Constants = ()

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.stop - self.start


def scan_keys(scans: Iterable[KeyScan]) -> Iterator[pa.RecordBatch]:
    """The rows of :data:`ROWS` of files. Runs on an executor.

    Of rows that cannot be used, because a key is missing or there twice, these alone are given:
    they are enough to refuse the table, and may be any number.
    """
    for scan in scans:
        tables = [_rows(scan, place, batch) for place, batch in _batches(scan)]
        if tables:
            rows = pa.concat_tables(tables)
            # A table that was made without keys may hold any.
            kept = _with_key(rows) if scan.side == OLD else _usable(rows)
            yield from kept.combine_chunks().to_batches()


def _batches(scan: KeyScan) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The columns of a scan, and the positions of their first rows; none without the key."""
    there = pq.read_schema(arrow_source(scan.path)).names
    constants = {constant.name for constant in scan.constants}
    wanted = [name for name in dict.fromkeys((scan.key, scan.text)) if name is not None]
    if any(name not in there and name not in constants for name in wanted):
        return
    place = scan.first
    stored = [name for name in wanted if name in there]
    for batch in read_rows(scan.path, scan.start, scan.stop, stored):
        yield place, with_constants(batch, scan.constants)
        place += batch.num_rows


def _rows(scan: KeyScan, place: int, batch: pa.RecordBatch) -> pa.Table:
    count = batch.num_rows
    digests = pa.nulls(count, pa.binary()) if scan.text is None else digests_of(batch[scan.text])
    columns = [
        as_text(batch[scan.key]),
        pa.repeat(pa.scalar(scan.side, pa.int8()), count),
        pa.array(np.arange(place, place + count)),
        digests,
    ]
    return pa.Table.from_arrays(columns, schema=ROWS)


def digests_of(texts: pa.Array) -> pa.Array:
    """A digest for each text, one for those that are null, too."""
    found = (
        _NO_TEXT
        if text is None
        else hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()
        for text in as_text(texts).to_pylist()
    )
    return pa.array(found, pa.binary())


def _with_key(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.is_valid(rows["key"]))


def _usable(rows: pa.Table) -> pa.Table:
    keys = rows["key"]
    if keys.null_count:
        return rows.filter(pc.is_null(keys)).slice(0, 1)
    if pc.count_distinct(keys).as_py() == len(keys):
        return rows
    counts = pc.value_counts(keys)
    twice = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")[0]
    return rows.filter(pc.equal(keys, twice)).slice(0, 2)


def match(rows: pa.Table) -> pa.Table:
    """What has become of the rows of some keys.

    Args:
        rows: Of :data:`ROWS`; all that have these keys, in any order.

    Returns:
        Of :data:`MATCHES`: a row for each that keeps its vector, one for each key that cannot be
        used, and one with the number of rows of each kind that has any.
    """
    side = rows["side"]
    new, old = (rows.filter(pc.equal(side, one)) for one in (NEW, OLD))
    current = rows.filter(pc.not_equal(side, OLD))
    before = old.group_by(["key", "digest"], use_threads=False).aggregate([("position", "min")])
    # Equal texts have equal vectors, so that of rows with one key any may give it.
    kept = new.join(before, ["key", "digest"], join_type="inner", use_threads=False)
    others = new.join(before, ["key", "digest"], join_type="left anti", use_threads=False)
    known = _among(others["key"], old["key"])
    changed = pc.sum(known).as_py() or 0
    gone = pc.unique(old["key"].filter(pc.invert(_among(old["key"], current["key"]))))
    counts = {
        UNCHANGED: len(current) - len(new),
        CHANGED: changed,
        ADDED: len(others) - changed,
        GONE: len(gone),
    }
    return pa.concat_tables(
        [
            _matches(UNCHANGED, kept["key"], kept["position_min"], kept["position"]),
            _unusable(current),
            pa.Table.from_pylist(
                [{"kind": kind, "rows": rows} for kind, rows in counts.items() if rows],
                schema=MATCHES,
            ),
        ]
    )


def _unusable(current: pa.Table) -> pa.Table:
    """Keys of the new table that are missing, or there twice."""
    missing = current.filter(pc.is_null(current["key"]))
    positions = [("position", "count"), ("position", "min"), ("position", "max")]
    counted = _with_key(current).group_by("key", use_threads=False).aggregate(positions)
    twice = counted.filter(pc.greater(counted["position_count"], 1))
    nothing = pa.chunked_array([pa.nulls(len(missing), pa.int64())])
    return pa.concat_tables(
        [
            _matches(MISSING, missing["key"], nothing, missing["position"]),
            _matches(TWICE, twice["key"], twice["position_min"], twice["position_max"]),
        ]
    )


def _matches(
    kind: str, keys: pa.ChunkedArray, first: pa.ChunkedArray, second: pa.ChunkedArray
) -> pa.Table:
    ones = pa.chunked_array([pa.repeat(pa.scalar(1, pa.int64()), len(keys))])
    kinds = pa.chunked_array([pa.repeat(pa.scalar(kind, pa.string()), len(keys))])
    return pa.Table.from_arrays([kinds, ones, keys, first, second], schema=MATCHES)


def _among(values: pa.ChunkedArray, others: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.is_in(values, value_set=others.combine_chunks())


def match_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """:func:`match` of all rows of a partition. Runs on an executor."""
    rows = pa.Table.from_batches(list(batches), ROWS)
    if rows.num_rows:
        yield from match(rows).combine_chunks().to_batches()
