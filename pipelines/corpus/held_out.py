"""What is held out for the retrieval evaluation, by hash, and nothing of it in training.

Whole units (packages, groups) are held out, chosen by their hashes. Of each group one pair is
asked, because the other texts of a group would be right answers that count as wrong ones.

Documents that held-out queries search besides those of their own pairs.

A query finds its document among a few thousand held-out ones far more often than among all of the
corpus, so figures of these alone would flatter every model. Users search what is trained on as
well, so its documents are searched too; of a large corpus a part is drawn, by hash.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.catalog import FORMATS
from pipelines.corpus.cleaning.rules import text_key
from pipelines.corpus.pairs import known_keys, text_columns
from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import CorpusFolder
from pipelines.settings import CorpusSettings
from pipelines.spark.frames import read_parquet

_DISTRACTOR_SALT = "distractor"
_BUCKETS = 1_000_000
# Pairs may share a document, so more pairs are looked at than documents are wanted. Only a corpus
# whose documents are in more pairs than this, on average, gives fewer.
_PAIRS_FOR_ONE = 8


def draw_distractors(pairs: DataFrame, written: int, most: int) -> DataFrame:
    """The documents of pairs for training, each once: all of them, or so many by their hashes.

    Args:
        pairs: With `positive`, which is null for single texts.
        written: How many pairs there are.
        most: How many documents are wanted at most.

    Returns:
        ``document_id`` (the hash of the text) and ``text``, which depend on the texts alone.
    """
    share = min(1.0, _PAIRS_FOR_ONE * most / max(written, 1))
    place = F.xxhash64(F.lit(_DISTRACTOR_SALT), "text")
    texts = pairs.where("positive is not null").select(F.col("positive").alias("text"))
    some = texts.where(F.pmod(place, F.lit(_BUCKETS)) < F.lit(share * _BUCKETS))
    # Two texts of one number, which is a hash, would be one document.
    each = some.groupBy(F.xxhash64("text").alias("document_id")).agg(F.min("text").alias("text"))
    return each.orderBy(place, "document_id").limit(most)


SAME_GROUP = "another pair of its group is held out"
SAME_QUERY = "its query is held out already"
NOT_SIMILAR = "held out, but not similar enough to ask for"
BEYOND = "held out beyond corpus.evaluation_pairs"
LEAK = "a text of it is held out"

# A scored pair asks for its other side only if people found the two to mean about the same: 4 of
# 5 in STS-B's scale, "mostly equivalent".
_SIMILAR = 0.8
# Of a held-out pair, the query and the document.
_ASKED = ("anchor", "positive")

_SALT = "held out"


def earlier_choices(session: SparkSession, corpus: CorpusFolder) -> DataFrame | None:
    """The pairs that are asked in a corpus which is about to be replaced, as they were written.

    Returns:
        `query_id` and `document_id`; None where there is no such corpus, or nothing is held out.
    """
    if not corpus.queries.is_file():
        return None
    asked = read_parquet(session, corpus.queries)
    return asked.select("query_id", "document_id").distinct()


def mark_earlier(pairs: DataFrame, earlier: DataFrame | None) -> DataFrame:
    """Adds the column `earlier`: whether a pair is asked in the corpus of before.

    Args:
        pairs: With `anchor` and `positive`.
        earlier: Of :func:`earlier_choices`: few enough to be sent to every executor.
    """
    if earlier is None:
        return pairs.withColumn("earlier", F.lit(False))
    known = F.broadcast(earlier.withColumn("_known", F.lit(True)))
    same = (F.xxhash64("anchor") == F.col("query_id")) & (
        F.xxhash64("positive") == F.col("document_id")
    )
    marked = pairs.join(known, same, "left").withColumn("earlier", F.col("_known").isNotNull())
    return marked.select(*pairs.columns, "earlier")


def mark_held_out(pairs: DataFrame, settings: CorpusSettings) -> DataFrame:
    """Adds the column `held`: whether the unit of a pair is held out.

    Groups are many and small: one is held out if its hash is in the lowest `evaluation_share`.
    Packages are few and of very different sizes; see :func:`packages_to_hold_out`.

    Args:
        pairs: With their reasons and `earlier`; written before, since packages are counted in a
            pass of its own.
    """
    if settings.pairs == "single":
        return pairs.withColumn("held", F.lit(False))
    if FORMATS.load(settings.format).large_units:
        counts = (
            pairs.where("reason is null")
            .groupBy("unit")
            .agg(F.count(F.lit(1)).alias("pairs"), F.max("earlier").alias("earlier"))
        )
        ordered = counts.orderBy(_salted(F.col("unit")), "unit").collect()
        held = packages_to_hold_out(
            [(row["unit"], row["pairs"]) for row in ordered],
            settings.evaluation_share,
            [row["unit"] for row in ordered if row["earlier"]],
        )
        return pairs.withColumn("held", F.col("unit").isin(held))
    bucket = F.pmod(_salted(F.col("unit")), F.lit(_BUCKETS))
    return pairs.withColumn("held", bucket < F.lit(settings.evaluation_share * _BUCKETS))


def packages_to_hold_out(
    sizes: Sequence[tuple[int, int]], share: float, earlier: Sequence[int] = ()
) -> list[int]:
    """The first packages that together have at least the share of all pairs.

    A package that alone has more than the share is passed over, so that at most twice the share
    is held out whatever the packages are. What was held out before stays.

    Args:
        sizes: Packages and their pairs, in the order of their hashes.
        share: Of the pairs.
        earlier: The packages that were held out before.
    """
    wanted = share * sum(pairs for _, pairs in sizes)
    held = list(earlier)
    total = sum(pairs for package, pairs in sizes if package in held)
    for package, pairs in sizes:
        if total >= wanted:
            break
        if pairs <= wanted and package not in earlier:
            held.append(package)
            total += pairs
    return held


def _salted(unit: Column) -> Column:
    return F.xxhash64(F.lit(_SALT), unit)


def judge_held_out(pairs: DataFrame, settings: CorpusSettings) -> DataFrame:
    """The held-out pairs; a null `reason` means that the pair may be asked.

    Of pairs that exclude one another one that was asked before stays, or else the first by hash.
    """
    held = pairs.where(F.col("reason").isNull() & F.col("held"))
    if settings.score_column is not None:
        held = held.withColumn("reason", F.when(F.col("score") < _SIMILAR, NOT_SIMILAR))
    for reason, same in ((SAME_GROUP, F.col("group")), (SAME_QUERY, F.xxhash64("anchor"))):
        window = Window.partitionBy("_same", "reason").orderBy(F.desc("earlier"), "id")
        repeated = F.when(F.col("reason").isNull() & (F.row_number().over(window) > 1), reason)
        held = held.withColumn("_same", same).withColumn("reason", F.coalesce("reason", repeated))
    return held.drop("_same")


def choose_held_out(judged: DataFrame, settings: CorpusSettings) -> DataFrame:
    """The pairs that are asked: `evaluation_pairs`, those of before and then the first by hash.

    Returns:
        `anchor` and `positive`, their hashes as `query_id` and `document_id`, and `unit`.
    """
    chosen = (
        judged.where("reason is null")
        .orderBy(F.desc("earlier"), "id")
        .limit(settings.evaluation_pairs)
    )
    query, document = F.xxhash64("anchor"), F.xxhash64("positive")
    return chosen.select(*_ASKED, query.alias("query_id"), document.alias("document_id"), "unit")


def write_evaluation(chosen: pa.Table, folder: Location) -> int:
    """Writes `queries.parquet` and `documents.parquet`, each text once and sorted by its number.

    Queries have the unit that they are of as their `group`: what is learnt of a package or a
    document shows in all its queries.

    Args:
        chosen: Of :func:`choose_held_out`; of several sources, `source` is in the queries too.
        folder: Of the corpus.

    Returns:
        How many documents there are.
    """
    source = [name for name in ("source",) if name in chosen.column_names]
    queries = chosen.select(["query_id", "anchor", "document_id", "unit", *source])
    queries = queries.rename_columns(["query_id", "text", "document_id", "group", *source])
    queries = queries.sort_by("query_id")
    # Two texts of one number, which is a hash, would be one document.
    grouped = chosen.group_by("document_id", use_threads=False).aggregate([("positive", "min")])
    documents = pa.table(
        {"document_id": grouped["document_id"], "text": grouped["positive_min"]}
    ).sort_by("document_id")
    files = CorpusFolder(folder)
    for table, path in ((queries, files.queries), (documents, files.documents)):
        with storage.built_file(path) as aside:
            pq.write_table(table, aside, compression="zstd")
    return len(documents)


def without_leaks(pairs: DataFrame, chosen: DataFrame, settings: CorpusSettings) -> DataFrame:
    """The training pairs that share no text with the evaluation.

    A hard negative of training counts as its other texts do: a held-out text that training pushes
    away from a query has been seen, too. That of a held-out pair is neither asked nor ranked, so it
    may be trained on.

    Args:
        pairs: Those that are not held out.
        chosen: The pairs that are asked: few enough to be sent to every executor.
        settings: Of the corpus.
    """
    sides = F.explode(F.array(*(text_key(F.col(side)) for side in _ASKED)))
    # A text alone has no other side, and null is no text that two of them share.
    keys = F.broadcast(chosen.select(sides.alias("_key")).where("_key is not null").distinct())
    for text, known in zip(text_columns(settings), known_keys(settings), strict=True):
        pairs = pairs.withColumn("_key", text_key(text, known))
        pairs = pairs.join(keys, "_key", "left_anti").drop("_key")
    return pairs


def without_units(pairs: DataFrame, chosen: DataFrame) -> DataFrame:
    """The training pairs of no group, document or package of which another source asks a pair.

    Args:
        pairs: With `unit`.
        chosen: The pairs that are asked, of all sources.
    """
    units = F.broadcast(chosen.select("unit").where("unit is not null").distinct())
    return pairs.join(units, "unit", "left_anti")
