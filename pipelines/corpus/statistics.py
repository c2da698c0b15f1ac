"""What the funnel and the corpus report tell: rows by reason, and examples of them.

All counts come from one Spark job and all examples from another: of a small corpus, starting a job
costs far more than counting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.corpus import held_out
from pipelines.corpus import pairs as pair_forms
from pipelines.corpus.cleaning import prose
from pipelines.corpus.dedup import marks as overlaps
from pipelines.corpus.funnel import (
    FILES,
    LINES,
    PAIRS,
    PARAGRAPHS,
    ROWS,
    SENTENCES,
    FunnelLine,
    level_lines,
)
from pipelines.corpus.texts import EXAMPLE_CHARACTERS, NO_TITLE, text_level
from pipelines.corpus.unit_rows import DELETED
from pipelines.errors import InputError, PipelineError
from pipelines.settings import CorpusSettings

Reasons = Mapping[str | None, int]
"""Rows by reason; the reason of what is kept is None."""

_ROWS, _PAIRS, _HELD_OUT = "rows", "pairs", "held out"


@dataclass(frozen=True)
class Counts:
    """How much was kept and dropped.

    Attributes:
        rows: By level.
        pairs: All that were made.
        trainable: Pairs without a reason that are not held out.
        held_out: Pairs that are held out; a reason says why one is not asked.
    """

    rows: Mapping[str, Reasons]
    pairs: Reasons
    trainable: int
    held_out: Reasons


def count_reasons(rows: DataFrame, pairs: DataFrame, judged: DataFrame | None) -> Counts:
    """Counts rows and pairs by reason.

    Args:
        rows: With `level`, `reason` and `rows`.
        pairs: With `reason` and `held`.
        judged: The held-out pairs with their reasons; None where none are held out.
    """
    one, held = F.lit(1).cast("long"), F.col("held").cast("string")
    parts = [
        _grouped(rows, _ROWS, F.col("level"), F.col("rows")),
        _grouped(pairs, _PAIRS, held, one),
    ]
    if judged is not None:
        parts.append(_grouped(judged, _HELD_OUT, F.lit(None).cast("string"), one))
    by_level: dict[str, dict[str | None, int]] = {}
    of_pairs: Counter[str | None] = Counter()
    of_held_out: dict[str | None, int] = {}
    trainable = 0
    for table, group, reason, number in reduce(DataFrame.unionAll, parts).collect():
        if table == _ROWS:
            by_level.setdefault(group, {})[reason] = number
        elif table == _HELD_OUT:
            of_held_out[reason] = number
        else:
            of_pairs[reason] += number
            trainable += number if reason is None and group == "false" else 0
    return Counts(by_level, of_pairs, trainable, of_held_out)


def _grouped(frame: DataFrame, table: str, group: Column, number: Column) -> DataFrame:
    grouped = frame.groupBy(F.lit(table).alias("table"), group.alias("group"), "reason")
    return grouped.agg(F.sum(number).alias("number"))


def dropped(reasons: Reasons) -> dict[str, int]:
    """What is not kept."""
    return {reason: number for reason, number in reasons.items() if reason is not None}


def example_texts(rows: DataFrame, pairs: DataFrame, most: int) -> dict[str, dict[str, list[str]]]:
    """A few texts of each level and reason, chosen by their hashes: the same for the same corpus.

    Args:
        rows: With `level`, `reason`, `anchor` and `positive`.
        pairs: With `reason`, `anchor` and `positive`.
        most: Texts of each reason; not 0.
    """
    columns = ("level", "reason", "anchor", "positive")
    both = rows.select(*columns).unionAll(pairs.withColumn("level", F.lit(PAIRS)).select(*columns))
    text = F.substring(F.concat_ws(" | ", "anchor", "positive"), 1, EXAMPLE_CHARACTERS)
    of_dropped = both.where("reason is not null").select("level", "reason", text.alias("text"))
    chosen = [
        # The hash that the executors choose by, where rows are only counted.
        F.min_by("text", F.xxhash64(F.concat(F.lit(str(number)), "text"))).alias(f"text_{number}")
        for number in range(most)
    ]
    found = of_dropped.where("text != ''").groupBy("level", "reason").agg(*chosen).collect()
    examples: dict[str, dict[str, list[str]]] = {}
    for level, reason, *texts in sorted(found):
        examples.setdefault(level, {})[reason] = list(dict.fromkeys(texts))
    return examples


TRAINING = "pairs for training"
HELD_OUT = "held out for evaluation"
_GIVES_PAIRS = "that give pairs"
_LEVELS: Mapping[str, tuple[str, str]] = {
    FILES: ("source files found", "source files with docstrings"),
    ROWS: ("rows read", "rows that hold texts"),
    PARAGRAPHS: ("paragraphs found", "paragraphs of prose"),
    LINES: ("lines found", ""),
    SENTENCES: ("sentences found", ""),
}
"""Levels before the pairs, in their order: what came in, and what is kept."""
_REMEDIES: Mapping[str, str] = {
    "no text": "name columns and inputs that hold text",
    "empty text": "name columns and inputs that hold text",
    "not UTF-8": "save the inputs as UTF-8",
    "no letter in it": "name columns that hold text in words",
    pair_forms.NO_SCORE: "let corpus.score_column or corpus.score_columns name columns of numbers",
    pair_forms.NO_GROUP: "name a corpus.group_column that has values",
    pair_forms.SAME_SIDES: "name two different columns as corpus.pair_columns",
    pair_forms.NO_NEIGHBOUR: "set corpus.pairs to single, or name longer texts",
    NO_TITLE: "name a corpus.title_column that has values, or another corpus.pairs",
    DELETED: "name inputs with rows of other keys",
    "too short": "lower corpus.min_characters",
    "too long": "raise corpus.max_characters",
    "too many symbols": "raise corpus.max_symbols",
    "repeats itself": "raise corpus.max_repeated",
    "other language": "see corpus.languages",
    pair_forms.ALONE: "set corpus.group_column to a column whose values repeat",
    overlaps.EXCLUDED: "see corpus.exclude",
    overlaps.NEARLY_EXCLUDED: "see corpus.exclude and corpus.near_duplicates",
    overlaps.NEAR_DUPLICATE: "see corpus.near_duplicates",
    pair_forms.OUT_OF_RANGE: "set corpus.score_range",
    prose.NO_PROSE: "name inputs of whole sentences, or set corpus.pairs to columns or single",
    prose.NOTHING_AFTER: "set corpus.pairs to single, or name longer texts",
    **dict.fromkeys(
        (held_out.LEAK, held_out.SAME_GROUP, held_out.SAME_QUERY, held_out.BEYOND),
        "set corpus.evaluation_share=0",
    ),
}


def lines_before_pairs(
    counts: Counts, quarantined: Mapping[str, int], settings: CorpusSettings
) -> list[FunnelLine]:
    """The levels before the pairs.

    Args:
        counts: Of what was read.
        quarantined: Rows that could not be read, by reason.
        settings: Of the corpus.
    """
    lines: list[FunnelLine] = []
    for level, (found, remaining) in _LEVELS.items():
        unread = quarantined if level == ROWS else {}
        reasons = counts.rows.get(level, {})
        total = sum(reasons.values()) + sum(unread.values())
        last = level == text_level(settings)
        if total or level in (ROWS, text_level(settings)):
            name = f"{level} {_GIVES_PAIRS}" if last else remaining
            kept = {name: reasons.get(None, 0)}
            lines += level_lines(level, (found, total), dropped(reasons), kept, unread)
    return lines


def lines_of_pairs(
    counts: Counts, asked: int, written: int, *, some_asked: bool
) -> list[FunnelLine]:
    """The level of pairs.

    Args:
        counts: Of the pairs.
        asked: Pairs of the evaluation.
        written: Pairs for training.
        some_asked: Whether any source has pairs of the evaluation, whose texts may be in this one.

    Raises:
        PipelineError: Fewer or more pairs lie in the files than were to be written.
    """
    reasons = dropped(counts.pairs) | dropped(counts.held_out)
    others = {
        held_out.BEYOND: counts.held_out.get(None, 0) - asked,
        held_out.LEAK: counts.trainable - written,
    }
    if min(others.values()) < 0 or (others[held_out.LEAK] and not some_asked):
        raise PipelineError(
            f"{written} of {counts.trainable} pairs for training are in their files, and"
            f" {asked} of {counts.held_out.get(None, 0)} that may be held out"
        )
    reasons |= {reason: rows for reason, rows in others.items() if rows}
    kept = {TRAINING: written, HELD_OUT: asked}
    return level_lines(PAIRS, ("pairs made", sum(counts.pairs.values())), reasons, kept)


def added_up(of_sources: Sequence[Sequence[FunnelLine]]) -> list[FunnelLine]:
    """The lines of several sources as those of one corpus: equal ones are summed up."""
    if len(of_sources) == 1:
        return [*of_sources[0]]
    rows: Counter[tuple[str, str, str]] = Counter()
    for line in (line for lines in of_sources for line in lines):
        rows[line.level, line.kind, line.name] += line.rows
    lines: list[FunnelLine] = []
    for level in (*_LEVELS, PAIRS):

        def of(kind: str, level: str = level) -> dict[str, int]:
            found = (key for key in rows if key[:2] == (level, kind))
            return {key[2]: rows[key] for key in found}

        for entered in of("in").items():
            lines += level_lines(level, entered, of("dropped"), of("kept"), of("quarantined"))
    return lines


def is_dropped(line: FunnelLine) -> bool:
    """Whether a line says what was not kept, though it could be read."""
    return line.kind == "dropped"


def check_some_left(lines: Iterable[FunnelLine], of: str = "") -> None:
    """Refuses a corpus of which nothing is left to train on.

    Args:
        lines: Of its funnel.
        of: Which source of the corpus it is, in words.

    Raises:
        InputError: With the reason for which most was dropped.
    """
    lines = list(lines)
    if any(line.name == TRAINING and line.rows for line in lines):
        return
    reasons = [line for line in lines if line.kind == "dropped" and line.level != FILES]
    read = next(line.rows for line in lines if line.level == ROWS and line.kind == "in")
    if not reasons:
        held = any(line.name == HELD_OUT and line.rows for line in lines)
        raise InputError(
            "corpus.inputs",
            f"no pair is left of {read} rows{of}" + (": all are held out" if held else ""),
            "set corpus.evaluation_share=0" if held else "name inputs that hold text",
        )
    most = max(reasons, key=lambda line: line.rows)
    raise InputError(
        "corpus.inputs",
        f"no pair is left of {read} rows{of}: most often `{most.name}` ({most.rows})",
        _REMEDIES.get(most.name, "name other inputs"),
    )
