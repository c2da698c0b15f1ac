"""Texts dropped because of other texts: duplicates, near duplicates, evaluation texts.

The functions that mark take the rows of :func:`pipelines.corpus.pairs.hashed` and return them with
more reasons; :mod:`.cut_texts` marks texts cut out of documents. A dropped row never makes another
a duplicate.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.corpus.cleaning.redaction import redact_batches
from pipelines.corpus.cleaning.rules import clean_batches, text_key
from pipelines.corpus.dedup.near_duplicates import near_duplicates, near_matches
from pipelines.corpus.pairs import drops_duplicates, is_kept, known_keys, text_columns
from pipelines.corpus.texts import text_level
from pipelines.settings import CorpusSettings
from pipelines.spark.frames import Kept, Scratch

DUPLICATE = "duplicate"
NEAR_DUPLICATE = "near duplicate"
EXCLUDED = "in corpus.exclude"
NEARLY_EXCLUDED = "nearly in corpus.exclude"

DEFAULT_THRESHOLD = 0.8
"""The default threshold: the least Jaccard similarity of near duplicates."""
_SIDES = ("anchor", "positive", "negatives")
MOST_BROADCAST = 1_000_000
"""Most keys, of 8 bytes, to send to every executor."""


def threshold(settings: CorpusSettings) -> float:
    """Return the least similarity of near duplicates; 0 if there are none."""
    if settings.near_duplicates is not None:
        return settings.near_duplicates
    return DEFAULT_THRESHOLD if drops_duplicates(settings) else 0.0


def exclude_threshold(settings: CorpusSettings) -> float:
    """Return the least similarity of a text to one of `exclude`; 0 for equal texts only."""
    return DEFAULT_THRESHOLD if settings.near_duplicates is None else settings.near_duplicates


def mark_near_duplicates(rows: DataFrame, settings: CorpusSettings, scratch: Scratch) -> DataFrame:
    """Keep the first of nearly equal rows, by hash, in any order of the files.

    The texts of a row count as one.
    """
    if not threshold(settings):
        return rows
    key = F.xxhash64(*_SIDES)
    texts = (
        rows.where(is_kept(settings))
        .select(key.alias("key"), F.concat_ws("\n", *_SIDES).alias("text"))
        .withColumn("order", F.col("key"))
    )
    texts = scratch.keep(texts.dropDuplicates(["key"]))
    near = near_duplicates(texts, threshold(settings), scratch)
    found = scratch.keep_counted(near.withColumn("_reason", F.lit(NEAR_DUPLICATE)))
    marked = _mark_keys(rows, found, key, settings)
    # With keys in every executor, marking costs less than writing and reading the marked rows.
    return marked if found.rows <= MOST_BROADCAST else scratch.keep(marked)


def comparable(texts: DataFrame, settings: CorpusSettings) -> DataFrame:
    """Return texts of other files in the corpus's form: redacted and cleaned, none empty.

    The texts are in the column `text`; other columns are kept.
    """
    if settings.redact is not None:
        redact = partial(redact_batches, name=settings.redact, columns=["text"])
        texts = texts.mapInArrow(redact, texts.schema)
    cleaned = texts.mapInArrow(partial(clean_batches, columns=["text"]), texts.schema)
    return cleaned.where("text != ''")


def mark_excluded(
    rows: DataFrame, texts: DataFrame, settings: CorpusSettings, scratch: Scratch
) -> DataFrame:
    """Drop the rows with one of the texts in `texts` (column `text`), unfit for training.

    A row goes with its whole group, since the other texts of a group say the same. For that,
    dropped rows count as well.
    """
    sides = [
        F.struct(text.alias("text"), key.alias("known"))
        for text, key in zip(text_columns(settings), known_keys(settings), strict=True)
    ]
    owner = F.col("group")
    owned = (
        rows.where(F.col("level") == text_level(settings))
        .select(owner.alias("_owner"), F.inline(F.array(*sides)))
        .where("text is not null")
    )
    marks = excluded_owners(owned, texts, settings, scratch)
    return _mark_keys(rows, marks, owner, settings)


def excluded_owners(
    owned: DataFrame, texts: DataFrame, settings: CorpusSettings, scratch: Scratch
) -> Kept:
    """Return the owners of texts like `texts` (column `text`): `key`, each once, and `_reason`.

    `owned` has `_owner` (long), `text` and `known`, a known key of :func:`.rules.text_key` or null.
    """
    named = comparable(texts, settings).select(F.xxhash64("text").alias("key"), "text")
    reference = scratch.keep_counted(named.distinct())
    keys = reference.frame.select(text_key(F.col("text")).alias("_key")).distinct()
    key = text_key(F.col("text"), F.col("known"))
    exact = owned.withColumn("_key", key).join(keys, "_key", "left_semi")
    found = exact.select("_owner", F.lit(True).alias("_exactly"))
    similarity = exclude_threshold(settings)
    if similarity:
        by_key = owned.select(F.xxhash64("text").alias("key"), "text", "_owner")
        near = near_matches(by_key, reference, similarity, scratch)
        nearly = by_key.join(near, "key", "left_semi")
        found = found.unionByName(nearly.select("_owner", F.lit(False).alias("_exactly")))
    owners = found.groupBy(F.col("_owner").alias("key")).agg(F.max("_exactly").alias("_exactly"))
    reason = F.when(F.col("_exactly"), EXCLUDED).otherwise(NEARLY_EXCLUDED)
    return scratch.keep_counted(owners.select("key", reason.alias("_reason")))


def _mark_keys(rows: DataFrame, marks: Kept, key: Column, settings: CorpusSettings) -> DataFrame:
    """Give the kept rows the reason (`_reason`) of their key (`key`, each once)."""
    found = marks.frame.withColumnRenamed("key", "_found")
    # Spark would shuffle all rows before it sees how few keys there are.
    found = F.broadcast(found) if marks.rows <= MOST_BROADCAST else found
    marked = rows.join(found, key == F.col("_found"), "left")
    return _with_reason(marked, F.when(is_kept(settings), F.col("_reason")), rows.columns)


def _with_reason(
    rows: DataFrame, reason: Column, columns: Sequence[str] | None = None
) -> DataFrame:
    names = columns or rows.columns
    return rows.withColumn("_new", reason).select(
        *(F.coalesce("reason", "_new").alias(name) if name == "reason" else name for name in names)
    )
