"""How rows become pairs, by the forms of `corpus.pairs`, and the reasons that drop a pair.

:func:`hashed` makes the rows; pairs have their columns of texts, owners, scores and reasons, and
`id`. `anchor_key` and `positive_key` are the known keys of
:mod:`pipelines.corpus.cleaning.rules`; `group` (no two of it in one granule) and `unit` (held out
as a whole) are hashes here. Nothing is filtered before it is counted: a dropped row keeps its
reason.
"""

from __future__ import annotations

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
    """Refuse an empty `corpus.score_range` with an `InputError`."""
    low, high = settings.score_range
    if not low < high:
        problem = f"[{low}, {high}] is empty"
        raise InputError("corpus.score_range", problem, "Write the lowest score, then the highest")


def drops_duplicates(settings: CorpusSettings) -> bool:
    """Return whether each text counts once in the corpus, as texts cut out of documents do."""
    return unit_of(settings) in ("sentences", "paragraphs", "lines")


def text_columns(settings: CorpusSettings) -> list[Column]:
    """Return the texts of a row, a column each; null for a missing text."""
    places = range(settings.hard_negatives)
    negatives = (F.get("negatives", F.lit(place)) for place in places)
    return [F.col("anchor"), F.col("positive"), *negatives]


def known_keys(settings: CorpusSettings) -> list[Column]:
    """Return the known keys of the texts of :func:`text_columns`."""
    none = F.lit(None).cast("long")
    return [F.col("anchor_key"), F.col("positive_key"), *[none] * settings.hard_negatives]


def hashed(units: DataFrame, settings: CorpusSettings) -> DataFrame:
    """Return the rows of :mod:`.corpus.texts` with their owners as hashes, scores judged.

    Columns `level`, `group`, `anchor`, `positive`, `negatives`, `score` (0 to 1),
    `candidate_scores` (as read), `unit`, `run`, `place`, `reason`, `rows`, `anchor_key`
    and `positive_key` (of the units of :mod:`.dedup.cut_texts`, or null).
    """
    is_text = F.col("level") == text_level(settings)
    own_group = F.col("run") if settings.pairs == "adjacent" else F.xxhash64("anchor")
    named = F.when(F.col("group").isNotNull(), F.xxhash64("group"))
    group = F.coalesce(named, own_group)
    low, high = settings.score_range
    score = F.expr(number_in("score"))
    reason, has_keys = F.col("reason"), "positive_key" in units.columns
    if settings.group_column:
        reason = F.coalesce(reason, F.when(F.col("group").isNull(), NO_GROUP))
    if settings.score_column:
        outside = F.isnan(score) | ~score.between(low, high)
        reason = F.coalesce(reason, F.when(score.isNull(), NO_SCORE), F.when(outside, OUT_OF_RANGE))
    scores = F.expr(f"transform(candidate_scores, score -> {number_in('score', 'float')})")
    if settings.score_columns:
        numbers = F.filter(scores, lambda value: F.abs(value) < _INFINITY)
        reason = F.coalesce(reason, F.when(F.size(numbers) < F.size(scores), NO_SCORE))
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
        F.when(is_text, reason).otherwise(F.col("reason")).alias("reason"),
        "rows",
        "anchor_key",
        F.col("positive_key") if has_keys else F.lit(None).cast("long").alias("positive_key"),
    )


def choose_members(rows: DataFrame, settings: CorpusSettings) -> DataFrame:
    """Choose the rows that become pairs, in the form where this depends on other rows."""
    return _members(rows, settings) if settings.pairs == "group" else rows


def _members(rows: DataFrame, settings: CorpusSettings) -> DataFrame:
    """Keep each text of a group once, and at most one more than `pairs_per_group`."""
    kept = is_kept(settings)
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
    """Return the pairs of the kept rows, the dropped ones with their reasons."""
    kept = rows.where(is_kept(settings))
    if settings.pairs == "group":
        pairs = _group_pairs(kept, settings)
    else:
        # A row is a pair already. The last of a run of neighbours is in a pair as `positive`.
        is_pair = "positive is not null" if settings.pairs == "adjacent" else "true"
        pairs = kept.where(is_pair).select(*_PAIR)
    pairs = pairs.withColumn("id", F.xxhash64("anchor", "positive", "negatives"))
    if drops_duplicates(settings):
        # No two kept texts are equal. Spark then counts pairs without reading them.
        return pairs.withColumn("reason", F.lit(None).cast("string"))
    same = F.when(F.col("anchor") == F.col("positive"), SAME_SIDES)
    judged = pairs.withColumn("reason", F.coalesce("reason", same))
    alike = Window.partitionBy("id", "reason").orderBy("unit", "group", F.desc("score"))
    repeated = F.when(F.col("reason").isNull() & (F.row_number().over(alike) > 1), REPEATED)
    judged = judged.withColumn("reason", F.coalesce("reason", repeated))
    return _without_boilerplate(judged) if settings.pairs == "summary" else judged


def is_kept(settings: CorpusSettings) -> Column:
    """Return whether a row is a text without a reason to drop it."""
    return (F.col("level") == text_level(settings)) & F.col("reason").isNull()


def _without_boilerplate(pairs: DataFrame) -> DataFrame:
    positive = F.xxhash64("positive")
    counts = pairs.where("reason is null").groupBy(positive.alias("_positive")).count()
    often = counts.where(F.col("count") > _MAX_SENTENCES).select(
        "_positive", F.lit(BOILERPLATE).alias("_boilerplate")
    )
    joined = pairs.withColumn("_positive", positive).join(often, "_positive", "left")
    return joined.withColumn("reason", F.coalesce("reason", "_boilerplate")).select(*pairs.columns)


def _group_pairs(rows: DataFrame, settings: CorpusSettings) -> DataFrame:
    """Return pairs of the members of each group, at most `pairs_per_group`.

    The members lie on a ring in the order of their hashes. Pair k joins member k mod n to the
    member 1 + k div n places further. So every pair comes once, and each member comes about equally
    often, for any part of the n(n-1)/2 pairs.
    """
    member = F.struct(F.xxhash64("anchor").alias("hash"), F.col("anchor").alias("text"))
    groups = rows.groupBy("group").agg(
        F.sort_array(F.collect_list(member)).alias("members"), F.min("unit").alias("unit")
    )
    all_pairs = F.expr("size(members) * (size(members) - 1) div 2")
    count = F.least(F.lit(settings.pairs_per_group), all_pairs)
    numbered = groups.withColumn("k", F.explode(F.sequence(F.lit(0), (count - 1).cast("int"))))
    k, n, members = F.col("k"), F.size("members"), F.col("members")
    sides = {
        "anchor": members[(k % n).cast("int")]["text"],
        "positive": members[((k % n + 1 + F.floor(k / n)) % n).cast("int")]["text"],
    }
    types = dict(rows.select(*_PAIR).dtypes)
    nothing = {name: F.lit(None).cast(types[name]) for name in _PAIR}
    values = {"group": F.col("group"), "unit": F.col("unit"), **sides}
    return numbered.select(*({**nothing, **values}[name].alias(name) for name in _PAIR))
