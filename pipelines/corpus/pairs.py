"""How rows become pairs: one function for each form of `corpus.pairs`, and what drops a pair.

Rows have the columns `level`, `left`, `right`, `score`, `group`, `unit` and `reason`; pairs
have the same without `level`, and `id`. `group` (no two of it in one granule) and `unit` (held
out as a whole) are hashes here. Nothing is filtered before it is counted: what is dropped keeps
its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.corpus.funnel import ROWS
from pipelines.corpus.prose import summary_batches
from pipelines.corpus.readers import text_columns
from pipelines.corpus.rules import clean_batches, text_key, text_reason
from pipelines.errors import InputError
from pipelines.settings import CorpusSettings

EXCLUDED = "excluded"
NO_GROUP = "no group"
NO_SCORE = "no score"
OUT_OF_RANGE = "score out of range"
REPEATED_IN_GROUP = "repeated in its group"
ALONE = "alone in its group"
BEYOND_PAIRS = "beyond corpus.pairs_per_group"
SAME_SIDES = "both sides are the same"
REPEATED = "repeated pair"
BOILERPLATE = "paragraph that follows many sentences"

# A paragraph after more different sentences than this says nothing about any of them.
_MOST_SENTENCES = 3
_RAW = ("level", "score", "group", "unit", "reason")
_PAIR = ("group", "left", "right", "score", "unit", "reason")


def check_settings(settings: CorpusSettings) -> None:
    """Refuses what can be seen to be wrong without any input.

    Raises:
        InputError: `corpus.score_range` is empty.
    """
    low, high = settings.score_range
    if not low < high:
        raise InputError("corpus.score_range", f"[{low}, {high}] is empty", "lowest, then highest")


def clean_rows(raw: DataFrame, settings: CorpusSettings) -> DataFrame:
    """Cleans the raw rows and names the texts `left` and `right`; see the module for columns."""
    texts = text_columns(settings)
    if settings.pairs == "summary":
        batches = partial(summary_batches, text=texts[0])
        columns = [name for name in _RAW if name != "reason"] + ["left", "right", "reason"]
        cleaned = raw.mapInArrow(batches, ", ".join(f"{name} string" for name in columns))
    else:
        batches = partial(clean_batches, columns=texts)
        columns = [*_RAW, *texts]
        schema = ", ".join(f"{name} string" for name in columns)
        cleaned = raw.select(*columns).mapInArrow(batches, schema)
        cleaned = cleaned.withColumnRenamed(texts[0], "left").withColumn(
            "right", F.col(texts[1]) if len(texts) > 1 else F.lit(None).cast("string")
        )
    return _judged(cleaned, settings)


def _judged(cleaned: DataFrame, settings: CorpusSettings) -> DataFrame:
    sides = [F.col("left")]
    if settings.pairs in ("summary", "columns"):
        sides.append(F.col("right"))
    group = F.col("group") if settings.group_column else F.col("left")
    low, high = settings.score_range
    score = F.expr("try_cast(score as double)")
    reason = text_reason(F.col("reason"), sides, settings)
    if settings.group_column:
        reason = F.coalesce(reason, F.when(F.col("group").isNull(), NO_GROUP))
    if settings.score_column:
        outside = F.isnan(score) | ~score.between(low, high)
        reason = F.coalesce(reason, F.when(score.isNull(), NO_SCORE), F.when(outside, OUT_OF_RANGE))
    return cleaned.select(
        "level",
        F.xxhash64(group).alias("group"),
        "left",
        "right",
        ((score - low) / (high - low)).cast("float").alias("score"),
        F.xxhash64(F.coalesce(F.col("unit"), group)).alias("unit"),
        F.when(F.col("level") == ROWS, reason).otherwise(F.col("reason")).alias("reason"),
    )


def mark_excluded(rows: DataFrame, texts: DataFrame) -> DataFrame:
    """Gives every row of a group that holds one of the texts the reason `excluded`.

    Args:
        rows: Cleaned rows; those dropped already still count as texts of their group.
        texts: One column `text`.
    """
    cleaned = texts.mapInArrow(partial(clean_batches, columns=["text"]), "text string")
    keys = cleaned.select(text_key(F.col("text")).alias("key")).where("key is not null").distinct()
    own = rows.where(F.col("level") == ROWS).select(
        "group",
        F.explode(F.array(text_key(F.col("left")), text_key(F.col("right")))).alias("key"),
    )
    groups = own.join(keys, "key", "left_semi").select("group").distinct()
    marked = rows.join(groups.withColumn("_excluded", F.lit(EXCLUDED)), "group", "left")
    reason = F.when(F.col("level") == ROWS, F.col("_excluded"))
    return marked.withColumn("reason", F.coalesce("reason", reason)).select(*rows.columns)


def choose_members(rows: DataFrame, settings: CorpusSettings) -> DataFrame:
    """Says which rows become pairs, for the forms that need more than the row to know.

    In a group each text counts once, and no more texts are needed than pairs are made and one.
    """
    if settings.pairs != "group":
        return rows
    kept = F.col("reason").isNull()
    by_text = Window.partitionBy("level", "group", "reason", "left").orderBy("unit")
    repeated = F.when(kept & (F.row_number().over(by_text) > 1), REPEATED_IN_GROUP)
    distinct = rows.withColumn("reason", F.coalesce("reason", repeated))
    group = Window.partitionBy("level", "group", "reason")
    by_hash = group.orderBy(F.xxhash64("left"), "left")
    beyond = F.row_number().over(by_hash) > settings.pairs_per_group + 1
    return (
        distinct.withColumn("_beyond", beyond)
        .withColumn("_members", F.count(F.lit(1)).over(group))
        .withColumn(
            "reason",
            F.coalesce(
                "reason",
                F.when(kept & (F.col("_members") == 1), ALONE),
                F.when(kept & F.col("_beyond"), BEYOND_PAIRS),
            ),
        )
        .select(*rows.columns)
    )


def make_pairs(rows: DataFrame, settings: CorpusSettings) -> DataFrame:
    """The pairs of the rows that are kept, each with its reason where it is dropped."""
    kept = rows.where((F.col("level") == ROWS) & F.col("reason").isNull())
    pairs = PAIR_FORMS[settings.pairs](kept, settings).withColumn("id", F.xxhash64("left", "right"))
    same = F.when(F.col("left") == F.col("right"), SAME_SIDES)
    judged = pairs.withColumn("reason", F.coalesce("reason", same))
    alike = Window.partitionBy("id", "reason").orderBy("unit", "group", F.desc("score"))
    repeated = F.when(F.col("reason").isNull() & (F.row_number().over(alike) > 1), REPEATED)
    judged = judged.withColumn("reason", F.coalesce("reason", repeated))
    return _without_boilerplate(judged) if settings.pairs == "summary" else judged


def _without_boilerplate(pairs: DataFrame) -> DataFrame:
    right = F.xxhash64("right")
    counts = pairs.where("reason is null").groupBy(right.alias("_right")).count()
    often = counts.where(F.col("count") > _MOST_SENTENCES).select(
        "_right", F.lit(BOILERPLATE).alias("_boilerplate")
    )
    joined = pairs.withColumn("_right", right).join(often, "_right", "left")
    return joined.withColumn("reason", F.coalesce("reason", "_boilerplate")).select(*pairs.columns)


def _row_pairs(rows: DataFrame, settings: CorpusSettings) -> DataFrame:
    """A row is a pair already."""
    return rows.select(*_PAIR)


def _group_pairs(rows: DataFrame, settings: CorpusSettings) -> DataFrame:
    """Pairs of the members of each group, at most `pairs_per_group`.

    The members lie on a ring in the order of their hashes. Pair k joins member k mod n to the
    one that is 1 + k div n places further, so that every pair comes once and each member comes
    about equally often, however few of the n(n-1)/2 pairs are taken.
    """
    member = F.struct(F.xxhash64("left").alias("hash"), F.col("left").alias("text"))
    groups = rows.groupBy("group").agg(
        F.sort_array(F.collect_list(member)).alias("members"), F.min("unit").alias("unit")
    )
    n = F.size("members")
    count = F.least(
        F.lit(settings.pairs_per_group), F.expr("size(members) * (size(members) - 1) div 2")
    )
    numbered = groups.withColumn("k", F.explode(F.sequence(F.lit(0), (count - 1).cast("int"))))
    k = F.col("k")
    return numbered.select(
        "group",
        _member(k % n).alias("left"),
        _member((k % n + 1 + F.floor(k / n)) % n).alias("right"),
        F.lit(None).cast("float").alias("score"),
        "unit",
        F.lit(None).cast("string").alias("reason"),
    )


def _member(place: Column) -> Column:
    return F.col("members")[place.cast("int")]["text"]


PAIR_FORMS: Mapping[str, Callable[[DataFrame, CorpusSettings], DataFrame]] = {
    "summary": _row_pairs,
    "columns": _row_pairs,
    "group": _group_pairs,
    "single": _row_pairs,
}
