"""The corpus stage: from `corpus.inputs` to pairs, an evaluation set and a funnel.

Each source of a corpus goes through the same steps by itself; a text held out of one source is left
out of the training of all.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.catalog import FORMATS
from pipelines.corpus import held_out
from pipelines.corpus import pairs as pair_forms
from pipelines.corpus.cleaning.redaction import check_redactor
from pipelines.corpus.cleaning.rules import check_languages
from pipelines.corpus.dedup import marks as overlaps
from pipelines.corpus.dedup.cut_texts import mark_cut_texts
from pipelines.corpus.funnel import ROWS, FunnelLine, check_adds_up, losses
from pipelines.corpus.kept_units import below_one_another, cut_inputs, units_folders
from pipelines.corpus.readers.formats import Dialect
from pipelines.corpus.readers.spark_reader import texts_of
from pipelines.corpus.statistics import (
    added_up,
    check_dropped,
    check_quarantined,
    check_scores_differ,
    check_some_left,
    count_reasons,
    example_texts,
    first_places,
    lines_before_pairs,
    lines_of_pairs,
    write_quarantine,
)
from pipelines.corpus.unit_rows import DELETED
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import CorpusFolder, PreparedFolder
from pipelines.files.storage import new_folder, write_json
from pipelines.progress import next_part
from pipelines.settings import Config, CorpusSettings, StorageSettings
from pipelines.spark.frames import Scratch, shuffle_partitions

logger = logging.getLogger(__name__)

# Rows of the quarantine in the report.
_PLACES = 10
_BYTES_PER_PARTITION = 64 * 2**20


@dataclass(frozen=True)
class CorpusSummary:
    """The result of the corpus stage: the folder is `<prepared.folder>/corpus`.

    `documents` are the texts to search, training documents included; `quarantined` counts
    unreadable rows.
    """

    folder: Location
    pairs: int
    queries: int
    documents: int
    quarantined: int
    funnel: tuple[FunnelLine, ...]
    seconds: float

    def __str__(self) -> str:
        text = f"{self.pairs} training pairs, {self.queries} held out"
        text += f", {self.documents} documents to search" if self.queries else ""
        return text + (f", {self.quarantined} unreadable rows" if self.quarantined else "")


def prepare_corpus(session: SparkSession, config: Config) -> CorpusSummary:
    """Read, clean, pair, split and write the corpus; runs on the driver.

    It replaces `<prepared.folder>/corpus` as a whole, or leaves it as it was:

    - `pairs.parquet/`: `id` and `group` (int64), `anchor`, `positive` (null for single texts),
      `negatives` (strings; null but for triplets), `score` (float, 0 to 1, null without scores),
      `candidate_scores` (floats, of `positive` and `negatives`; null without such scores);
    - `evaluation/queries.parquet` (`query_id`, `text`, `document_id`, `group`),
      `evaluation/documents.parquet` (`document_id`, `text`) and `evaluation/distractors.parquet`
      (the same, of training pairs), unless nothing is held out;
    - `quarantine.parquet`: `file`, `offset`, `reason`, `rows`, `excerpt` of unreadable places;
    - `funnel.json`: see :mod:`pipelines.corpus.funnel`;
    - `statistics.json`: examples of dropped texts, languages, bytes, documents with titles.

    Of several sources, pairs have `source` (int; its number), queries and distractors `source`
    (its name). The content depends on the inputs and the settings alone, not on the partitions.

    Raises:
        InputError: An input, a column or a setting is wrong, too much could not be read, or no
            pair is left.
    """
    started = time.monotonic()
    next_part("reading texts")
    by_source = config.by_source()
    for source_config in by_source:
        pair_forms.check_settings(source_config.corpus)
        check_languages(source_config.corpus.languages)
    if config.corpus.redact is not None:
        check_redactor(config.corpus.redact)
    excluded = _excluded_texts(session, config.corpus, config.storage)
    prepared = PreparedFolder.of(config)
    folder = prepared.corpus.path
    names = [source.name for source in config.corpus.sources]
    with new_folder(folder) as aside, Scratch(aside / "scratch") as scratch:
        places = units_folders(prepared.units, names)
        texts = [
            _read_texts(session, source_config, name, scratch, place)
            for source_config, name, place in zip(by_source, names or [""], places, strict=True)
        ]
        frames = [of_source.frame for of_source in texts]
        empty = not any(of_source.quarantined for of_source in texts)
        write_quarantine(below_one_another(frames), aside, empty=empty)
        most_bytes = max(of_source.bytes for of_source in texts)
        with shuffle_partitions(session, most_bytes // _BYTES_PER_PARTITION):
            judged = [_judged(session, of_source, excluded, config, scratch) for of_source in texts]
            split = held_out.write_split(session, judged, aside)
            next_part("counting")
            of_sources = [
                _checked_lines(read, pairs, written, some_asked=split.asked > 0)
                for read, pairs, written in zip(texts, judged, split.written, strict=True)
            ]
            settings = [of_source.settings for of_source in texts]
            check_scores_differ(session, CorpusFolder(aside).pairs, settings, names)
            lines = added_up(of_sources)
            examples = _examples(judged, config.corpus.report_examples, lines)
        write_json(CorpusFolder(aside).funnel, [line.as_json() for line in lines])
        languages = sum((of_source.languages for of_source in texts), Counter[str]())
        statistics = {
            "bytes": sum(of_source.bytes for of_source in texts),
            "titled": sum(of_source.titled for of_source in texts),
            "languages": dict(sorted(languages.items(), key=lambda item: (-item[1], item[0]))),
            "examples": examples,
            "quarantine": first_places(aside, _PLACES),
            "tables": tuple(table for of_source in texts for table in of_source.tables),
            "deleted": _deleted_marks(frames, lines),
        }
        if names:
            funnels = ([line.as_json() for line in funnel] for funnel in of_sources)
            statistics["sources"] = dict(zip(names, funnels, strict=True))
        write_json(CorpusFolder(aside).statistics, statistics)
    for line in losses(lines):
        logger.info("corpus: %s", line)
    for name, written in zip(names, split.written, strict=False):
        logger.info("corpus: source %s gives %d training pairs", name, written)
    return CorpusSummary(
        folder,
        sum(split.written),
        split.asked,
        split.documents,
        sum(of_source.quarantined.total() for of_source in texts),
        tuple(lines),
        time.monotonic() - started,
    )


def _deleted_marks(frames: Sequence[DataFrame], lines: Iterable[FunnelLine]) -> list[int]:
    """Return the marks of the deleted keys with rows, sorted."""
    if not any(line.name == DELETED for line in lines):
        return []
    rows = below_one_another([frame.select("reason", "key") for frame in frames])
    marks = rows.where(F.col("reason") == DELETED).select("key").distinct().collect()
    # Units kept by an earlier release have none.
    return sorted(row["key"] for row in marks if row["key"] is not None)


def _excluded_texts(
    session: SparkSession, settings: CorpusSettings, stores: StorageSettings
) -> DataFrame | None:
    if not settings.exclude:
        return None
    return texts_of(
        session,
        settings.exclude,
        settings.exclude_columns,
        "corpus.exclude",
        stores,
        Dialect.of(settings),
        follow_links=settings.follow_links,
    )


@dataclass(frozen=True)
class _Texts:
    """The texts of a source, with counts.

    `settings` describe the corpus as if the source were alone; the name is empty for a single
    source without one. The frame lies in `folders`. `tables` are its inputs with versions.
    `quarantined` counts unreadable rows by reason, `languages` the texts of an identified language,
    `bytes` the decompressed inputs. `titled`, of `pairs: document`, is the documents with
    a title minus the ones without.
    """

    settings: CorpusSettings
    name: str
    frame: DataFrame
    folders: Sequence[Location]
    tables: tuple[str, ...]
    quarantined: Counter[str]
    languages: Counter[str]
    bytes: int
    titled: int


def _read_texts(
    session: SparkSession, config: Config, name: str, scratch: Scratch, place: Location
) -> _Texts:
    """Read a source; refuse one with too many unreadable rows."""
    settings = config.corpus
    cut = cut_inputs(session, config, scratch, place)
    totals: Sequence[Mapping[str, Any]] = cut.totals.to_pylist()
    lost = [total for total in totals if total["quarantined"]]
    reasons, languages = Counter[str](), Counter[str]()
    for total in totals:
        if total["quarantined"]:
            reasons[total["quarantined"]] += total["rows"]
        if total["language"]:
            languages[total["language"]] += total["rows"]
    # Pieces of documents are much longer than unreadable lines, so bytes count there, unless the
    # number of lost bytes is unknown.
    by_bytes = FORMATS.load(settings.format).is_documents and all(row["bytes"] for row in lost)
    measure = "bytes" if by_bytes else "rows"
    check_quarantined(
        sum(row[measure] or 0 for row in totals if row["level"] == ROWS),
        sum(row[measure] for row in lost),
        measure,
        cut.frame,
        settings.max_quarantined,
    )
    read, titled = (sum(row[name] or 0 for row in totals) for name in ("bytes", "titled"))
    return _Texts(
        settings, name, cut.frame, cut.folders, cut.tables, reasons, languages, read, titled
    )


def _judged(
    session: SparkSession,
    texts: _Texts,
    excluded: DataFrame | None,
    config: Config,
    scratch: Scratch,
) -> held_out.JudgedPairs:
    """Return the pairs of a source, with the reasons of the dropped and the held-out ones."""
    settings = texts.settings
    next_part("looking for duplicates")
    if pair_forms.drops_duplicates(settings):
        units = mark_cut_texts(session, texts.folders, settings, excluded, scratch)
        rows = pair_forms.hashed(units, settings)
    else:
        rows = _chosen_rows(texts, excluded, scratch)
    next_part("making pairs")
    pairs = pair_forms.make_pairs(rows, settings)
    # Values of a single row cost less to compute again than to write and read.
    pairs = pairs if pair_forms.drops_duplicates(settings) else scratch.keep(pairs)
    next_part("holding out pairs for evaluation")
    corpus = PreparedFolder.of(config).corpus
    earlier = held_out.earlier_choices(session, corpus) if config.prepared.reuse else None
    pairs = held_out.mark_earlier(pairs, earlier)
    return held_out.judge_pairs(scratch, rows, pairs, settings, texts.name)


def _chosen_rows(texts: _Texts, excluded: DataFrame | None, scratch: Scratch) -> DataFrame:
    """Return the rows of a source whose texts are whole, with the reasons of the dropped ones."""
    settings = texts.settings
    hashed = rows = pair_forms.hashed(texts.frame, settings)
    rows = overlaps.mark_near_duplicates(rows, settings, scratch)
    if excluded is not None:
        rows = overlaps.mark_excluded(rows, excluded, settings, scratch)
    rows = pair_forms.choose_members(rows, settings)
    return rows if rows is hashed else scratch.keep(rows)


def _checked_lines(
    texts: _Texts, judged: held_out.JudgedPairs, written: int, *, some_asked: bool
) -> list[FunnelLine]:
    """Return the funnel of a source; refuse one that does not add up, or leaves too little."""
    counts = count_reasons(judged.rows, judged.pairs, judged.judged)
    lines = lines_before_pairs(counts, texts.quarantined, texts.settings)
    lines += lines_of_pairs(counts, judged.asked, written, some_asked=some_asked)
    of_source = f" of source {texts.name}" if texts.name else ""
    check_adds_up(lines)
    check_some_left(lines, of_source)
    check_dropped(lines, texts.frame, texts.settings, of_source)
    return lines


def _examples(
    sources: Iterable[held_out.JudgedPairs], most: int, lines: Iterable[FunnelLine]
) -> dict[str, dict[str, list[str]]]:
    """Return a few texts of each level and reason, of the first sources with any."""
    found: dict[str, dict[str, list[str]]] = {}
    if not most or all(line.kind != "dropped" for line in lines):
        return found
    for source in sources:
        for level, reasons in example_texts(source.rows, source.pairs, most).items():
            for reason, texts in reasons.items():
                known = found.setdefault(level, {}).setdefault(reason, [])
                known += [text for text in texts if text not in known][: most - len(known)]
    return found
