"""What is held out for the retrieval evaluation, by hash, and nothing of it in training.

Whole units (packages, groups) are held out, chosen by their hashes. Of each group one pair is
asked, because the other texts of a group would be right answers that count as wrong ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.corpus.cleaning.rules import text_key
from pipelines.corpus.readers import FORMATS
from pipelines.settings import CorpusSettings

SAME_GROUP = "another pair of its group is held out"
SAME_QUERY = "its query is held out already"
NOT_SIMILAR = "held out, but not similar enough to ask for"
BEYOND = "held out beyond corpus.evaluation_pairs"
LEAK = "a text of it is held out"

# A scored pair asks for its other side only if people found the two to mean about the same: 4 of
# 5 in STS-B's scale, "mostly equivalent".
_SIMILAR = 0.8
_SIDES = ("anchor", "positive", "negative")
# Of a held-out pair, the query and the document.
_ASKED = ("anchor", "positive")
_BUCKETS = 1_000_000
_SALT = "held out"


def mark_held_out(pairs: DataFrame, settings: CorpusSettings) -> DataFrame:
    """Adds the column `held`: whether the unit of a pair is held out.

    Groups are many and small: one is held out if its hash is in the lowest `evaluation_share`.
    Packages are few and of very different sizes; see :func:`packages_to_hold_out`.

    Args:
        pairs: With their reasons; written before, since packages are counted in a pass of its own.
    """
    if settings.pairs == "single":
        return pairs.withColumn("held", F.lit(False))
    if FORMATS.load(settings.format).large_units:
        counts = pairs.where("reason is null").groupBy("unit").count()
        ordered = counts.orderBy(_salted(F.col("unit")), "unit").collect()
        held = packages_to_hold_out(
            [(row["unit"], row["count"]) for row in ordered], settings.evaluation_share
        )
        return pairs.withColumn("held", F.col("unit").isin(held))
    bucket = F.pmod(_salted(F.col("unit")), F.lit(_BUCKETS))
    return pairs.withColumn("held", bucket < F.lit(settings.evaluation_share * _BUCKETS))


def packages_to_hold_out(sizes: Sequence[tuple[int, int]], share: float) -> list[int]:
    """The first packages that together have at least the share of all pairs.

    A package that alone has more than the share is passed over, so that at most twice the share
    is held out whatever the packages are.

    Args:
        sizes: Packages and their pairs, in the order of their hashes.
        share: Of the pairs.
    """
    wanted = share * sum(pairs for _, pairs in sizes)
    held: list[int] = []
    total = 0
    for package, pairs in sizes:
        if total >= wanted:
            break
        if pairs <= wanted:
            held.append(package)
            total += pairs
    return held


def _salted(unit: Column) -> Column:
    return F.xxhash64(F.lit(_SALT), unit)


def judge_held_out(pairs: DataFrame, settings: CorpusSettings) -> DataFrame:
    """The held-out pairs; a null `reason` means that the pair may be asked."""
    held = pairs.where(F.col("reason").isNull() & F.col("held"))
    if settings.score_column is not None:
        held = held.withColumn("reason", F.when(F.col("score") < _SIMILAR, NOT_SIMILAR))
    for reason, same in ((SAME_GROUP, F.col("group")), (SAME_QUERY, F.xxhash64("anchor"))):
        window = Window.partitionBy("_same", "reason").orderBy("id")
        repeated = F.when(F.col("reason").isNull() & (F.row_number().over(window) > 1), reason)
        held = held.withColumn("_same", same).withColumn("reason", F.coalesce("reason", repeated))
    return held.drop("_same")


def choose_held_out(judged: DataFrame, settings: CorpusSettings) -> DataFrame:
    """The pairs that are asked: the first `evaluation_pairs` by hash."""
    return judged.where("reason is null").orderBy("id").limit(settings.evaluation_pairs)


def queries(chosen: DataFrame) -> DataFrame:
    """Columns `query_id`, `text`, `document_id`; each query text once."""
    return chosen.select(
        F.xxhash64("anchor").alias("query_id"),
        F.col("anchor").alias("text"),
        F.xxhash64("positive").alias("document_id"),
    ).orderBy("query_id")


def documents(chosen: DataFrame) -> DataFrame:
    """Columns `document_id`, `text`; each text once."""
    grouped = chosen.groupBy(F.xxhash64("positive").alias("document_id"))
    return grouped.agg(F.min("positive").alias("text")).orderBy("document_id")


def mark_leaks(pairs: DataFrame, chosen: DataFrame) -> DataFrame:
    """The training pairs; one that shares a text with the evaluation gets a `reason`.

    A hard negative of training counts as its other texts do: a held-out text that training pushes
    away from a query has been seen, too. That of a held-out pair is neither asked nor ranked, so it
    may be trained on.

    Args:
        pairs: All pairs, with `held`.
        chosen: The pairs that are asked: few enough to be sent to every executor.
    """
    sides = F.explode(F.array(*(text_key(F.col(side)) for side in _ASKED)))
    # A text alone has no other side, and null is no text that two of them share.
    keys = chosen.select(sides.alias("_key")).where("_key is not null").distinct()
    training = pairs.where(F.col("reason").isNull() & ~F.col("held"))
    for side in _SIDES:
        leak = keys.withColumn("_leak", F.lit(LEAK))
        training = training.withColumn("_key", text_key(F.col(side)))
        training = training.join(F.broadcast(leak), "_key", "left")
        training = training.withColumn("reason", F.coalesce("reason", "_leak")).drop(
            "_key", "_leak"
        )
    return training
