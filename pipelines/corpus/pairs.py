"""How rows become pairs: one function for each form of `corpus.pairs`, and what drops a pair.

Rows are those of :func:`hashed`; pairs have `id`, `group`, `anchor`, `positive`, `negatives`,
`score`, `candidate_scores`, `unit`, `reason`, and `anchor_key` and `positive_key`: what is known
of the keys of :mod:`pipelines.corpus.cleaning.rules`. `group` (no two of it in one granule)
and `unit` (held out as a whole) are hashes here. Nothing is filtered before it is counted: what
is dropped keeps its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.corpus.readers.inputs import number_in
from pipelines.corpus.texts import text_level, unit_of
from pipelines.errors import InputError
from pipelines.settings import CorpusSettings

NO_GROUP = "no group"
NO_SCORE = "no score"
OUT_OF_RANGE = "score out of range"
REPEATED_IN_GROUP = "repeated in its group"
ALONE = "alone in its group"
NO_NEIGHBOUR = "no neighbour is kept"
BEYOND_PAIRS = "beyond corpus.pairs_per_group"
SAME_SIDES = "both sides are the same"
REPEATED = "repeated pair"
BOILERPLATE = "paragraph that follows many sentences"

# A paragraph after more different sentences than this says nothing about any of them.
_MAX_SENTENCES = 3
_INFINITY = float("inf")
_PAIR = (
    "group",
    "anchor",
    "positive",
    "negatives",
    "score",
    "candidate_scores",
    "unit",
    "reason",
    "anchor_key",
    "positive_key",
)


def check_settings(settings: CorpusSettings) -> None:
    """Refuses what can be seen to be wrong without any input.

    Raises:
        InputError: `corpus.score_range` is empty.
    """
    low, high = settings.score_range
    if not low < high:
        raise InputError("corpus.score_range", f"[{low}, {high}] is empty", "lowest, then highest")


def drops_duplicates(settings: CorpusSettings) -> bool:
    """Whether each text counts once in the corpus: where texts are cut out of documents."""
    return unit_of(settings) in ("sentences", "paragraphs", "lines")


def text_columns(settings: CorpusSettings) -> list[Column]:
    """The texts of a row, a column each; null where it has no such text."""
    places = range(settings.hard_negatives)
    negatives = (F.get("negatives", F.lit(place)) for place in places)
    return [F.col("anchor"), F.col("positive"), *negatives]


def known_keys(settings: CorpusSettings) -> list[Column]:
    """What is known of the keys of the texts of :func:`text_columns`."""
    none = F.lit(None).cast("long")
    return [F.col("anchor_key"), F.col("positive_key"), *[none] * settings.hard_negatives]


def hashed(units: DataFrame, settings: CorpusSettings) -> DataFrame:
    """The rows of :mod:`~pipelines.corpus.texts` with their owners as hashes, scores judged.

    Columns `level`, `group`, `anchor`, `positive`, `negatives`, `score` (0 to 1),
    `candidate_scores` (as they were read), `unit`, `run`, `place`, `reason`, `rows`, `anchor_key`
    and `positive_key`.
    """
    own_level = F.col("level") == text_level(settings)
    own = F.col("run") if settings.pairs == "adjacent" else F.xxhash64("anchor")
    named = F.when(F.col("group").isNotNull(), F.xxhash64("group"))
    group = F.coalesce(named, own)
    low, high = settings.score_range
    score = F.expr(number_in("score"))
    reason = F.col("reason")
    if settings.group_column:
        reason = F.coalesce(reason, F.when(F.col("group").isNull(), NO_GROUP))
    if settings.score_column:
        outside = F.isnan(score) | ~score.between(low, high)
        reason = F.coalesce(reason, F.when(score.isNull(), NO_SCORE), F.when(outside, OUT_OF_RANGE))
    scores = F.expr(f"transform(candidate_scores, score -> {number_in('score', 'float')})")
    if settings.score_columns:
        reason = F.coalesce(reason, F.when(F.exists(scores, _is_no_number), NO_SCORE))
    return units.where("quarantined is null").select(
        "level",
        group.alias("group"),
        "anchor",
        "positive",
        "negatives",
        ((score - low) / (high - low)).cast("float").alias("score"),
        scores.alias("candidate_scores"),
        F.coalesce(F.col("unit"), group).alias("unit"),
        "run",
        "place",
        F.when(own_level, reason).otherwise(F.col("reason")).alias("reason"),
        "rows",
        "anchor_key",
        F.lit(None).cast("long").alias("positive_key"),
    )


def _is_no_number(value: Column) -> Column:
    return value.isNull() | F.isnan(value) | (F.abs(value) == _INFINITY)


def choose_members(rows: DataFrame, settings: CorpusSettings) -> DataFrame:
    """Says which rows become pairs, for the forms that need more than the row to know."""
    return MEMBERS[settings.pairs](rows, settings) if settings.pairs in MEMBERS else rows


def _neighbours(rows: DataFrame, settings: CorpusSettings) -> DataFrame:
    """Gives each sentence the one that follows it, as `positive`.

    Two sentences are neighbours if nothing stood between them, not even what was dropped.
    """
    kept = _kept(settings)
    order = Window.partitionBy("level", "run", "reason").orderBy("place", "anchor")
    follows = kept & (F.lead("place").over(order) == F.col("place") + 1)
    precedes = kept & (F.lag("place").over(order) == F.col("place") - 1)
    alone = F.when(
        kept & ~F.coalesce(follows, F.lit(False)) & ~F.coalesce(precedes, F.lit(False)),
        NO_NEIGHBOUR,
    )
    return (
        rows.withColumn("positive", F.when(follows, F.lead("anchor").over(order)))
        .withColumn("positive_key", F.when(follows, F.lead("anchor_key").over(order)))
        .withColumn("_alone", alone)
        .withColumn("reason", F.coalesce("reason", "_alone"))
        .select(*rows.columns)
    )


def _members(rows: DataFrame, settings: CorpusSettings) -> DataFrame:
    """In a group each text counts once, and no more are needed than pairs are made and one."""
    kept = _kept(settings)
    by_text = Window.partitionBy("level", "group", "reason", "anchor").orderBy("unit")
    repeated = F.when(kept & (F.row_number().over(by_text) > 1), REPEATED_IN_GROUP)
    distinct = rows.withColumn("reason", F.coalesce("reason", repeated))
    group = Window.partitionBy("level", "group", "reason")
    by_hash = group.orderBy(F.xxhash64("anchor"), "anchor")
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
    kept = rows.where(_kept(settings))
    pairs = PAIR_FORMS[settings.pairs](kept, settings)
    key = F.xxhash64("anchor", "positive", "negatives")
    same = F.when(F.col("anchor") == F.col("positive"), SAME_SIDES)
    judged = pairs.withColumn("id", key).withColumn("reason", F.coalesce("reason", same))
    if drops_duplicates(settings):
        return judged
    alike = Window.partitionBy("id", "reason").orderBy("unit", "group", F.desc("score"))
    repeated = F.when(F.col("reason").isNull() & (F.row_number().over(alike) > 1), REPEATED)
    judged = judged.withColumn("reason", F.coalesce("reason", repeated))
    return _without_boilerplate(judged) if settings.pairs == "summary" else judged


def _kept(settings: CorpusSettings) -> Column:
    return (F.col("level") == text_level(settings)) & F.col("reason").isNull()


def _without_boilerplate(pairs: DataFrame) -> DataFrame:
    positive = F.xxhash64("positive")
    counts = pairs.where("reason is null").groupBy(positive.alias("_positive")).count()
    often = counts.where(F.col("count") > _MAX_SENTENCES).select(
        "_positive", F.lit(BOILERPLATE).alias("_boilerplate")
    )
    joined = pairs.withColumn("_positive", positive).join(often, "_positive", "left")
    return joined.withColumn("reason", F.coalesce("reason", "_boilerplate")).select(*pairs.columns)


def _row_pairs(rows: DataFrame, settings: CorpusSettings) -> DataFrame:
    """A row is a pair already."""
    return rows.select(*_PAIR)


def _adjacent_pairs(rows: DataFrame, settings: CorpusSettings) -> DataFrame:
    """Each sentence with the next; the last one of its neighbours is in a pair as `positive`."""
    return rows.where("positive is not null").select(*_PAIR)


def _group_pairs(rows: DataFrame, settings: CorpusSettings) -> DataFrame:
    """Pairs of the members of each group, at most `pairs_per_group`.

    The members lie on a ring in the order of their hashes. Pair k joins member k mod n to the
    one that is 1 + k div n places further, so that every pair comes once and each member comes
    about equally often, however few of the n(n-1)/2 pairs are taken.
    """
    member = F.struct(F.xxhash64("anchor").alias("hash"), F.col("anchor").alias("text"))
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
        _member(k % n).alias("anchor"),
        _member((k % n + 1 + F.floor(k / n)) % n).alias("positive"),
        F.lit(None).cast("array<string>").alias("negatives"),
        F.lit(None).cast("float").alias("score"),
        F.lit(None).cast("array<float>").alias("candidate_scores"),
        "unit",
        F.lit(None).cast("string").alias("reason"),
        F.lit(None).cast("long").alias("anchor_key"),
        F.lit(None).cast("long").alias("positive_key"),
    )


def _member(place: Column) -> Column:
    return F.col("members")[place.cast("int")]["text"]


PairForm = Callable[[DataFrame, CorpusSettings], DataFrame]

MEMBERS: Mapping[str, PairForm] = {"adjacent": _neighbours, "group": _members}
PAIR_FORMS: Mapping[str, PairForm] = {
    "summary": _row_pairs,
    "adjacent": _adjacent_pairs,
    "title": _row_pairs,
    "document": _row_pairs,
    "columns": _row_pairs,
    "triplets": _row_pairs,
    "group": _group_pairs,
    "single": _row_pairs,
}
