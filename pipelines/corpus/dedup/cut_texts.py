"""Texts cut out of documents: duplicates, near duplicates and neighbours, without moving the texts.

The units lie in files, each run of texts in one row group. Executors read them there. Spark
shuffles only numbers: keys and bucket hashes to find texts that are alike, and the places of texts
to drop back to their files. Through Spark's shuffles and sorts the texts themselves would cost
several times as much as all of this.

A text's number has the number of its part (of :func:`pipelines.spark.parquet_parts.find_parts`) in
the upper half and its row in the lower one. Marks are the rows of a part to drop, by their reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.corpus.cleaning.rules import text_key
from pipelines.corpus.dedup.marks import (
    DUPLICATE,
    EXCLUDED,
    NEAR_DUPLICATE,
    NEARLY_EXCLUDED,
    excluded_owners,
    threshold,
)
from pipelines.corpus.dedup.near_duplicates import (
    BLOCK_ROWS,
    Banding,
    Integers,
    blocks_for,
    earlier_pairs_of,
    entries_of,
    packed_entries,
    shared_buckets,
    similar_pairs,
    verifiable,
)
from pipelines.corpus.kept_units import below_one_another
from pipelines.corpus.pairs import NO_NEIGHBOUR
from pipelines.corpus.texts import text_level
from pipelines.corpus.unit_rows import SCHEMA, hash_of
from pipelines.files.locations import Location
from pipelines.settings import CorpusSettings
from pipelines.spark.frames import Scratch, Totals
from pipelines.spark.parquet_parts import (
    Part,
    data_files,
    frame_from_parts,
    parts_of_files,
    read_part,
    read_whole,
)

MARKED_SCHEMA = SCHEMA.append(pa.field("positive_key", pa.int64()))
"""The columns of marked units: `positive` is the text after a text, `positive_key` its key."""

_REASONS = (None, NO_NEIGHBOUR, NEARLY_EXCLUDED, EXCLUDED, NEAR_DUPLICATE, DUPLICATE)
"""The reasons of marks by number; of several reasons the highest number counts."""
_WANTED = 0
_MARK_ROWS = "part int, kind int, rows binary"
_TEXT_ROWS = "key long, text string"
_PLACES = ("unit", "run", "place", "id")
_KEY = np.dtype([("bucket", "<u8"), *((name, "<i8") for name in _PLACES)])
_KEYS_PER_BLOCK = 2**18
_KEY_COLUMNS = ("level", "reason", "group", "anchor_key", "unit", "run", "place")
_TEXT_COLUMNS = ("level", "reason", "group", "anchor", "anchor_key")

Rows = npt.NDArray[np.int32]
Marks = Mapping[int, Rows]
"""Rows of a part, by the number of their reason."""


@dataclass(frozen=True)
class NumberedPart(Part):
    """A part of the units with its number in the table."""

    number: int


def mark_cut_texts(
    session: SparkSession,
    folders: Sequence[Location],
    settings: CorpusSettings,
    excluded: DataFrame | None,
    scratch: Scratch,
) -> DataFrame:
    """Return the units in folders, with the reasons that other texts give; in files.

    It drops all but the first of equal texts, the near duplicates of earlier ones by hash, and
    texts like the `excluded` ones (column `text`). For pairs of neighbours, it gives each text the
    next one if nothing stood between them, not even a dropped text. `folders` hold units whose
    runs are whole in their row groups. A dropped row never makes another a duplicate.
    """
    files = [file for folder in folders for file in data_files(folder)]
    parts = [
        NumberedPart(**vars(part), number=number)
        for number, part in enumerate(parts_of_files(files))
    ]
    units = _Units(session, parts, settings, scratch)
    marks = [units.duplicates()]
    if threshold(settings):
        marks.append(units.near_duplicates(marks[0]))
    if excluded is not None:
        marks.append(units.excluded(excluded))
    work = partial(marked_units, parts=parts, settings=settings)
    frame, _ = scratch.keep_arrow(units.at_parts(marks), work, MARKED_SCHEMA, Totals(("level",)))
    return frame.frame


@dataclass(frozen=True)
class _Units:
    """The units of a source, in numbered parts."""

    session: SparkSession
    parts: Sequence[NumberedPart]
    settings: CorpusSettings
    scratch: Scratch

    def at_parts(self, marks: Sequence[DataFrame]) -> DataFrame:
        """Return the marks of all parts, at least one of each, those of a part in one partition."""
        nothing = (F.lit(_WANTED).alias("kind"), F.lit(None).cast("binary").alias("rows"))
        number = F.col("id").cast("int").alias("part")
        all_parts = self.session.range(len(self.parts)).select(number, *nothing)
        together = below_one_another([all_parts, *marks])
        # Hashes leave some partitions empty; with more of them, fewer parts share one.
        partitions = max(2 * len(self.parts), 1)
        return together.repartition(partitions, "part")

    def duplicates(self) -> DataFrame:
        """Return the marks of all but the first of equal texts, by unit, run and place."""
        rows = sum(part.rows for part in self.parts)
        blocks = rows // _KEYS_PER_BLOCK + 1
        known = partial(known_keys, settings=self.settings, blocks=blocks)
        unknown = partial(unknown_keys, settings=self.settings)
        packed = frame_from_parts(self.session, self.parts, known, BLOCK_ROWS)
        columns = ", ".join([*(f"{name} long" for name in _PLACES), "text string"])
        texts = frame_from_parts(self.session, self.parts, unknown, columns)
        keyed = texts.select(text_key(F.col("text")).alias("bucket"), *_PLACES)
        others = keyed.mapInArrow(partial(packed_keys, blocks=blocks), BLOCK_ROWS)
        shuffled = packed.unionByName(others).repartition(blocks, "block").select("entries")
        return self.scratch.keep(shuffled.mapInArrow(repeated_texts, _MARK_ROWS))

    def near_duplicates(self, duplicates: DataFrame) -> DataFrame:
        """Return the marks of near duplicates among the texts that are no duplicates."""
        least, scratch = threshold(self.settings), self.scratch
        rows = sum(part.rows for part in self.parts)
        bands, blocks = blocks_for(rows, least)
        work = partial(
            near_blocks, parts=self.parts, settings=self.settings, bands=bands, blocks=blocks
        )
        packed = self.at_parts([duplicates]).mapInArrow(work, BLOCK_ROWS)
        proposed = scratch.keep(earlier_pairs_of(packed, blocks))
        both = proposed.mapInArrow(wanted_texts, _MARK_ROWS)
        find = partial(found_texts, parts=self.parts)
        texts = scratch.keep(self.at_parts([both]).mapInArrow(find, _TEXT_ROWS))
        verify = partial(near_marks, threshold=least)
        return scratch.keep(verifiable(proposed, texts, texts).mapInArrow(verify, _MARK_ROWS))

    def excluded(self, excluded: DataFrame) -> DataFrame:
        """Return the marks of texts like the excluded ones."""
        work = partial(numbered_texts, settings=self.settings)
        owned = frame_from_parts(
            self.session, self.parts, work, "_owner long, text string, known long"
        )
        owners = excluded_owners(owned, excluded, self.settings, self.scratch)
        return owners.frame.mapInArrow(excluded_marks, _MARK_ROWS)


def _is_kept(batch: pa.RecordBatch | pa.Table, settings: CorpusSettings) -> np.ndarray:
    """Return whether each row is a text without a reason to drop it, bool [rows]."""
    kept = pc.and_(pc.equal(batch["level"], text_level(settings)), pc.is_null(batch["reason"]))
    if settings.group_column:
        kept = pc.and_(kept, pc.is_valid(batch["group"]))
    found: np.ndarray = pc.fill_null(kept, False).to_numpy(zero_copy_only=False)
    return found


def _numbered(
    parts: Iterable[NumberedPart], columns: Sequence[str]
) -> Iterator[tuple[pa.RecordBatch, Integers]]:
    """Yield batches of parts, with the numbers of their rows."""
    for part in parts:
        first = part.number << 32
        for batch in read_part(part, columns):
            yield batch, np.arange(first, first + batch.num_rows)
            first += batch.num_rows


def known_keys(
    parts: Iterator[NumberedPart], *, settings: CorpusSettings, blocks: int
) -> Iterator[pa.RecordBatch]:
    """Yield packed entries of the kept texts with known keys. Runs on an executor."""
    for batch, ids in _numbered(parts, _KEY_COLUMNS):
        kept = _is_kept(batch, settings) & batch["anchor_key"].is_valid().to_numpy(
            zero_copy_only=False
        )
        rows = batch.select(["anchor_key", "unit", "run", "place"]).filter(pa.array(kept))
        yield _packed_keys(rows.column(0), rows, ids[kept], blocks)


def unknown_keys(
    parts: Iterator[NumberedPart], *, settings: CorpusSettings
) -> Iterator[pa.RecordBatch]:
    """Yield the kept texts whose keys Spark has to compute. Runs on an executor."""
    for batch, ids in _numbered(parts, (*_KEY_COLUMNS, "anchor")):
        kept = _is_kept(batch, settings) & batch["anchor_key"].is_null().to_numpy(
            zero_copy_only=False
        )
        rows = batch.filter(pa.array(kept))
        columns = {name: rows[name] for name in ("unit", "run", "place")}
        columns |= {"id": pa.array(ids[kept]), "text": rows["anchor"]}
        yield pa.RecordBatch.from_pydict({name: columns[name] for name in (*_PLACES, "text")})


def packed_keys(batches: Iterable[pa.RecordBatch], *, blocks: int) -> Iterator[pa.RecordBatch]:
    """Yield packed entries of rows with the fields of an entry. Runs on an executor."""
    for batch in batches:
        yield _packed_keys(batch["bucket"], batch, batch["id"].to_numpy(), blocks)


def _packed_keys(
    keys: pa.Array, rows: pa.RecordBatch, ids: Integers, blocks: int
) -> pa.RecordBatch:
    entries = np.empty(len(ids), _KEY)
    entries["bucket"] = keys.to_numpy().view(np.uint64)
    for name in ("unit", "run", "place"):
        entries[name] = rows[name].to_numpy()
    entries["id"] = ids
    return packed_entries(entries, blocks)


def repeated_texts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the marks of all but the first text of each key. Runs on an executor."""
    entries, begins = shared_buckets(batches, _KEY)
    yield _marks(np.delete(entries["id"], begins), _REASONS.index(DUPLICATE))


