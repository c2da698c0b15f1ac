"""Near duplicates among millions of texts, and near repetitions of a reference.

Two texts are near duplicates if the Jaccard similarity of their shingles is at or above a
threshold. MinHash bands only propose pairs, and each pair is verified on its texts. So there are
no false positives; the recall is :meth:`Banding.share_meeting`, a little less in large buckets.

A text is compared only with the first of its bucket and with the one before it, so that a hundred
thousand texts of one template cost no more than any others. A dropped text drops its own near
duplicates too: of a chain of texts, each like the one before, only the first stays.

Normalisation lowers the case and turns every run of characters other than letters, marks and
digits into one space, with none at the ends. Shingles are all substrings of five characters. A
shorter text is one shingle; a text without any letter or digit has none and resembles nothing.

MinHash (Broder, "On the resemblance and containment of documents", 1997) gives two sets the same
value with a probability equal to their similarity. A signature of `bands` times `rows` values is
cut into bands; texts with equal rows in a band meet in a bucket (Leskovec, Rajaraman and
Ullman, "Mining of Massive Datasets", chapter 3).

Bucket hashes are shuffled as bytes, thousands in a row: a row each would cost several times as
much as the hashing. If a reference is small, executors know all its buckets, and Spark shuffles
only texts in one of them. All of it is numpy over a thousand texts at once, and depends neither on
the process nor on the platform; `rensa` and `datasketch` were no gain.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.spark.frames import Kept, Scratch

SHINGLE = 5
"""Characters of a shingle."""
RECALL = 0.98
"""Least probability that two texts at the threshold meet in a bucket."""
MAX_HASHES = 40
"""Most values of a signature."""

# Small enough for the arrays to stay in a processor's cache.
_CHUNK_CHARACTERS = 2**17
# A chunk has no more texts than characters and one.
_PLACE_BITS = np.uint64(18)
_SPACE = ord(" ")
_GAP = 0
# Not a character in Unicode. So many stand between two texts that no shingle has a part of both.
_NO_CHARACTER = "\uffff"
_END = _NO_CHARACTER * (SHINGLE - 1)
_CODE_POINTS = 0x110000
# No letter has a code point above.
_LETTERS_END = 0x40000
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SEED = 17

Codes = npt.NDArray[np.uint32]
Hashes = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
Similarities = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Banding:
    """The cut of a signature: `bands` of `rows` values; a text lies in one bucket for each band."""

    bands: int
    rows: int

    def share_meeting(self, similarity: float) -> float:
        """Return the probability that two texts of a similarity meet in a bucket: the S-curve."""
        return float(1 - (1 - similarity**self.rows) ** self.bands)


def banding(threshold: float) -> Banding:
    """Return the most selective bands with a recall of :data:`RECALL` at a Jaccard threshold.

    The threshold is above 0 and at most 1. More rows keep more of the unlike texts apart, and need
    more bands for the like ones to meet. It takes the most rows within :data:`MAX_HASHES` values of
    a signature: at 0.9, 6 bands of 6 rows (0.989 of the pairs meet); at 0.8, 8 of 4 (0.985); at
    0.7, 10 of 3 (0.985); at 0.5, 14 of 2 (0.982). Below 0.1 there are 40 of 1, with a lower recall.
    """
    for rows in range(MAX_HASHES, 0, -1):
        for bands in range(1, MAX_HASHES // rows + 1):
            if Banding(bands, rows).share_meeting(threshold) >= RECALL:
                return Banding(bands, rows)
    return Banding(MAX_HASHES, 1)


@dataclass(frozen=True)
class NormalisedTexts:
    """Normalised texts in one array of code points, with their characters in `lengths`.

    In `codes` a space stands before each text, four zeros at least after it.
    """

    codes: Codes
    starts: Integers
    lengths: Integers

    def strings(self) -> list[str]:
        """Return the texts one by one."""
        joined = self.codes.astype("<u4").tobytes().decode("utf-32-le")
        ends = self.starts + self.lengths
        return [joined[i:j] for i, j in zip(self.starts.tolist(), ends.tolist(), strict=True)]


def normalise(texts: Sequence[str]) -> NormalisedTexts:
    """Normalise all texts in one pass."""
    # With a line feed in front, a separator stands before every word of a text. One space of it
    # stays: between two words, or before the first. A text may hold the end character, though it is
    # none of Unicode: a space replaces it, as it does every separator.
    joined = "".join([f"\n{text.replace(_NO_CHARACTER, ' ')}{_END}" for text in texts])
    encoded = joined.encode("utf-32-le")
    codes = _normal_characters()[np.frombuffer(encoded, dtype="<u4")]
    kept = codes != _SPACE
    kept[:-1] |= codes[1:] > _SPACE
    codes = codes[kept]
    ends = np.flatnonzero(codes == _GAP)[:: len(_END)]
    starts = np.append(0, ends + len(_END))[:-1]
    starts = np.minimum(starts + 1, ends)
    return NormalisedTexts(codes, starts, ends - starts)


@cache
def _normal_characters() -> Codes:
    """Return the new value of each code point: its lower case, a space, or the gap between texts.

    A lower case of two characters gives the first of them.
    """
    table = np.full(_CODE_POINTS, _SPACE, dtype=np.uint32)
    for code in range(_LETTERS_END):
        if _is_of_word(chr(code)):
            table[code] = ord(chr(code).lower()[0])
    table[ord(_NO_CHARACTER)] = _GAP
    return table


def _is_of_word(character: str) -> bool:
    category = unicodedata.category(character)
    # Variation selectors are marks as well, but on emoji.
    is_mark = category in ("Mn", "Mc") and not "\ufe00" <= character <= "\ufe0f"
    return is_mark or category[0] in "LN"


def shingle_hashes(texts: NormalisedTexts) -> tuple[Hashes, Integers]:
    """Return the hashes of all shingles, text by text, and the number of shingles of each text.

    Equal shingles have equal hashes; a repeated shingle of a text counts again.
    """
    codes, starts, lengths = texts.codes, texts.starts, texts.lengths
    hashes = np.zeros(max(len(codes) - SHINGLE + 1, 0), dtype=np.uint64)
    for place in range(SHINGLE):
        hashes *= _FACTOR
        hashes += codes[place : place + len(hashes)]
    is_shingle = (codes[: len(hashes)] != _GAP) & (codes[SHINGLE - 1 :] != _GAP)
    # The space in front is no part of a text, and zeros follow a short text.
    begins = starts[lengths > 0]
    is_shingle[begins - 1] = False
    is_shingle[begins] = True
    counts = np.where(lengths > 0, np.maximum(lengths - SHINGLE + 1, 1), 0)
    return _mixed(hashes[is_shingle]), counts


def _mixed(hashes: Hashes) -> Hashes:
    """Mix the bits as SplitMix64 does (Steele, Lea and Flood, 2014): each depends on every one."""
    hashes ^= hashes >> np.uint64(30)
    hashes *= np.uint64(0xBF58476D1CE4E5B9)
    hashes ^= hashes >> np.uint64(27)
    hashes *= np.uint64(0x94D049BB133111EB)
    hashes ^= hashes >> np.uint64(31)
    return hashes


def similarities(left: Sequence[str], right: Sequence[str]) -> Similarities:
    """Return the Jaccard similarity of each text on the left and the one on the right.

    Shingles are compared by hashes of 45 bits: in a thousand million pairs of sentences, about one
    result is a shingle off.
    """
    lengths = [len(first) + len(second) for first, second in zip(left, right, strict=True)]
    found = [_chunk_similarities(left[chunk], right[chunk]) for chunk in _chunks(lengths)]
    return np.concatenate([np.empty(0), *found])


def _chunk_similarities(left: Sequence[str], right: Sequence[str]) -> Similarities:
    hashes, counts = shingle_hashes(normalise([*left, *right]))
    # The pair goes into the highest bits and the side into the lowest: one sort brings equal
    # shingles of a side together, and next to them those of the other side.
    pairs = np.tile(np.arange(len(left), dtype=np.uint64), 2)
    sides = np.repeat(np.array([0, 1], dtype=np.uint64), len(left))
    hashes >>= _PLACE_BITS
    hashes &= ~np.uint64(1)
    hashes |= np.repeat(pairs << np.uint64(64) - _PLACE_BITS | sides, counts)
    hashes.sort()
    distinct = hashes[np.append(True, hashes[1:] != hashes[:-1])[: len(hashes)]]
    common = distinct[1:][distinct[1:] ^ distinct[:-1] == 1]
    in_both, in_all = _sizes(common, len(left)), _sizes(distinct, len(left))
    found: Similarities = in_both / np.maximum(in_all - in_both, 1)
    return found


def _sizes(shingles: Hashes, pairs: int) -> Integers:
    return np.bincount((shingles >> np.uint64(64) - _PLACE_BITS).astype(np.int64), minlength=pairs)


def band_hashes(texts: Sequence[str], bands: Banding) -> tuple[Hashes, Booleans]:
    """Return the buckets [texts with shingles, bands], and a mask of the texts with shingles."""
    chunks = _chunks([len(text) for text in texts])
    none = np.empty((0, bands.bands), dtype=np.uint64), np.empty(0, dtype=np.bool_)
    found = zip(none, *(_chunk_bands(texts[chunk], bands) for chunk in chunks), strict=True)
    hashes, has_shingles = map(np.concatenate, found)
    return hashes, has_shingles


def _chunk_bands(texts: Sequence[str], bands: Banding) -> tuple[Hashes, Booleans]:
    hashes, counts = shingle_hashes(normalise(texts))
    shingles = hashes.astype(np.uint32)
    has_shingles = counts > 0
    begins = (np.cumsum(counts) - counts)[has_shingles]
    buckets = np.empty((len(begins), bands.bands), dtype=np.uint64)
    permuted = np.empty_like(shingles)
    factors = _permutations(bands.bands * bands.rows).reshape(bands.bands, bands.rows)
    for band in range(bands.bands):
        bucket = np.full(len(begins), band, dtype=np.uint64)
        for factor in factors[band]:
            np.multiply(shingles, factor, out=permuted)
            bucket = _mixed(bucket * _FACTOR ^ np.minimum.reduceat(permuted, begins))
        buckets[:, band] = bucket
    return buckets, has_shingles


@cache
def _permutations(count: int) -> Codes:
    """Return odd factors: multiplying by one permutes the integers of 32 bits."""
    # numpy keeps the raw output of a bit generator for good, not that of `Generator`.
    raw = np.random.PCG64(_SEED).random_raw(count) >> np.uint64(32)
    return raw.astype(np.uint32) | np.uint32(1)


def _chunks(lengths: Sequence[int]) -> Iterator[slice]:
    chunks = (np.cumsum(lengths) + np.arange(len(lengths))) // _CHUNK_CHARACTERS
    limits = [0, *(np.flatnonzero(np.diff(chunks)) + 1).tolist(), len(lengths)]
    return (slice(start, stop) for start, stop in pairwise(limits) if start < stop)


MAX_REFERENCES = 16
"""Most texts of a reference to compare with a text in one bucket."""

_ENTRIES_PER_BLOCK = 2**19
_MOST_KNOWN = 2**19
_PLACES_PER_BUCKET = 64
_REFERENCE, _TEXT = 0, 1
_ENTRY = np.dtype([("bucket", "<u8"), ("order", "<i8"), ("key", "<i8")])
BLOCK_ROWS = "block int, entries binary"
_PAIR_ROWS = "key long, other long"
_TEXT_ROWS = "key long, text string"

Entries = npt.NDArray[Any]
"""An entry (:data:`_ENTRY`) for each text and each of its buckets."""


def near_duplicates(texts: DataFrame, threshold: float, scratch: Scratch) -> DataFrame:
    """Return the near repetitions of earlier texts: `key`, each once.

    Arguments as for :func:`near_pairs`.
    """
    return near_pairs(texts, threshold, scratch).select("key").distinct()


def near_pairs(texts: DataFrame, threshold: float, scratch: Scratch) -> DataFrame:
    """Return texts (`key`) with their earlier near duplicates (`other`).

    The result depends on the texts and their order alone, not on partitions. The threshold is above
    0 and at most 1. The texts have `key` (long, unique), `order` (long; the key breaks ties) and
    `text` (not null). Spark computes them several times: keep them first if they cost more than
    reading a file.
    """
    texts = texts.select("key", "order", "text")
    bands, blocks = blocks_for(texts.count(), threshold)
    packed = texts.mapInArrow(partial(bucket_blocks, bands=bands, blocks=blocks), BLOCK_ROWS)
    proposed = scratch.keep(earlier_pairs_of(packed, blocks))
    return _verified(proposed, texts, texts, threshold, scratch)


def blocks_for(rows: int, threshold: float) -> tuple[Banding, int]:
    """Return the bands of a threshold, and the number of blocks for the buckets of the texts."""
    bands = banding(threshold)
    return bands, rows * bands.bands // _ENTRIES_PER_BLOCK + 1


def earlier_pairs_of(packed: DataFrame, blocks: int) -> DataFrame:
    """Return the pairs to be verified (`key`, `other`), each once, of packed buckets."""
    return _shuffled(packed, blocks).mapInArrow(earlier_pairs, _PAIR_ROWS).distinct()


def _shuffled(packed: DataFrame, blocks: int) -> DataFrame:
    """Return the entries of packed buckets, each bucket in one partition."""
    return packed.repartition(blocks, "block").select("entries")


def near_matches(
    texts: DataFrame, reference: Kept, threshold: float, scratch: Scratch
) -> DataFrame:
    """Return the near duplicates of a reference's texts: `key`, each once.

    Arguments as for :func:`near_match_pairs`.
    """
    return near_match_pairs(texts, reference, threshold, scratch).select("key").distinct()


def near_match_pairs(
    texts: DataFrame, reference: Kept, threshold: float, scratch: Scratch
) -> DataFrame:
    """Return texts (`key`) with their near duplicates in a reference (`other`).

    In a bucket with more than :data:`MAX_REFERENCES` texts of the reference, only so many are
    compared. The threshold is above 0 and at most 1. The texts have `key` (long; those of one key
    count once) and `text` (not null); the reference has both too, with unique keys.
    """
    texts = texts.select("key", "text")
    bands, known = banding(threshold), reference.frame.select("key", "text")
    if reference.rows * bands.bands <= _MOST_KNOWN:
        buckets, _ = band_hashes(reference.to_arrow()["text"].to_pylist(), bands)
        meeting = partial(texts_meeting, bands=bands, buckets=np.unique(buckets))
        texts = texts.mapInArrow(meeting, _TEXT_ROWS)
    kept = scratch.keep_counted(texts.dropDuplicates(["key"]))
    both = _with_order(kept.frame, _TEXT).unionByName(_with_order(known, _REFERENCE))
    _, blocks = blocks_for(kept.rows + reference.rows, threshold)
    packed = both.mapInArrow(partial(bucket_blocks, bands=bands, blocks=blocks), BLOCK_ROWS)
    found = _shuffled(packed, blocks).mapInArrow(reference_pairs, _PAIR_ROWS)
    proposed = scratch.keep(found.distinct())
    return _verified(proposed, kept.frame, known, threshold, scratch)


def _with_order(texts: DataFrame, order: int) -> DataFrame:
    return texts.withColumn("order", F.lit(order).cast("long"))


def _verified(
    pairs: DataFrame, texts: DataFrame, compared: DataFrame, threshold: float, scratch: Scratch
) -> DataFrame:
    """Return the pairs at or above the threshold."""
    # Spark then sorts fewer of the wide texts.
    others = compared.withColumnRenamed("key", "other").join(pairs, "other", "left_semi")
    with_texts = verifiable(pairs, texts, others.withColumnRenamed("other", "key"))
    verify = partial(similar_pairs, threshold=threshold)
    return scratch.keep(with_texts.mapInArrow(verify, _PAIR_ROWS))


def verifiable(pairs: DataFrame, texts: DataFrame, others: DataFrame) -> DataFrame:
    """Return pairs (`key`, `other`) with both texts, for :func:`similar_pairs`."""
    left = texts.select("key", "text")
    right = others.select(F.col("key").alias("other"), F.col("text").alias("other_text"))
    joined = pairs.join(left, "key").join(right, "other")
    return joined.select("key", "other", "text", "other_text")


def bucket_blocks(
    batches: Iterable[pa.RecordBatch], bands: Banding, blocks: int
) -> Iterator[pa.RecordBatch]:
    """Yield packed entries (`block`, `entries`) of texts (`key`, `order`, `text`).

    Runs on an executor. A bucket belongs to one of `blocks` blocks.
    """
    for batch in batches:
        keys, orders = (batch[name].to_numpy() for name in ("key", "order"))
        entries = entries_of(keys, orders, batch["text"].to_pylist(), bands)
        yield packed_entries(entries, blocks)


def entries_of(keys: Integers, orders: Integers, texts: Sequence[str], bands: Banding) -> Entries:
    """Return the entries of texts, text by text."""
    hashes, has_shingles = band_hashes(texts, bands)
    entries = np.empty(hashes.shape, dtype=_ENTRY)
    entries["bucket"] = hashes
    for name, values in (("order", orders), ("key", keys)):
        entries[name] = values[has_shingles][:, None]
    return entries.ravel()


def packed_entries(entries: Entries, blocks: int) -> pa.RecordBatch:
    """Return entries as bytes (`block`, `entries`), a row for each of the blocks with any.

    They are of any type whose field `bucket` (uint64) decides the block.
    """
    places = (entries["bucket"] % np.uint64(blocks)).astype(np.int32)
    by_block = np.argsort(places, kind="stable")
    found, begins = np.unique(places[by_block], return_index=True)
    parts = np.split(entries[by_block], begins[1:])[: len(found)]
    packed = pa.array([part.tobytes() for part in parts], pa.binary())
    return pa.RecordBatch.from_pydict({"block": pa.array(found), "entries": packed})


def texts_meeting(
    batches: Iterable[pa.RecordBatch], bands: Banding, buckets: Hashes
) -> Iterator[pa.RecordBatch]:
    """Yield the texts in one of `buckets`, and a few more. Runs on an executor."""
    # One look at a table in the processor's cache; later steps sort out the surplus texts.
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
    """Yield pairs to be verified (`key`, `other`) of whole buckets. Runs on an executor.

    Each text is paired with the first of its bucket and with the one before it: a bucket of n texts
    gives 2 (n - 1) pairs. `batches` has the column `entries` of :func:`bucket_blocks`.
    """
    entries, begins = shared_buckets(batches, _ENTRY)
    firsts = np.repeat(entries["key"][begins], np.diff(begins, append=len(entries)))
    later = np.delete(np.arange(len(entries)), begins)
    yield _pair_batch(entries["key"][later], firsts[later])
    yield _pair_batch(entries["key"][later], entries["key"][later - 1])


def reference_pairs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield pairs to be verified (`key`, `other`) of whole buckets. Runs on an executor.

    Each text is paired with up to :data:`MAX_REFERENCES` texts of the reference in its bucket.
    `batches` has the column `entries` of :func:`bucket_blocks`; the order of an entry tells texts
    from the reference.
    """
    entries, begins = shared_buckets(batches, _ENTRY)
    sizes = np.diff(begins, append=len(entries))
    # Entries of the reference come first in their bucket.
    is_text = entries["order"] == _TEXT
    references = np.repeat(sizes - np.add.reduceat(is_text, begins, dtype=np.int64), sizes)
    first = np.repeat(begins, sizes)
    for place in range(MAX_REFERENCES):
        compared = np.flatnonzero(is_text & (place < references))
        yield _pair_batch(entries["key"][compared], entries["key"][first[compared] + place])


