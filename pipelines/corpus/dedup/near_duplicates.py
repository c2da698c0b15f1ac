"""Near duplicates among millions of texts, and texts that nearly are in a reference.

Two texts are near duplicates if the Jaccard similarity of their shingles is at or above a
threshold; see :mod:`pipelines.corpus.dedup.shingles`. MinHash bands only propose pairs, and each
pair is verified on its texts. So nothing is dropped that is not like another text, and what is like
one is missed at the rate of :meth:`~pipelines.corpus.dedup.shingles.Banding.share_meeting`, and a
little more in large buckets.

A text in a bucket is compared with the first of the bucket and with the one before it, never
with all: a hundred thousand texts made from one template cost no more than any others. It is
dropped if it is like an earlier one, even if that one is dropped as well; so of a chain, in which
each is like the one before, only the first stays.

Bucket hashes are shuffled as bytes, thousands in a row. As rows of their own, eight for each
text, their shuffle and sort would cost several times what all the hashing does. Where a reference
is small, executors know all its buckets, and only texts that lie in one of them are shuffled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.corpus.dedup.shingles import (
    Banding,
    Hashes,
    Integers,
    band_hashes,
    banding,
    similarities,
)
from pipelines.spark.frames import Kept, Scratch

MAX_REFERENCES = 16
"""Texts of a reference that a text is compared with in one bucket, at most."""

_ENTRIES_PER_BLOCK = 2**19
_MOST_KNOWN = 2**19
_PLACES_PER_BUCKET = 64
_REFERENCE, _TEXT = 0, 1
_ENTRY = np.dtype([("bucket", "<u8"), ("order", "<i8"), ("key", "<i8")])
_BLOCK_ROWS = "block int, entries binary"
_PAIR_ROWS = "key long, other long"
_TEXT_ROWS = "key long, text string"

Entries = npt.NDArray[Any]
"""An entry for each text and bucket that it lies in, of the type :data:`_ENTRY`."""


def near_duplicates(texts: DataFrame, threshold: float, scratch: Scratch) -> DataFrame:
    """The texts that nearly repeat an earlier one.

    Which these are depends on the texts and their order alone, not on partitions.

    Args:
        texts: `key` (long, unique), `order` (long; the key breaks ties) and `text` (not null).
            They are computed several times: what takes more than reading a file is kept before.
        threshold: Jaccard similarity, above 0 and at most 1.
        scratch: For what is computed in between.

    Returns:
        `key`: the texts to drop, each once.
    """
    return near_pairs(texts, threshold, scratch).select("key").distinct()


def near_pairs(texts: DataFrame, threshold: float, scratch: Scratch) -> DataFrame:
    """As :func:`near_duplicates`, with the earlier texts.

    Returns:
        `key` and `other`: the text, and an earlier one that it is like; one or more rows a text.
    """
    texts = texts.select("key", "order", "text")
    proposed = _blocks(texts, texts.count(), threshold).mapInArrow(earlier_pairs, _PAIR_ROWS)
    return _verified(scratch.keep(proposed.distinct()), texts, texts, threshold, scratch)


def near_matches(
    texts: DataFrame, reference: Kept, threshold: float, scratch: Scratch
) -> DataFrame:
    """The texts that are near duplicates of any text of a reference: `key`, each once.

    Arguments as for :func:`near_match_pairs`.
    """
    return near_match_pairs(texts, reference, threshold, scratch).select("key").distinct()


def near_match_pairs(
    texts: DataFrame, reference: Kept, threshold: float, scratch: Scratch
) -> DataFrame:
    """The texts that are near duplicates of texts of a reference, with these.

    Where a bucket holds more than :data:`MAX_REFERENCES` texts of the reference, only so many
    are looked at.

    Args:
        texts: `key` (long) and `text` (not null); those of one key count once.
        reference: `key` (long, unique) and `text` (not null).
        threshold: Jaccard similarity, above 0 and at most 1.
        scratch: For what is computed in between.

    Returns:
        `key` and `other`: a text, and one of the reference that it is like.
    """
    texts = texts.select("key", "text")
    bands, known = banding(threshold), reference.frame.select("key", "text")
    if reference.rows * bands.bands <= _MOST_KNOWN:
        buckets, _ = band_hashes(reference.to_arrow()["text"].to_pylist(), bands)
        meeting = partial(texts_meeting, bands=bands, buckets=np.unique(buckets))
        texts = texts.mapInArrow(meeting, _TEXT_ROWS)
    kept = scratch.keep_counted(texts.dropDuplicates(["key"]))
    both = _with_order(kept.frame, _TEXT).unionByName(_with_order(known, _REFERENCE))
    blocks = _blocks(both, kept.rows + reference.rows, threshold)
    proposed = scratch.keep(blocks.mapInArrow(reference_pairs, _PAIR_ROWS).distinct())
    return _verified(proposed, kept.frame, known, threshold, scratch)


def _with_order(texts: DataFrame, order: int) -> DataFrame:
    return texts.withColumn("order", F.lit(order).cast("long"))


def _blocks(texts: DataFrame, rows: int, threshold: float) -> DataFrame:
    """The buckets of all texts, of which there are so many; each bucket in one partition."""
    bands = banding(threshold)
    blocks = rows * bands.bands // _ENTRIES_PER_BLOCK + 1
    packed = texts.mapInArrow(partial(bucket_blocks, bands=bands, blocks=blocks), _BLOCK_ROWS)
    return packed.repartition(blocks, "block").select("entries")


def _verified(
    pairs: DataFrame, texts: DataFrame, others: DataFrame, threshold: float, scratch: Scratch
) -> DataFrame:
    """The pairs that are as similar as they have to be."""
    left = texts.select("key", "text")
    right = others.select(F.col("key").alias("other"), F.col("text").alias("other_text"))
    # What is not asked for is left out before the wide texts are sorted.
    right = right.join(pairs, "other", "left_semi")
    with_texts = pairs.join(left, "key").join(right, "other")
    similar = with_texts.select("key", "other", "text", "other_text").mapInArrow(
        partial(similar_pairs, threshold=threshold), _PAIR_ROWS
    )
    return scratch.keep(similar)


def bucket_blocks(
    batches: Iterable[pa.RecordBatch], bands: Banding, blocks: int
) -> Iterator[pa.RecordBatch]:
    """Texts in, packed entries out. Runs on an executor.

    Args:
        batches: Columns `key`, `order` and `text`.
        bands: How signatures are cut.
        blocks: The number of blocks; a bucket belongs to one of them.

    Returns:
        Batches of columns `block` and `entries`.
    """
    for batch in batches:
        hashes, has_shingles = band_hashes(batch["text"].to_pylist(), bands)
        entries = np.empty(hashes.shape, dtype=_ENTRY)
        entries["bucket"] = hashes
        for name in ("order", "key"):
            entries[name] = batch[name].to_numpy()[has_shingles][:, None]
        places = (hashes % np.uint64(blocks)).astype(np.int32).ravel()
        by_block = np.argsort(places, kind="stable")
        found, begins = np.unique(places[by_block], return_index=True)
        parts = np.split(entries.ravel()[by_block], begins[1:])[: len(found)]
        packed = pa.array([part.tobytes() for part in parts], pa.binary())
        yield pa.RecordBatch.from_pydict({"block": pa.array(found), "entries": packed})


def texts_meeting(
    batches: Iterable[pa.RecordBatch], bands: Banding, buckets: Hashes
) -> Iterator[pa.RecordBatch]:
    """The texts that lie in one of some buckets, and a few more. Runs on an executor.

    Args:
        batches: Columns `key` and `text`.
        bands: How signatures are cut.
        buckets: Each once.
    """
    # One look at a table that stays in the processor's cache; the others are sorted out by what
    # follows.
    places = 1 << int(len(buckets) * _PLACES_PER_BUCKET).bit_length()
    is_sought = np.zeros(places, np.bool_)
    last = np.uint64(places - 1)
    is_sought[buckets & last] = True
    for batch in batches:
        hashes, has_shingles = band_hashes(batch["text"].to_pylist(), bands)
        found = np.zeros(batch.num_rows, np.bool_)
        found[has_shingles] = is_sought[hashes & last].any(axis=1)
        yield batch.filter(pa.array(found))


def earlier_pairs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Whole buckets in, pairs to be verified out. Runs on an executor.

    Args:
        batches: The column `entries` of :func:`bucket_blocks`.

    Returns:
        Batches of columns `key` and `other`: a text with the first of its bucket, and with the
        one before it. A bucket of n texts gives 2 (n - 1) pairs.
    """
    entries, begins = _shared_buckets(batches)
    firsts = np.repeat(entries["key"][begins], np.diff(begins, append=len(entries)))
    later = np.delete(np.arange(len(entries)), begins)
    yield _pair_batch(entries["key"][later], firsts[later])
    yield _pair_batch(entries["key"][later], entries["key"][later - 1])