def _marks(ids: Integers, kind: int) -> pa.RecordBatch:
    """Return packed marks of the texts with these numbers."""
    ids = np.unique(ids)
    parts, begins = np.unique(ids >> 32, return_index=True)
    rows = (ids & 0xFFFFFFFF).astype("<i4")
    packed = [run.tobytes() for run in np.split(rows, begins[1:])[: len(parts)]]
    return pa.RecordBatch.from_pydict(
        {
            "part": pa.array(parts.astype(np.int32)),
            "kind": pa.array(np.full(len(parts), kind, np.int32)),
            "rows": pa.array(packed, pa.binary()),
        }
    )


def _by_part(
    batches: Iterable[pa.RecordBatch], parts: Sequence[NumberedPart]
) -> Iterator[tuple[NumberedPart, Marks]]:
    """Yield each part of :meth:`_Units.at_parts` with its marks."""
    found: dict[int, dict[int, list[Rows]]] = {}
    for batch in batches:
        for number, kind, rows in zip(*map(pa.Array.to_pylist, batch.columns), strict=True):
            by_kind = found.setdefault(number, {})
            if rows is not None:
                by_kind.setdefault(kind, []).append(np.frombuffer(rows, "<i4"))
    for number, marks in sorted(found.items()):
        yield parts[number], {kind: np.concatenate(rows) for kind, rows in marks.items()}


