"""Parts the pairs of all sources into what is trained on and what is held out.

Bounds on the rows that lack a usable value, and scores that say nothing. Runs on the driver.

A rule for texts may drop most of a corpus, and does what it is for. A row whose score, group or
text is not there, or is not what the settings say, is most often a wrong setting; and what is left
of scores out of their range is biased.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.catalog import FORMATS
from pipelines.corpus import held_out
from pipelines.corpus.funnel import ROWS, FunnelLine
from pipelines.corpus.held_out import draw_distractors
from pipelines.corpus.kept_units import below_one_another
from pipelines.corpus.pairs import NO_GROUP, NO_SCORE, OUT_OF_RANGE
from pipelines.corpus.readers.inputs import number_in
from pipelines.corpus.texts import NO_TITLE
from pipelines.corpus.unit_rows import DELETED, shows_excerpts
from pipelines.errors import InputError
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


MOST_SCORES = 0.1
MOST_OTHERS = 0.5
"""Shares of the rows that may lack a usable score, and another value, unless settings say so."""
_FEW = 5
"""So few rows say nothing of a corpus."""
_MISSING = ("no text", "empty text", NO_GROUP, NO_TITLE)
_EXCERPT = 20


def check_dropped(
    lines: Iterable[FunnelLine], units: DataFrame, settings: CorpusSettings, of: str = ""
) -> None:
    """Refuses a corpus of which too many rows lack a usable value.

    Args:
        lines: Of its funnel.
        units: The rows of :mod:`pipelines.corpus.texts`, for examples.
        settings: Of the corpus, as if the source were alone.
        of: Which source it is, in words.

    Raises:
        InputError: With the setting of the values, or `corpus.max_dropped`.
    """
    rows = [line for line in lines if line.level == ROWS]
    dropped = {line.name: line.rows for line in rows if line.kind == "dropped"}
    unread = sum(line.rows for line in rows if line.kind == "quarantined")
    total = sum(line.rows for line in rows if line.kind == "in") - unread - dropped.get(DELETED, 0)
    scoreless = {name: dropped.get(name, 0) for name in (OUT_OF_RANGE, NO_SCORE)}
    if _is_too_much(scoreless.values(), total, settings.max_dropped, MOST_SCORES):
        raise _wrong_scores(scoreless, total, units, settings, of)
    # Documents have no columns: whether one has a title is no setting.
    missing = {name: dropped.get(name, 0) for name in _MISSING}
    has_columns = FORMATS.load(settings.format).columns
    if has_columns and _is_too_much(missing.values(), total, settings.max_dropped, MOST_OTHERS):
        lacking = ", ".join(f"{rows} {name}" for name, rows in missing.items() if rows)
        raise InputError(
            "corpus.max_dropped",
            f"{sum(missing.values())} of {total} rows{of} lack a value ({lacking})",
            f"name columns that hold values, or set it to at least {_share(missing, total)}",
        )


def _is_too_much(rows: Iterable[int], total: int, told: float | None, most: float) -> bool:
    lost = sum(rows)
    return lost > _FEW and lost > (most if told is None else told) * total


def _share(rows: dict[str, int], total: int) -> float:
    return math.ceil(1000 * sum(rows.values()) / total) / 1000


def _wrong_scores(
    scoreless: dict[str, int], total: int, units: DataFrame, settings: CorpusSettings, of: str
) -> InputError:
    """Return what is wrong with most of the scores that are not used."""
    number = F.expr(number_in("score"))
    share = _share(scoreless, total)
    # Where most would go, to allow it is no cure.
    or_more = f", or set corpus.max_dropped to at least {share}" if share <= MOST_OTHERS else ""
    if scoreless[OUT_OF_RANGE] >= scoreless[NO_SCORE]:
        finite = units.where(number.isNotNull() & ~F.isnan(number))
        found = finite.agg(F.min(number).alias("low"), F.max(number).alias("high")).collect()[0]
        low, high = settings.score_range
        return InputError(
            "corpus.score_range",
            f"{scoreless[OUT_OF_RANGE]} of {total} rows{of} have a score outside of [{low:g}, "
            f"{high:g}]; the column goes from {found['low']} to {found['high']}",
            f"set it to the lowest and the highest score{or_more}",
        )
    named = settings.score_column or ", ".join(settings.score_columns)
    key = "corpus.score_column" if settings.score_column else "corpus.score_columns"
    problem = f"{scoreless[NO_SCORE]} of {total} rows{of} have no number in `{named}`"
    remedy = f"name a column of numbers, or mend them{or_more}"
    wrong = units.where(F.col("score").isNotNull() & number.isNull())
    shown = wrong.agg(F.min("score")).collect()[0][0] if shows_excerpts(settings) else None
    if shown is None:
        return InputError(key, problem, remedy)
    remedy = f"write numbers with a decimal point, as in 3.4{or_more}" if "," in shown else remedy
    return InputError(key, f"{problem}, such as `{shown[:_EXCERPT]}`", remedy)


def check_scores_differ(
    session: SparkSession, pairs: Location, sources: Sequence[CorpusSettings], names: Sequence[str]
) -> None:
    """Refuses a source whose pairs for training have one score, of which nothing is learnt.

    Args:
        session: Reads them.
        pairs: Those for training, of all sources.
        sources: The settings of each source.
        names: Of the sources; empty where there is one without a name.

    Raises:
        InputError: With the setting that names the scores.
    """
    lowest = F.least("score", F.array_min("candidate_scores"))
    highest = F.greatest("score", F.array_max("candidate_scores"))
    asked = [one.score_column is not None or bool(one.score_columns) for one in sources]
    if not any(asked):
        return
    rows = read_parquet(session, pairs)
    number = F.col(SOURCE) if names else F.lit(0)
    measured = rows.groupBy(number.alias(SOURCE)).agg(
        F.count(lowest).alias("rows"), F.min(lowest).alias("low"), F.max(highest).alias("high")
    )
    for found in measured.orderBy(SOURCE).collect():
        if found["rows"] > 1 and found["low"] == found["high"]:
            of = f" of source {names[found[SOURCE]]}" if names else ""
            is_alone = sources[found[SOURCE]].score_column is not None
            raise InputError(
                "corpus.score_column" if is_alone else "corpus.score_columns",
                f"all {found['rows']} pairs for training{of} have the same score",
                "name a column whose scores differ, or a loss without scores",
            )