def shared_buckets(
    batches: Iterable[pa.RecordBatch], kind: np.dtype[Any]
) -> tuple[Entries, Integers]:
    """Return entries in the order of their fields, without buckets of one, and where buckets begin.

    The entries are of :func:`packed_entries`, of the type `kind`, with `bucket` as the first field.
    """
    parts = [np.frombuffer(part, kind) for batch in batches for part in batch[0].to_pylist()]
    entries = np.concatenate([np.empty(0, kind), *parts])
    # Most buckets hold one entry, and are gone before the slow sort by several columns.
    by_bucket = np.argsort(entries["bucket"])
    starts = _starts(entries["bucket"][by_bucket])
    is_single = starts & np.append(starts[1:], True)[: len(starts)]
    entries = entries[by_bucket[~is_single]]
    entries = entries[np.lexsort([entries[name] for name in reversed(kind.names or ())])]
    return entries, np.flatnonzero(_starts(entries["bucket"]))


def _starts(ordered: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Mark the values different from the one before."""
    return np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]


def _pair_batch(keys: Integers, matches: Integers) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": pa.array(keys), "other": pa.array(matches)})


def similar_pairs(batches: Iterable[pa.RecordBatch], threshold: float) -> Iterator[pa.RecordBatch]:
    """Yield the pairs (`key`, `other`) at or above the threshold. Runs on an executor."""
    for batch in batches:
        found = similarities(batch["text"].to_pylist(), batch["other_text"].to_pylist())
        yield batch.select(["key", "other"]).filter(pa.array(found >= threshold))