def near_blocks(
    batches: Iterable[pa.RecordBatch],
    *,
    parts: Sequence[NumberedPart],
    settings: CorpusSettings,
    bands: Banding,
    blocks: int,
) -> Iterator[pa.RecordBatch]:
    """Yield packed bucket entries of the kept texts without marks. Runs on an executor.

    The order of the texts is that of their hashes.
    """
    pa.set_cpu_count(1)
    for part, marks in _by_part(batches, parts):
        is_marked = np.zeros(part.rows, np.bool_)
        for rows in marks.values():
            is_marked[rows] = True
        for batch, ids in _numbered([part], _TEXT_COLUMNS):
            kept = _is_kept(batch, settings) & ~is_marked[ids & 0xFFFFFFFF]
            texts = batch["anchor"].filter(pa.array(kept)).to_pylist()
            orders = np.fromiter(map(hash_of, texts), np.int64, len(texts))
            yield packed_entries(entries_of(ids[kept], orders, texts, bands), blocks)


def wanted_texts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the places of both texts of proposed pairs, as marks. Runs on an executor."""
    for batch in batches:
        ids = np.concatenate([batch[name].to_numpy() for name in ("key", "other")])
        yield _marks(ids, _WANTED)


def found_texts(
    batches: Iterable[pa.RecordBatch], *, parts: Sequence[NumberedPart]
) -> Iterator[pa.RecordBatch]:
    """Yield the texts at marked places (`key`, `text`), each once. Runs on an executor."""
    pa.set_cpu_count(1)
    for part, marks in _by_part(batches, parts):
        is_wanted = np.zeros(part.rows, np.bool_)
        for rows in marks.values():
            is_wanted[rows] = True
        for batch, ids in _numbered([part], ["anchor"]) if marks else ():
            wanted = is_wanted[ids & 0xFFFFFFFF]
            texts = batch["anchor"].filter(pa.array(wanted))
            yield pa.RecordBatch.from_pydict({"key": pa.array(ids[wanted]), "text": texts})


def near_marks(batches: Iterable[pa.RecordBatch], threshold: float) -> Iterator[pa.RecordBatch]:
    """Yield the marks of the later texts of pairs at the threshold. Runs on an executor."""
    for batch in similar_pairs(batches, threshold):
        yield _marks(batch["key"].to_numpy(), _REASONS.index(NEAR_DUPLICATE))


def numbered_texts(
    parts: Iterator[NumberedPart], *, settings: CorpusSettings
) -> Iterator[pa.RecordBatch]:
    """Yield all texts of the units, dropped ones too, and their known keys. Runs on an executor."""
    for batch, ids in _numbered(parts, ("level", "anchor", "anchor_key")):
        is_of_level = pc.equal(batch["level"], text_level(settings))
        is_text = pc.fill_null(pc.and_(is_of_level, pc.is_valid(batch["anchor"])), False)
        rows = batch.filter(is_text)
        owners = pa.array(ids[is_text.to_numpy(zero_copy_only=False)])
        columns = {"_owner": owners, "text": rows["anchor"], "known": rows["anchor_key"]}
        yield pa.RecordBatch.from_pydict(columns)


def excluded_marks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the marks of owners (`key`, `_reason`). Runs on an executor."""
    for batch in batches:
        for reason in (EXCLUDED, NEARLY_EXCLUDED):
            ids = batch["key"].filter(pc.equal(batch["_reason"], reason)).to_numpy()
            yield _marks(ids, _REASONS.index(reason))


