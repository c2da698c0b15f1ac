"""The fate of the rows of a corpus: counts and examples, the quarantine, and the checks.

All counts come from one Spark job and all examples from another: on a small corpus, starting a job
costs far more than counting. A rule for texts may rightly drop most of a corpus. But a missing or
unfit score, group or text most often means a wrong setting, and dropping scores out of their range
biases the rest. Runs on the driver.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.catalog import FORMATS
from pipelines.corpus import held_out
from pipelines.corpus import pairs as pair_forms
from pipelines.corpus.cleaning.prose import NO_PROSE, NOTHING_AFTER
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
from pipelines.corpus.readers.csv_files import WRONG_FIELDS, WRONG_QUOTES
from pipelines.corpus.readers.inputs import number_in
from pipelines.corpus.texts import EXAMPLE_CHARACTERS, NO_TITLE, text_level
from pipelines.corpus.unit_rows import DELETED, shows_excerpts
from pipelines.errors import InputError, PipelineError
from pipelines.files import storage
from pipelines.files.locations import Location, arrow_source
from pipelines.files.prepared_folder import CorpusFolder
from pipelines.settings import CorpusSettings
from pipelines.spark.frames import read_parquet, write_single_file

Reasons = Mapping[str | None, int]
"""Rows by reason; None for kept rows."""

_ROWS, _PAIRS, _HELD_OUT = "rows", "pairs", "held out"


@dataclass(frozen=True)
class Counts:
    """The numbers of kept and dropped rows and pairs, by reason; `rows` also by level.

    `pairs` counts all pairs, `trainable` the pairs for training, leaks included. In `held_out` a
    reason says why the evaluation does not ask a held-out pair.
    """

    rows: Mapping[str, Reasons]
    pairs: Reasons
    trainable: int
    held_out: Reasons


def count_reasons(rows: DataFrame, pairs: DataFrame, judged: DataFrame | None) -> Counts:
    """Count rows (`level`, `reason`, `rows`) and pairs (`reason`, `held`) by reason.

    `judged` are the held-out pairs with their reasons; None if there are none.
    """
    single, held = F.lit(1).cast("long"), F.col("held").cast("string")
    parts = [
        _grouped(rows, _ROWS, F.col("level"), F.col("rows")),
        _grouped(pairs, _PAIRS, held, single),
    ]
    if judged is not None:
        parts.append(_grouped(judged, _HELD_OUT, F.lit(""), single))
    found: dict[tuple[str, str], Counter[str | None]] = defaultdict(Counter)
    for table, group, reason, number in reduce(DataFrame.unionAll, parts).collect():
        found[table, group][reason] += number
    return Counts(
        rows={level: reasons for (table, level), reasons in found.items() if table == _ROWS},
        pairs=found[_PAIRS, "true"] + found[_PAIRS, "false"],
        trainable=found[_PAIRS, "false"][None],
        held_out=found[_HELD_OUT, ""],
    )


def _grouped(frame: DataFrame, table: str, group: Column, number: Column) -> DataFrame:
    grouped = frame.groupBy(F.lit(table).alias("table"), group.alias("group"), "reason")
    return grouped.agg(F.sum(number).alias("number"))


def _dropped(reasons: Reasons) -> dict[str, int]:
    return {reason: number for reason, number in reasons.items() if reason is not None}


def example_texts(rows: DataFrame, pairs: DataFrame, most: int) -> dict[str, dict[str, list[str]]]:
    """Return up to `most` (at least 1) texts of each level and reason, chosen by their hashes.

    The same corpus gives the same texts. Rows have `level`, `reason`, `anchor` and `positive`;
    pairs the same but for `level`.
    """
    columns = ("level", "reason", "anchor", "positive")
    both = rows.select(*columns).unionAll(pairs.withColumn("level", F.lit(PAIRS)).select(*columns))
    text = F.substring(F.concat_ws(" | ", "anchor", "positive"), 1, EXAMPLE_CHARACTERS)
    dropped = both.where("reason is not null").select("level", "reason", text.alias("text"))
    chosen = [
        # The hash by which executors choose the examples of rows that are only counted.
        F.min_by("text", F.xxhash64(F.concat(F.lit(str(number)), "text"))).alias(f"text_{number}")
        for number in range(most)
    ]
    found = dropped.where("text != ''").groupBy("level", "reason").agg(*chosen).collect()
    examples: dict[str, dict[str, list[str]]] = {}
    for level, reason, *texts in sorted(found):
        examples.setdefault(level, {})[reason] = list(dict.fromkeys(texts))
    return examples


TRAINING = "pairs for training"
HELD_OUT = "held out for evaluation"
_LEVELS: Mapping[str, tuple[str, str]] = {
    FILES: ("source files found", "source files with docstrings"),
    ROWS: ("rows read", "rows that hold texts"),
    PARAGRAPHS: ("paragraphs found", "paragraphs of prose"),
    LINES: ("lines found", ""),
    SENTENCES: ("sentences found", ""),
}
"""Levels before the pairs, in their order: the names of the input and the kept."""
_REMEDIES: Mapping[str, str] = {
    "no text": "Name columns and inputs that hold text",
    "empty text": "Name columns and inputs that hold text",
    "not UTF-8": "Save the inputs as UTF-8",
    "no letter in it": "Name columns that hold text in words",
    pair_forms.NO_SCORE: "Name columns of numbers as corpus.score_column or corpus.score_columns",
    pair_forms.NO_GROUP: "Name a corpus.group_column that has values",
    pair_forms.SAME_SIDES: "Name two different columns as corpus.pair_columns",
    pair_forms.NO_NEIGHBOUR: "Set corpus.pairs to single, or name longer texts",
    NO_TITLE: "Name a corpus.title_column that has values, or another corpus.pairs",
    DELETED: "Name inputs with rows of other keys",
    "too short": "Lower corpus.min_characters",
    "too long": "Raise corpus.max_characters",
    "too many symbols": "Raise corpus.max_symbols",
    "repeats itself": "Raise corpus.max_repeated",
    "other language": "Add the languages of the texts to corpus.languages",
    pair_forms.ALONE: "Set corpus.group_column to a column whose values repeat",
    overlaps.EXCLUDED: "Name other files as corpus.exclude",
    overlaps.NEARLY_EXCLUDED: "Check corpus.exclude and corpus.near_duplicates",
    overlaps.NEAR_DUPLICATE: "Check corpus.near_duplicates",
    pair_forms.OUT_OF_RANGE: "Set corpus.score_range",
    NO_PROSE: "Name inputs of whole sentences, or set corpus.pairs to columns or single",
    NOTHING_AFTER: "Set corpus.pairs to single, or name longer texts",
    **dict.fromkeys(
        (held_out.LEAK, held_out.SAME_GROUP, held_out.SAME_QUERY, held_out.BEYOND),
        "Set corpus.evaluation_share=0",
    ),
}


def lines_before_pairs(
    counts: Counts, quarantined: Mapping[str, int], settings: CorpusSettings
) -> list[FunnelLine]:
    """Return the levels before the pairs; `quarantined` counts unreadable rows by reason."""
    lines: list[FunnelLine] = []
    for level, (found, remaining) in _LEVELS.items():
        unread = quarantined if level == ROWS else {}
        reasons = counts.rows.get(level, {})
        total = sum(reasons.values()) + sum(unread.values())
        is_last = level == text_level(settings)
        if total or is_last or level == ROWS:
            name = f"{level} that give pairs" if is_last else remaining
            kept = {name: reasons.get(None, 0)}
            lines += level_lines(level, (found, total), _dropped(reasons), kept, unread)
    return lines


def lines_of_pairs(
    counts: Counts, asked: int, written: int, *, some_asked: bool
) -> list[FunnelLine]:
    """Return the level of pairs; refuse counts other than the rows in the files.

    `some_asked` says whether any source has evaluation pairs: their texts may be in this one.
    """
    reasons = _dropped(counts.pairs) | _dropped(counts.held_out)
    counted_later = {
        held_out.BEYOND: counts.held_out.get(None, 0) - asked,
        held_out.LEAK: counts.trainable - written,
    }
    if min(counted_later.values()) < 0 or (counted_later[held_out.LEAK] and not some_asked):
        raise PipelineError(
            f"the files hold {written} of {counts.trainable} training pairs, and"
            f" {asked} of {counts.held_out.get(None, 0)} held-out pairs"
        )
    reasons |= {reason: rows for reason, rows in counted_later.items() if rows}
    kept = {TRAINING: written, HELD_OUT: asked}
    return level_lines(PAIRS, ("pairs made", sum(counts.pairs.values())), reasons, kept)


def added_up(of_sources: Sequence[Sequence[FunnelLine]]) -> list[FunnelLine]:
    """Add up the lines of several sources, as the lines of one corpus."""
    if len(of_sources) == 1:
        return [*of_sources[0]]
    rows: Counter[tuple[str, str, str]] = Counter()
    for line in (line for lines in of_sources for line in lines):
        rows[line.level, line.kind, line.name] += line.rows
    lines: list[FunnelLine] = []
    for level in (*_LEVELS, PAIRS):

        def counts(kind: str, level: str = level) -> dict[str, int]:
            found = (key for key in rows if key[:2] == (level, kind))
            return {key[2]: rows[key] for key in found}

        for entered in counts("in").items():
            parts = (counts(kind) for kind in ("dropped", "kept", "quarantined"))
            lines += level_lines(level, entered, *parts)
    return lines


QUARANTINE_SCHEMA = pa.schema(
    {
        "file": pa.string(),
        "offset": pa.int64(),
        "reason": pa.string(),
        "rows": pa.int64(),
        "excerpt": pa.string(),
    }
)
"""The columns of `quarantine.parquet`."""
_MOST_TO_ALLOW = 0.5
_UNREAD_REMEDIES = {
    WRONG_QUOTES: 'Repair the input (where it has \\" within quotes, set corpus.csv_escape to \\)',
    WRONG_FIELDS: "Repair the input (check corpus.csv_separator and corpus.csv_escape)",
}

_MAX_WRITTEN = 1_000_000


def write_quarantine(units: DataFrame, folder: Location, *, empty: bool) -> None:
    """Write `quarantine.parquet`: one row for each unreadable place, sorted.

    `empty` says that everything was readable: this needs no Spark job.
    """
    if empty:
        with storage.built_file(CorpusFolder(folder).quarantine) as aside:
            pq.write_table(QUARANTINE_SCHEMA.empty_table(), aside)
        return
    unread = units.where("quarantined is not null").selectExpr(
        "file",
        "offset",
        "quarantined as reason",
        "rows",
        r"trim(both ' \r\n\t' from anchor) as excerpt",
    )
    ordered = unread.orderBy("file", "offset", "reason", "excerpt").limit(_MAX_WRITTEN)
    write_single_file(ordered, CorpusFolder(folder).quarantine)


def check_quarantined(total: int, unread: int, measure: str, units: DataFrame, most: float) -> None:
    """Refuse a corpus with too much unreadable data; the error names the first place.

    `total` counts all rows or bytes (`measure`), unread ones included. `units` are the rows of
    :mod:`pipelines.corpus.texts`.
    """
    if not unread or unread <= most * total:
        return
    place = ("file", "offset", "quarantined")
    first = units.where("quarantined is not null").orderBy(*place).select(*place).first()
    assert first is not None, "there are reasons, so there are rows"
    remedy, share = _UNREAD_REMEDIES.get(first["quarantined"], "Repair the input"), unread / total
    # Allowing so much is no cure where little would be left.
    is_most = share > _MOST_TO_ALLOW
    remedy += ", or name another" if is_most else f", or set it to at least {_rounded_up(share)}"
    raise InputError(
        "corpus.max_quarantined",
        f"{unread} of {total} {measure} cannot be read, the first in {first['file']} at byte "
        f"{first['offset'] or 0} ({first['quarantined']})",
        remedy,
    )


def _rounded_up(share: float) -> float:
    return math.ceil(1000 * share) / 1000


def first_places(folder: Location, most: int) -> list[dict[str, Any]]:
    """Return the first rows of `quarantine.parquet` in a corpus, without their excerpts."""
    columns = [name for name in QUARANTINE_SCHEMA.names if name != "excerpt"]
    with pq.ParquetFile(arrow_source(CorpusFolder(folder).quarantine)) as file:
        for batch in file.iter_batches(batch_size=most, columns=columns):
            rows: list[dict[str, Any]] = batch.to_pylist()
            return rows
    return []


MOST_SCORES = 0.1
MOST_OTHERS = 0.5
"""Default shares of the rows that may lack a usable score, and another value."""
_FEW = 5
"""So few rows say nothing about a corpus."""
_MISSING = ("no text", "empty text", pair_forms.NO_GROUP, NO_TITLE)
_EXCERPT = 20


def check_dropped(
    lines: Iterable[FunnelLine],
    units: DataFrame,
    settings: CorpusSettings,
    of_source: str = "",
) -> None:
    """Refuse a corpus, or a source with its settings, if too many rows lack a usable value.

    The error names the setting of the values, or `corpus.max_dropped`.
    """
    rows = [line for line in lines if line.level == ROWS]
    dropped = Counter({line.name: line.rows for line in rows if line.kind == "dropped"})
    unread = sum(line.rows for line in rows if line.kind == "quarantined")
    total = sum(line.rows for line in rows if line.kind == "in") - unread - dropped[DELETED]

    def is_too_much(lost: Mapping[str, int], most: float) -> bool:
        share = most if settings.max_dropped is None else settings.max_dropped
        return sum(lost.values()) > max(_FEW, share * total)

    scoreless = {name: dropped[name] for name in (pair_forms.OUT_OF_RANGE, pair_forms.NO_SCORE)}
    if is_too_much(scoreless, MOST_SCORES):
        raise _wrong_scores(scoreless, total, units, settings, of_source)
    # Documents have no columns: whether one has a title is no setting.
    missing = {name: dropped[name] for name in _MISSING}
    if FORMATS.load(settings.format).columns and is_too_much(missing, MOST_OTHERS):
        lacking = ", ".join(f"{rows} {name}" for name, rows in missing.items() if rows)
        lost = sum(missing.values())
        raise InputError(
            "corpus.max_dropped",
            f"{lost} of {total} rows{of_source} lack a value ({lacking})",
            "Name columns that hold values, or set corpus.max_dropped to at least "
            f"{_rounded_up(lost / total)}",
        )


def _wrong_scores(
    scoreless: Mapping[str, int],
    total: int,
    units: DataFrame,
    settings: CorpusSettings,
    of_source: str,
) -> InputError:
    """Return the error for unusable scores, by their more frequent problem."""
    outside, missing = scoreless.values()
    number = F.expr(number_in("score"))
    share = _rounded_up((outside + missing) / total)
    # Allowing it is no cure where most rows would go.
    or_more = f", or set corpus.max_dropped to at least {share}" if share <= MOST_OTHERS else ""
    if outside >= missing:
        finite = units.where(number.isNotNull() & ~F.isnan(number))
        found = finite.agg(F.min(number).alias("low"), F.max(number).alias("high")).collect()[0]
        low, high = settings.score_range
        return InputError(
            "corpus.score_range",
            f"{outside} of {total} rows{of_source} have a score outside of [{low:g}, {high:g}]; the"
            f" column goes from {found['low']} to {found['high']}",
            f"Set it to the lowest and the highest score{or_more}",
        )
    named = settings.score_column or ", ".join(settings.score_columns)
    key = "corpus.score_column" if settings.score_column else "corpus.score_columns"
    problem = f"{missing} of {total} rows{of_source} have no number in `{named}`"
    remedy = f"Name a column of numbers, or correct them{or_more}"
    wrong = units.where(F.col("score").isNotNull() & number.isNull())
    shown = wrong.agg(F.min("score")).collect()[0][0] if shows_excerpts(settings) else None
    if shown is None:
        return InputError(key, problem, remedy)
    remedy = f"Write numbers with a decimal point, as in 3.4{or_more}" if "," in shown else remedy
    return InputError(key, f"{problem}, such as `{shown[:_EXCERPT]}`", remedy)


def check_scores_differ(
    session: SparkSession, pairs: Location, sources: Sequence[CorpusSettings], names: Sequence[str]
) -> None:
    """Refuse a source with one score for all its training pairs, since it teaches nothing.

    The error names the setting of the scores. `names` is empty for a single source without a name.
    """
    lowest = F.least("score", F.array_min("candidate_scores"))
    highest = F.greatest("score", F.array_max("candidate_scores"))
    asked = [source.score_column is not None or bool(source.score_columns) for source in sources]
    if not any(asked):
        return
    rows = read_parquet(session, pairs)
    number = F.col(held_out.SOURCE) if names else F.lit(0)
    measured = rows.groupBy(number.alias(held_out.SOURCE)).agg(
        F.count(lowest).alias("rows"), F.min(lowest).alias("low"), F.max(highest).alias("high")
    )
    for found in measured.orderBy(held_out.SOURCE).collect():
        # A single pair cannot have two scores.
        if found["rows"] > 1 and found["low"] == found["high"]:
            of_source = f" of source {names[found[held_out.SOURCE]]}" if names else ""
            is_single = sources[found[held_out.SOURCE]].score_column is not None
            raise InputError(
                "corpus.score_column" if is_single else "corpus.score_columns",
                f"all {found['rows']} training pairs{of_source} have the same score",
                "Name a column of different scores, or a loss without scores",
            )


def check_some_left(lines: Iterable[FunnelLine], of_source: str = "") -> None:
    """Refuse a corpus without a training pair; the error names the main reason."""
    lines = list(lines)
    if any(line.name == TRAINING and line.rows for line in lines):
        return
    reasons = [line for line in lines if line.kind == "dropped" and line.level != FILES]
    read = next(line.rows for line in lines if line.level == ROWS and line.kind == "in")
    if not reasons:
        held = any(line.name == HELD_OUT and line.rows for line in lines)
        raise InputError(
            "corpus.inputs",
            f"no pair is left of {read} rows{of_source}" + (": all are held out" if held else ""),
            "Set corpus.evaluation_share=0" if held else "Name inputs that hold text",
        )
    most = max(reasons, key=lambda line: line.rows)
    raise InputError(
        "corpus.inputs",
        f"no pair is left of {read} rows{of_source}, "
        f"and the main reason is `{most.name}` ({most.rows})",
        _REMEDIES.get(most.name, "Name other inputs"),
    )
