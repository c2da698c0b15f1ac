"""Parts the pairs of all sources into what is trained on and what is held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.corpus import held_out
from pipelines.corpus.distractors import draw_distractors
from pipelines.corpus.kept_units.cutting import below_one_another
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import CorpusFolder
from pipelines.settings import CorpusSettings
from pipelines.spark.frames import Kept, Scratch, read_parquet, rows_by_partition, write_parquet

PAIR_COLUMNS = ("id", "group", "anchor", "positive", "negatives", "score", "candidate_scores")
SOURCE = "source"


@dataclass(frozen=True)
class JudgedPairs:
    """The pairs of a source, before they are parted.

    Attributes:
        settings: Of the corpus, as if the source were alone.
        rows: What the pairs were made of, with reasons.
        pairs: All pairs, with `held`.
        judged: Those that are held out, with their reasons; None where none are held out.
        chosen: Of these, the pairs of the evaluation.
    """

    settings: CorpusSettings
    rows: DataFrame
    pairs: DataFrame
    judged: DataFrame | None = None
    chosen: Kept | None = None

    @property
    def asked(self) -> int:
        """How many pairs of the evaluation there are."""
        return self.chosen.rows if self.chosen is not None else 0


@dataclass(frozen=True)
class Split:
    """What is for training and what for evaluation.

    Attributes:
        asked: Pairs of the evaluation.
        documents: Texts that it searches, those of pairs for training included.
        written: Pairs for training, of each source.
    """

    asked: int
    documents: int
    written: tuple[int, ...]


def judge_pairs(
    scratch: Scratch, rows: DataFrame, pairs: DataFrame, settings: CorpusSettings
) -> JudgedPairs:
    """Decides which pairs are held out, and which of them are asked.

    Args:
        scratch: For what is needed more than once.
        rows: What the pairs were made of.
        pairs: With their reasons and `earlier`.
        settings: Of the corpus, as if the source were alone.
    """
    if not settings.evaluation_share or settings.pairs == "single":
        return JudgedPairs(settings, rows, pairs.withColumn("held", F.lit(False)))
    pairs = held_out.mark_held_out(pairs, settings)
    judged = scratch.keep(held_out.judge_held_out(pairs, settings))
    chosen = scratch.keep_counted(held_out.choose_held_out(judged, settings))
    return JudgedPairs(settings, rows, pairs, judged, chosen)


def write_split(
    session: SparkSession, sources: Sequence[JudgedPairs], names: Sequence[str], aside: Location
) -> Split:
    """Writes the pairs for training and those of the evaluation.

    Args:
        session: Counts what was written.
        sources: The pairs of each.
        names: Of the sources; empty where there is one without a name.
        aside: The folder of the corpus.
    """
    asking = [one.chosen for one in sources if one.chosen is not None and one.chosen.rows]
    documents = 0
    if asking:
        documents = held_out.write_evaluation(_asked(sources, names), aside)
    training = []
    for number, one in enumerate(sources):
        left = one.pairs.where("reason is null and not held")
        if asking:
            chosen = below_one_another([kept.frame for kept in asking])
            left = held_out.without_leaks(left, chosen, one.settings)
            left = held_out.without_units(left, chosen) if names else left
        columns = left.select(*PAIR_COLUMNS)
        if names:
            # One pair may be in several sources.
            own = F.xxhash64(F.lit(names[number]), "id")
            columns = columns.withColumn("id", own).withColumn(SOURCE, F.lit(number))
        training.append(columns)
    path = CorpusFolder(aside).pairs
    write_parquet(below_one_another(training).sortWithinPartitions("id"), path)
    written = _written(session, path, names)
    most = sources[0].settings.evaluation_documents
    if asking and most:
        documents += _write_distractors(session, CorpusFolder(aside), written, most, names)
    return Split(sum(one.asked for one in sources), documents, written)


def _asked(sources: Sequence[JudgedPairs], names: Sequence[str]) -> pa.Table:
    """The pairs of the evaluation, with the names of their sources where they have some."""
    tables = []
    for number, one in enumerate(sources):
        if one.chosen is None or not one.chosen.rows:
            continue
        table = one.chosen.to_arrow()
        if names:
            name = pa.array([names[number]] * len(table), pa.string())
            table = table.append_column(SOURCE, name)
        tables.append(table)
    return pa.concat_tables(tables)


def _write_distractors(
    session: SparkSession,
    corpus: CorpusFolder,
    written: Sequence[int],
    most: int,
    names: Sequence[str],
) -> int:
    """Writes what held-out queries search of the pairs for training; returns how many there are.

    Args:
        session: Draws them.
        corpus: With its pairs.
        written: Pairs of each source.
        most: Documents of each source.
        names: Of the sources; empty where there is one without a name.
    """
    pairs = read_parquet(session, corpus.pairs)
    if names:
        drawn = below_one_another(
            [
                draw_distractors(
                    pairs.where(F.col(SOURCE) == number), written[number], most
                ).withColumn(SOURCE, F.lit(name))
                for number, name in enumerate(names)
            ]
        )
    else:
        drawn = draw_distractors(pairs, written[0], most)
    write_parquet(drawn, corpus.distractors)
    return sum(rows_by_partition(corpus.distractors).values())


def _written(session: SparkSession, path: Location, names: Sequence[str]) -> tuple[int, ...]:
    """How many pairs of each source lie in the files."""
    if not names:
        return (sum(rows_by_partition(path).values()),)
    counted = read_parquet(session, path).groupBy(SOURCE).count().collect()
    rows = {row[SOURCE]: row["count"] for row in counted}
    return tuple(rows.get(number, 0) for number, _ in enumerate(names))