def marked_units(
    batches: Iterable[pa.RecordBatch], *, parts: Sequence[NumberedPart], settings: CorpusSettings
) -> Iterator[pa.RecordBatch]:
    """Yield the units of parts with the reasons of their marks, and neighbours for `adjacent`.

    Runs on an executor. The columns are those of :data:`MARKED_SCHEMA`.
    """
    pa.set_cpu_count(1)
    for part, marks in _by_part(batches, parts):
        # Not batch by batch, which would cut runs.
        yield _marked(read_whole(part, SCHEMA), marks, settings)


def _marked(batch: pa.RecordBatch, marks: Marks, settings: CorpusSettings) -> pa.RecordBatch:
    reasons = np.zeros(batch.num_rows, np.int8)
    for kind in sorted(marks):
        reasons[marks[kind]] = kind
    is_kept = _is_kept(batch, settings)
    reasons[~is_kept] = 0
    columns: dict[str, Any] = {name: batch[name] for name in SCHEMA.names}
    columns["positive_key"] = pa.nulls(batch.num_rows, pa.int64())
    if settings.pairs == "adjacent":
        following, isolated = _neighbours(batch, np.flatnonzero(is_kept & (reasons == 0)))
        reasons[isolated] = _REASONS.index(NO_NEIGHBOUR)
        next_rows = pa.array(following, mask=following < 0)
        columns["positive"] = batch["anchor"].take(next_rows)
        columns["positive_key"] = batch["anchor_key"].take(next_rows)
    added = pa.array(_REASONS, pa.string()).take(pa.array(reasons))
    columns["reason"] = pc.coalesce(batch["reason"], added)
    return pa.RecordBatch.from_pydict(columns, MARKED_SCHEMA)


def _neighbours(batch: pa.RecordBatch, kept: Integers) -> tuple[Integers, Integers]:
    """Return the next text of each row, -1 for none, and the kept rows without any neighbour."""
    runs, places = (batch[name].to_numpy(zero_copy_only=False)[kept] for name in ("run", "place"))
    order = np.lexsort((places, runs))
    kept, runs, places = kept[order], runs[order], places[order]
    follows = (runs[1:] == runs[:-1]) & (places[1:] == places[:-1] + 1)
    following = np.full(batch.num_rows, -1)
    following[kept[:-1][follows]] = kept[1:][follows]
    has_neighbour = np.append(follows, False) | np.append(False, follows)
    return following, kept[~has_neighbour[: len(kept)]]
