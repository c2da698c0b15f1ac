"""The corpus stage: from `corpus.inputs` to pairs, an evaluation set and a funnel."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.corpus import held_out
from pipelines.corpus import pairs as pair_forms
from pipelines.corpus.cleaning import prose
from pipelines.corpus.cleaning.languages import check_languages
from pipelines.corpus.cleaning.redaction import check_redactor, redact_batches
from pipelines.corpus.dedup import marks as overlaps
from pipelines.corpus.funnel import (
    FILES,
    LINES,
    PAIRS,
    PARAGRAPHS,
    ROWS,
    SENTENCES,
    FunnelLine,
    check_adds_up,
    level_lines,
    losses,
)
from pipelines.corpus.kept_units.cutting import cut_inputs
from pipelines.corpus.quarantine import check_quarantined, first_places, write_quarantine
from pipelines.corpus.readers import FORMATS
from pipelines.corpus.readers.sources import texts_of
from pipelines.corpus.statistics import Counts, count_reasons, dropped, example_texts
from pipelines.corpus.units import text_level
from pipelines.errors import InputError, PipelineError
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import CorpusFolder, PreparedFolder
from pipelines.files.storage import new_folder, write_json
from pipelines.progress import next_part
from pipelines.settings import Config, CorpusSettings, StorageSettings
from pipelines.spark.frames import (
    Scratch,
    rows_by_partition,
    shuffle_partitions,
    write_parquet,
)

logger = logging.getLogger(__name__)

PAIR_COLUMNS = ("id", "group", "anchor", "positive", "negatives", "score", "candidate_scores")

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
# Rows of the quarantine that the report shows.
_PLACES = 10
_BYTES_PER_PARTITION = 64 * 2**20
_REMEDIES: Mapping[str, str] = {
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
    prose.NOTHING_AFTER: "set corpus.pairs to single, or name longer texts",
    **dict.fromkeys(
        (held_out.LEAK, held_out.SAME_GROUP, held_out.SAME_QUERY, held_out.BEYOND),
        "set corpus.evaluation_share=0",
    ),
}


@dataclass(frozen=True)
class CorpusSummary:
    """What the corpus stage wrote.

    Attributes:
        folder: `<prepared.folder>/corpus`.
        pairs: Pairs for training.
        queries: Held-out pairs; 0 where there is no evaluation folder.
        documents: Distinct texts that the queries search.
        quarantined: Rows that could not be read.
        funnel: What became of every row.
        seconds: Wall clock of the whole stage.
    """

    folder: Location
    pairs: int
    queries: int
    documents: int
    quarantined: int
    funnel: tuple[FunnelLine, ...]
    seconds: float

    def __str__(self) -> str:
        text = f"{self.pairs} pairs for training, {self.queries} held out"
        text += f" with {self.documents} documents"
        return text + (f", {self.quarantined} rows quarantined" if self.quarantined else "")


def prepare_corpus(session: SparkSession, config: Config) -> CorpusSummary:
    """Reads, cleans, pairs, splits and writes the corpus; runs on the driver.

    In `<prepared.folder>/corpus`, which is replaced as a whole or left as it was:

    - `pairs.parquet/`: `id` and `group` (int64), `anchor`, `positive` (null for single texts),
      `negatives` (strings; null but for triplets), `score` (float, 0 to 1, null without scores),
      `candidate_scores` (floats, of `positive` and `negatives`; null without such scores);
    - `evaluation/queries.parquet` (`query_id`, `text`, `document_id`) and
      `evaluation/documents.parquet` (`document_id`, `text`), unless nothing is held out;
    - `quarantine.parquet`: `file`, `offset`, `reason`, `rows`, `excerpt` of what could not be read;
    - `funnel.json`: see :mod:`pipelines.corpus.funnel`;
    - `statistics.json`: examples of what was dropped, languages, bytes.

    The content depends on the inputs and the settings alone, not on the partitions.

    Raises:
        InputError: An input, a column or a setting is wrong, too much could not be read, or no
            pair is left.
    """
    started = time.monotonic()
    settings = config.corpus
    next_part("reading texts")
    pair_forms.check_settings(settings)
    check_languages(settings.languages)
    if settings.redact is not None:
        check_redactor(settings.redact)
    excluded = _excluded_texts(session, settings, config.storage)
    folder = PreparedFolder.of(config).corpus.path
    with new_folder(folder) as aside, Scratch(aside / "scratch") as scratch:
        cut = cut_inputs(session, config, scratch)
        units = cut.frame
        read = _checked(units, cut.totals.to_pylist(), settings)
        write_quarantine(units, aside, empty=not read.quarantined)
        with shuffle_partitions(session, read.bytes // _BYTES_PER_PARTITION):
            next_part("looking for duplicates")
            rows = _judged_rows(scratch, units, excluded, settings)
            next_part("making pairs")
            pairs = scratch.keep(pair_forms.make_pairs(rows, settings))
            next_part("holding out pairs for evaluation")
            earlier = (
                held_out.earlier_choices(session, CorpusFolder(folder))
                if config.prepared.reuse
                else None
            )
            pairs = held_out.mark_earlier(pairs, earlier)
            split = _write_split(scratch, pairs, aside, settings)
            next_part("counting")
            counts = count_reasons(rows, split.pairs, split.judged)
            lines = _lines_before_pairs(counts, read, settings) + _lines_of_pairs(counts, split)
            check_adds_up(lines)
            _check_some_left(lines)
            shown = settings.report_examples if any(map(_is_dropped, lines)) else 0
            examples = example_texts(rows, pairs, shown) if shown else {}
        write_json(CorpusFolder(aside).funnel, [line.as_json() for line in lines])
        statistics = {
            "bytes": read.bytes,
            "languages": read.languages,
            "examples": examples,
            "quarantine": first_places(aside, _PLACES),
            "tables": cut.tables,
        }
        write_json(CorpusFolder(aside).statistics, statistics)
    for line in losses(lines):
        logger.info("corpus: %s", line)
    return CorpusSummary(
        folder,
        split.written,
        split.asked,
        split.documents,
        sum(read.quarantined.values()),
        tuple(lines),
        time.monotonic() - started,
    )


def _excluded_texts(
    session: SparkSession, settings: CorpusSettings, stores: StorageSettings
) -> DataFrame | None:
    if not settings.exclude:
        return None
    texts = texts_of(session, settings.exclude, settings.exclude_columns, "corpus.exclude", stores)
    if settings.redact is None:
        return texts
    # They are compared with texts that have been redacted.
    redact = partial(redact_batches, name=settings.redact, columns=["text"])
    return texts.mapInArrow(redact, "text string")


@dataclass(frozen=True)
class _Read:
    """What was read.

    Attributes:
        quarantined: Rows that could not be read, by reason.
        languages: Texts of those whose language was looked at, by language, the most first.
        bytes: Of the inputs, unpacked.
    """

    quarantined: Mapping[str, int]
    languages: Mapping[str, int]
    bytes: int


def _checked(
    units: DataFrame, totals: Sequence[Mapping[str, Any]], settings: CorpusSettings
) -> _Read:
    lost = [total for total in totals if total["quarantined"]]
    reasons: Counter[str] = Counter()
    languages: Counter[str] = Counter()
    for total in totals:
        if total["quarantined"]:
            reasons[total["quarantined"]] += total["rows"]
        if total["language"]:
            languages[total["language"]] += total["rows"]
    # Pieces of documents are much longer than the lines that cannot be read, so bytes count there,
    # unless it is not known how many are lost.
    by_bytes = FORMATS.load(settings.format).is_documents and all(row["bytes"] for row in lost)
    measure = "bytes" if by_bytes else "rows"
    check_quarantined(
        sum(row[measure] or 0 for row in totals if row["level"] == ROWS),
        sum(row[measure] for row in lost),
        measure,
        units,
        settings.max_quarantined,
    )
    by_number = sorted(languages.items(), key=lambda item: (-item[1], item[0]))
    return _Read(reasons, dict(by_number), sum(row["bytes"] or 0 for row in totals))


def _judged_rows(
    scratch: Scratch, units: DataFrame, excluded: DataFrame | None, settings: CorpusSettings
) -> DataFrame:
    """The rows with all their reasons."""
    hashed = rows = pair_forms.hashed(units, settings)
    rows = overlaps.mark_duplicates(rows, settings)
    if overlaps.threshold(settings):
        rows = overlaps.mark_near_duplicates(scratch.keep(rows), settings, scratch)
    if excluded is not None:
        rows = overlaps.mark_excluded(scratch.keep(rows), excluded, settings, scratch)
    rows = pair_forms.choose_members(rows, settings)
    # What follows from a row alone is computed again more cheaply than it is written and read.
    return rows if rows is hashed else scratch.keep(rows)


def _lines_before_pairs(counts: Counts, read: _Read, settings: CorpusSettings) -> list[FunnelLine]:
    lines: list[FunnelLine] = []
    for level, (found, remaining) in _LEVELS.items():
        quarantined = read.quarantined if level == ROWS else {}
        reasons = counts.rows.get(level, {})
        total = sum(reasons.values()) + sum(quarantined.values())
        last = level == text_level(settings)
        if total or level in (ROWS, text_level(settings)):
            name = f"{level} {_GIVES_PAIRS}" if last else remaining
            kept = {name: reasons.get(None, 0)}
            lines += level_lines(level, (found, total), dropped(reasons), kept, quarantined)
    return lines


@dataclass(frozen=True)
class _Split:
    """What is for training and what for evaluation.

    Attributes:
        pairs: All pairs, with `held`.
        judged: Those that are held out, with their reasons; None where none are held out.
        asked: Pairs of the evaluation.
        documents: Texts that it searches.
        written: Pairs for training.
    """

    pairs: DataFrame
    judged: DataFrame | None
    asked: int
    documents: int
    written: int


def _write_split(
    scratch: Scratch, pairs: DataFrame, aside: Location, settings: CorpusSettings
) -> _Split:
    judged, asked, documents = None, 0, 0
    if settings.evaluation_share and settings.pairs != "single":
        pairs = held_out.mark_held_out(pairs, settings)
        judged = scratch.keep(held_out.judge_held_out(pairs, settings))
        chosen = scratch.keep_counted(held_out.choose_held_out(judged, settings))
        asked = chosen.rows
        documents = held_out.write_evaluation(chosen.to_arrow(), aside) if asked else 0
    else:
        pairs = pairs.withColumn("held", F.lit(False))
    training = pairs.where("reason is null and not held")
    if asked:
        training = held_out.without_leaks(training, chosen.frame, settings)
    path = CorpusFolder(aside).pairs
    ordered = training.select(*PAIR_COLUMNS).sortWithinPartitions("id")
    write_parquet(ordered, path)
    return _Split(pairs, judged, asked, documents, sum(rows_by_partition(path).values()))


def _lines_of_pairs(counts: Counts, split: _Split) -> list[FunnelLine]:
    """The level of pairs.

    Raises:
        PipelineError: Fewer or more pairs lie in the files than were to be written.
    """
    reasons = dropped(counts.pairs) | dropped(counts.held_out)
    others = {
        held_out.BEYOND: counts.held_out.get(None, 0) - split.asked,
        held_out.LEAK: counts.trainable - split.written,
    }
    if min(others.values()) < 0 or (others[held_out.LEAK] and not split.asked):
        raise PipelineError(
            f"{split.written} of {counts.trainable} pairs for training are in their files, and"
            f" {split.asked} of {counts.held_out.get(None, 0)} that may be held out"
        )
    reasons |= {reason: rows for reason, rows in others.items() if rows}
    kept = {TRAINING: split.written, HELD_OUT: split.asked}
    return level_lines(PAIRS, ("pairs made", sum(counts.pairs.values())), reasons, kept)


def _is_dropped(line: FunnelLine) -> bool:
    return line.kind == "dropped"


def _check_some_left(lines: Iterable[FunnelLine]) -> None:
    lines = list(lines)
    if any(line.name == TRAINING and line.rows for line in lines):
        return
    reasons = [line for line in lines if line.kind == "dropped" and line.level != FILES]
    read = next(line.rows for line in lines if line.level == ROWS and line.kind == "in")
    if not reasons:
        held = any(line.name == HELD_OUT and line.rows for line in lines)
        raise InputError(
            "corpus.inputs",
            f"no pair is left of {read} rows" + (": all are held out" if held else ""),
            "set corpus.evaluation_share=0" if held else "name inputs that hold text",
        )
    most = max(reasons, key=lambda line: line.rows)
    raise InputError(
        "corpus.inputs",
        f"no pair is left of {read} rows: most often `{most.name}` ({most.rows})",
        _REMEDIES.get(most.name, "name other inputs"),
    )
