"""Part the pairs of all sources into training pairs and pairs held out for evaluation.

Whole units (packages, groups) are held out, chosen by their hashes. The evaluation asks one pair of
each group, because the other texts of a group would be right answers counted as wrong. Training
never sees an asked pair.

A query finds its document among a few thousand held-out ones far more often than in the whole
corpus, so figures on these alone would flatter every model. Users search the training documents
too, so queries do as well: all of them, or of a large corpus a part drawn by hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.catalog import FORMATS
from pipelines.corpus.cleaning.rules import text_key
from pipelines.corpus.kept_units import below_one_another
from pipelines.corpus.pairs import known_keys, text_columns
from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import CorpusFolder
from pipelines.settings import CorpusSettings
from pipelines.spark.frames import Kept, Scratch, read_parquet, rows_by_partition, write_parquet

PAIR_COLUMNS = ("id", "group", "anchor", "positive", "negatives", "score", "candidate_scores")
SOURCE = "source"
SAME_GROUP = "another pair of its group is held out"
SAME_QUERY = "its query is held out already"
NOT_SIMILAR = "held out, but not similar enough to ask for"
BEYOND = "held out beyond corpus.evaluation_pairs"
LEAK = "a text of it is held out"

_SALT, _DISTRACTOR_SALT = "held out", "distractor"
_BUCKETS = 1_000_000
# Pairs may share a document, so the draw takes this many pairs for a document. Only a corpus with
# more pairs for each document, on average, gives fewer documents.
_PAIRS_FOR_ONE = 8
# A scored pair asks for its other side only if people found the two to mean about the same: 4 of
# 5 in STS-B's scale, "mostly equivalent".
_SIMILAR = 0.8
# Of a held-out pair, the query and the document.
_ASKED = ("anchor", "positive")


def draw_distractors(pairs: DataFrame, written: int, most: int) -> DataFrame:
    """Return the documents of training pairs, each once: all, or `most` by their hashes.

    Pairs have `positive`, null for single texts. The result, ``document_id`` (the hash of the text)
    and ``text``, depends on the texts alone.
    """
    share = min(1.0, _PAIRS_FOR_ONE * most / max(written, 1))
    place = F.xxhash64(F.lit(_DISTRACTOR_SALT), "text")
    texts = pairs.where("positive is not null").select(F.col("positive").alias("text"))
    sampled = texts.where(F.pmod(place, F.lit(_BUCKETS)) < F.lit(share * _BUCKETS))
    # Two texts with one hash would be one document.
    each = sampled.groupBy(F.xxhash64("text").alias("document_id")).agg(F.min("text").alias("text"))
    return each.orderBy(place, "document_id").limit(most)


def earlier_choices(session: SparkSession, corpus: CorpusFolder) -> DataFrame | None:
    """Return the pairs (`query_id`, `document_id`) asked in the corpus of the last preparation.

    None if there is no such corpus, or it holds nothing out.
    """
    if not corpus.queries.is_file():
        return None
    asked = read_parquet(session, corpus.queries)
    return asked.select("query_id", "document_id").distinct()


def mark_earlier(pairs: DataFrame, earlier: DataFrame | None) -> DataFrame:
    """Add the column `earlier`: whether the last corpus asks a pair.

    `earlier` (:func:`earlier_choices`) is small enough for every executor.
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
    """Add the column `held`: whether the unit of a pair is held out.

    Groups are many and small: one is held out if its hash is in the lowest `evaluation_share`.
    Packages are few and of very different sizes; see :func:`packages_to_hold_out`. A separate pass
    counts them, so pairs (with their reasons and `earlier`) must have been written before.
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
    """Return the first packages with at least the share of all pairs together.

    It skips packages larger than the share, so at most twice the share is held out. Packages held
    out `earlier` stay. `sizes` are packages and their pairs, in the order of their hashes.
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
    """Return the held-out pairs; a null `reason` means that the evaluation may ask the pair.

    Of pairs that exclude one another, one asked earlier stays, or else the first by hash.
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
    """Return the asked pairs: earlier ones first, then the first by hash.

    Columns: `anchor` and `positive`, their hashes as `query_id` and `document_id`, and `unit`.
    """
    chosen = (
        judged.where("reason is null")
        .orderBy(F.desc("earlier"), "id")
        .limit(settings.evaluation_pairs)
    )
    query, document = F.xxhash64("anchor"), F.xxhash64("positive")
    return chosen.select(*_ASKED, query.alias("query_id"), document.alias("document_id"), "unit")


def write_evaluation(chosen: pa.Table, folder: Location) -> int:
    """Write `queries.parquet` and `documents.parquet`; return the number of documents.

    Each text is written once, sorted by its number. Queries have their unit as their `group`, since
    knowledge of a package or a document shows in all its queries. Of several sources, queries also
    have their `source`. `chosen` is the result of :func:`choose_held_out`.
    """
    source = [name for name in ("source",) if name in chosen.column_names]
    queries = chosen.select(["query_id", "anchor", "document_id", "unit", *source])
    queries = queries.rename_columns(["query_id", "text", "document_id", "group", *source])
    queries = queries.sort_by("query_id")
    # Two texts with one hash would be one document.
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
    """Return the training pairs without any text of the evaluation.

    A hard negative of training counts as its other texts do: training sees the held-out text, too,
    when it pushes it away from a query. A negative of a held-out pair is neither asked nor ranked,
    so training may use it. `chosen`, the asked pairs, is small enough for every executor.
    """
    sides = F.explode(F.array(*(text_key(F.col(side)) for side in _ASKED)))
    # A single text has no other side, and a null is no shared text.
    keys = F.broadcast(chosen.select(sides.alias("_key")).where("_key is not null").distinct())
    for text, known in zip(text_columns(settings), known_keys(settings), strict=True):
        pairs = pairs.withColumn("_key", text_key(text, known))
        pairs = pairs.join(keys, "_key", "left_anti").drop("_key")
    return pairs


@dataclass(frozen=True)
class JudgedPairs:
    """The pairs of a source, before the split.

    `settings` describe the corpus as if the source were alone; the name is empty for a single
    source without one. `rows`, with reasons, are the origin of the pairs; `pairs` are all, with
    `held`. `judged` are the held-out pairs with their reasons (None if there are none), and
    `chosen` the asked ones among them.
    """

    settings: CorpusSettings
    name: str
    rows: DataFrame
    pairs: DataFrame
    judged: DataFrame | None = None
    chosen: Kept | None = None

    @property
    def asked(self) -> int:
        """The number of pairs of the evaluation."""
        return self.chosen.rows if self.chosen is not None else 0


@dataclass(frozen=True)
class Split:
    """The sizes of the split.

    `documents` are the texts to search, training documents included; `written` are the training
    pairs of each source.
    """

    asked: int
    documents: int
    written: tuple[int, ...]


def judge_pairs(
    scratch: Scratch, rows: DataFrame, pairs: DataFrame, settings: CorpusSettings, name: str
) -> JudgedPairs:
    """Choose the held-out pairs of a source, and the asked ones among them."""
    if not settings.evaluation_share or settings.pairs == "single":
        return JudgedPairs(settings, name, rows, pairs.withColumn("held", F.lit(False)))
    pairs = mark_held_out(pairs, settings)
    judged = scratch.keep(judge_held_out(pairs, settings))
    chosen = scratch.keep_counted(choose_held_out(judged, settings))
    return JudgedPairs(settings, name, rows, pairs, judged, chosen)


def write_split(session: SparkSession, sources: Sequence[JudgedPairs], aside: Location) -> Split:
    """Write the training pairs and the evaluation into the folder of the corpus."""
    corpus = CorpusFolder(aside)
    asking = [
        (source.name, source.chosen) for source in sources if source.chosen and source.chosen.rows
    ]
    documents, chosen = 0, None
    if asking:
        chosen = below_one_another([kept.frame for _, kept in asking])
        documents = write_evaluation(pa.concat_tables(_asked(*named) for named in asking), aside)
    training = [_training(number, source, chosen) for number, source in enumerate(sources)]
    write_parquet(below_one_another(training).sortWithinPartitions("id"), corpus.pairs)
    names = [source.name for source in sources]
    if any(names):
        counted = read_parquet(session, corpus.pairs).groupBy(SOURCE).count().collect()
        rows = {row[SOURCE]: row["count"] for row in counted}
        written = tuple(rows.get(number, 0) for number, _ in enumerate(names))
    else:
        written = (sum(rows_by_partition(corpus.pairs).values()),)
    most = sources[0].settings.evaluation_documents
    if asking and most:
        documents += _write_distractors(session, corpus, written, most, names)
    return Split(sum(source.asked for source in sources), documents, written)


def _asked(name: str, chosen: Kept) -> pa.Table:
    """Return pairs of the evaluation, with the name of their source if it has one."""
    table = chosen.to_arrow()
    column = pa.array([name] * len(table), pa.string())
    return table.append_column(SOURCE, column) if name else table


def _training(number: int, source: JudgedPairs, chosen: DataFrame | None) -> DataFrame:
    """Return the training pairs of a source, in their stored columns."""
    left = source.pairs.where("reason is null and not held")
    if chosen is not None:
        left = without_leaks(left, chosen, source.settings)
        if source.name:
            # A group, document or package asked by one source is no training data of another.
            asked = F.broadcast(chosen.select("unit").where("unit is not null").distinct())
            left = left.join(asked, "unit", "left_anti")
    columns = left.select(*PAIR_COLUMNS)
    if not source.name:
        return columns
    # One pair may be in several sources.
    id_in_source = F.xxhash64(F.lit(source.name), "id")
    return columns.withColumn("id", id_in_source).withColumn(SOURCE, F.lit(number))


def _write_distractors(
    session: SparkSession,
    corpus: CorpusFolder,
    written: Sequence[int],
    most: int,
    names: Sequence[str],
) -> int:
    """Write the training documents for held-out queries to search; return their number."""
    pairs = read_parquet(session, corpus.pairs)
    drawn = []
    for number, name in enumerate(names):
        of_source = pairs.where(F.col(SOURCE) == number) if name else pairs
        documents = draw_distractors(of_source, written[number], most)
        drawn.append(documents.withColumn(SOURCE, F.lit(name)) if name else documents)
    write_parquet(below_one_another(drawn), corpus.distractors)
    return sum(rows_by_partition(corpus.distractors).values())
