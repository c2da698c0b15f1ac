"""The corpus stage: from `corpus.inputs` to pairs, an evaluation set and a funnel."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.corpus import held_out as split
from pipelines.corpus import pairs as pair_forms
from pipelines.corpus.cleaning import prose
from pipelines.corpus.cleaning.languages import check_languages
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
from pipelines.corpus.quarantine import check_quarantined, write_quarantine
from pipelines.corpus.readers import FORMATS
from pipelines.corpus.readers.sources import read_rows, texts_of
from pipelines.corpus.statistics import corpus_statistics
from pipelines.corpus.unit_schema import SCHEMA
from pipelines.corpus.units import text_level, unit_batches
from pipelines.errors import InputError
from pipelines.files.prepared_folder import CorpusFolder, PreparedFolder
from pipelines.files.storage import new_folder, write_json
from pipelines.progress import next_part
from pipelines.settings import Config, CorpusSettings
from pipelines.spark.frames import (
    Scratch,
    batches_of,
    read_path,
    shuffle_partitions,
    write_path,
    write_single_file,
)

logger = logging.getLogger(__name__)

PAIR_COLUMNS = ("id", "group", "anchor", "positive", "negative", "score")

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
_BYTES_PER_PARTITION = 64 * 2**20
# Of pieces of 64 KiB: 32 MiB.
_PIECES_PER_BATCH = 512
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
        (split.LEAK, split.SAME_GROUP, split.SAME_QUERY, split.BEYOND),
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

    folder: Path
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
      `negative` (null but for triplets), `score` (float, 0 to 1, null without scores);
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
    raw = read_rows(session, settings)
    excluded = (
        texts_of(session, settings.exclude, settings.exclude_columns, "corpus.exclude")
        if settings.exclude
        else None
    )
    folder = PreparedFolder.of(config).corpus.path
    with new_folder(folder) as aside, Scratch(aside / "scratch") as scratch:
        with batches_of(session, _PIECES_PER_BATCH):
            units = scratch.keep_arrow(raw, partial(unit_batches, settings=settings), SCHEMA)
        read = _checked(units, settings)
        write_quarantine(units, aside)
        with shuffle_partitions(session, read.bytes // _BYTES_PER_PARTITION):
            next_part("looking for duplicates")
            rows = _write_rows(scratch, units, excluded, settings)
            lines = _lines_before_pairs(rows, read, settings)
            next_part("making pairs")
            pairs = scratch.keep(pair_forms.make_pairs(rows, settings))
            next_part("holding out pairs for evaluation")
            lines += _write_split(session, scratch, pairs, aside, settings)
            check_adds_up(lines)
            _check_some_left(lines)
            write_json(CorpusFolder(aside).funnel, [line.as_json() for line in lines])
            next_part("counting")
            write_json(
                CorpusFolder(aside).statistics, corpus_statistics(rows, pairs, units, read.bytes)
            )
        documents = _count_file(session, CorpusFolder(aside).documents)
    for line in losses(lines):
        logger.info("corpus: %s", line)
    kept = {line.name: line.rows for line in lines if line.level == PAIRS and line.kind == "kept"}
    return CorpusSummary(
        folder,
        kept[TRAINING],
        kept[HELD_OUT],
        documents,
        sum(read.quarantined.values()),
        tuple(lines),
        time.monotonic() - started,
    )


@dataclass(frozen=True)
class _Read:
    """What was read: rows that could not be, by reason, and bytes."""

    quarantined: Mapping[str, int]
    bytes: int


def _checked(units: DataFrame, settings: CorpusSettings) -> _Read:
    counted = (
        units.groupBy("level", "quarantined")
        .agg(F.sum("rows").alias("rows"), F.sum("bytes").alias("bytes"))
        .collect()
    )
    reasons = {row["quarantined"]: row["rows"] for row in counted if row["quarantined"]}
    # Pieces of documents are much longer than the lines that cannot be read, so bytes count there,
    # unless it is not known how many are lost.
    lost = [row for row in counted if row["quarantined"]]
    by_bytes = FORMATS.load(settings.format).is_documents and all(row["bytes"] for row in lost)
    measure = "bytes" if by_bytes else "rows"
    check_quarantined(
        sum(row[measure] for row in counted if row["level"] == ROWS),
        sum(row[measure] for row in lost),
        measure,
        units,
        settings.max_quarantined,
    )
    return _Read(reasons, sum(row["bytes"] or 0 for row in counted))


def _write_rows(
    scratch: Scratch, units: DataFrame, excluded: DataFrame | None, settings: CorpusSettings
) -> DataFrame:
    """The rows with all their reasons."""
    rows = overlaps.mark_duplicates(pair_forms.hashed(units, settings), settings)
    if overlaps.threshold(settings):
        rows = overlaps.mark_near_duplicates(scratch.keep(rows), settings, scratch)
    if excluded is not None:
        rows = overlaps.mark_excluded(scratch.keep(rows), excluded, settings, scratch)
    return scratch.keep(pair_forms.choose_members(rows, settings))


def _lines_before_pairs(rows: DataFrame, read: _Read, settings: CorpusSettings) -> list[FunnelLine]:
    dropped: dict[str, dict[str, int]] = {level: {} for level in _LEVELS}
    kept: dict[str, int] = {}
    for level, reason, count in rows.groupBy("level", "reason").agg(F.sum("rows")).collect():
        if reason is None:
            kept[level] = count
        else:
            dropped[level][reason] = count
    lines: list[FunnelLine] = []
    for level, (found, remaining) in _LEVELS.items():
        quarantined = read.quarantined if level == ROWS else {}
        total = sum(dropped[level].values()) + kept.get(level, 0) + sum(quarantined.values())
        last = level == text_level(settings)
        if total or level in (ROWS, text_level(settings)):
            name = f"{level} {_GIVES_PAIRS}" if last else remaining
            lines += level_lines(
                level, (found, total), dropped[level], {name: kept.get(level, 0)}, quarantined
            )
    return lines


def _write_split(
    session: SparkSession,
    scratch: Scratch,
    pairs: DataFrame,
    aside: Path,
    settings: CorpusSettings,
) -> list[FunnelLine]:
    entered = pairs.count()
    dropped = _reasons(pairs)
    training, held_out = pairs.where("reason is null"), 0
    if settings.evaluation_share and settings.pairs != "single":
        pairs = split.mark_held_out(pairs, settings)
        judged = scratch.keep(split.judge_held_out(pairs, settings))
        dropped |= _reasons(judged)
        askable = judged.where("reason is null").count()
        training = pairs.where("reason is null and not held")
        if askable:
            chosen = scratch.keep(split.choose_held_out(judged, settings))
            write_single_file(split.queries(chosen), CorpusFolder(aside).queries)
            write_single_file(split.documents(chosen), CorpusFolder(aside).documents)
            held_out = _count_file(session, CorpusFolder(aside).queries)
            dropped |= {split.BEYOND: askable - held_out} if askable > held_out else {}
            training = scratch.keep(split.mark_leaks(pairs, chosen))
            dropped |= _reasons(training)
    final = training.where("reason is null").select(*PAIR_COLUMNS).sortWithinPartitions("id")
    path = CorpusFolder(aside).pairs
    final.write.parquet(write_path(path), compression="zstd")
    written = session.read.schema(final.schema).parquet(read_path(path)).count()
    return level_lines(
        PAIRS, ("pairs made", entered), dropped, {TRAINING: written, HELD_OUT: held_out}
    )


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


def _reasons(frame: DataFrame) -> dict[str, int]:
    dropped = frame.where(F.col("reason").isNotNull())
    return {row["reason"]: row["count"] for row in dropped.groupBy("reason").count().collect()}


def _count_file(session: SparkSession, path: Path) -> int:
    return session.read.parquet(read_path(path)).count() if path.exists() else 0