def reference_pairs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Whole buckets in, pairs to be verified out. Runs on an executor.

    Args:
        batches: The column `entries` of :func:`bucket_blocks`; the order of an entry says whether
            it is of a text or of the reference.

    Returns:
        Batches of columns `key` and `other`: a text with each text of the reference in its
        bucket, up to :data:`MAX_REFERENCES`.
    """
    entries, begins = _shared_buckets(batches)
    sizes = np.diff(begins, append=len(entries))
    # Entries of the reference come first in their bucket.
    is_text = entries["order"] == _TEXT
    references = np.repeat(sizes - np.add.reduceat(is_text, begins, dtype=np.int64), sizes)
    first = np.repeat(begins, sizes)
    for place in range(MAX_REFERENCES):
        compared = np.flatnonzero(is_text & (place < references))
        yield _pair_batch(entries["key"][compared], entries["key"][first[compared] + place])


def _shared_buckets(batches: Iterable[pa.RecordBatch]) -> tuple[Entries, Integers]:
    """The entries by bucket, order and key, without buckets of one; and where buckets begin."""
    parts = [np.frombuffer(part, _ENTRY) for batch in batches for part in batch[0].to_pylist()]
    entries = np.concatenate([np.empty(0, _ENTRY), *parts])
    # Most buckets hold one entry, and are gone before the slow sort by three columns.
    by_bucket = np.argsort(entries["bucket"])
    starts = _starts(entries["bucket"][by_bucket])
    alone = starts & np.append(starts[1:], True)[: len(starts)]
    entries = entries[by_bucket[~alone]]
    entries = entries[np.lexsort((entries["key"], entries["order"], entries["bucket"]))]
    return entries, np.flatnonzero(_starts(entries["bucket"]))


def _starts(ordered: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Where a value begins that is not the one before."""
    return np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]


def _pair_batch(keys: Integers, others: Integers) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": pa.array(keys), "other": pa.array(others)})


def similar_pairs(batches: Iterable[pa.RecordBatch], threshold: float) -> Iterator[pa.RecordBatch]:
    """Pairs in, those at or above the threshold out. Runs on an executor.

    Args:
        batches: Columns `key`, `other`, `text` and `other_text`.
        threshold: Jaccard similarity.

    Returns:
        Batches of columns `key` and `other`.
    """
    for batch in batches:
        found = similarities(batch["text"].to_pylist(), batch["other_text"].to_pylist())
        yield batch.select(["key", "other"]).filter(pa.array(found >= threshold))
