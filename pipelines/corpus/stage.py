"""The corpus stage: from `corpus.inputs` to pairs, an evaluation set and a funnel.

Each source of a corpus goes through the same steps by itself; texts held out of one are left out of
the training of all of them.
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

# Rows of the quarantine that the report shows.
_PLACES = 10
_BYTES_PER_PARTITION = 64 * 2**20


@dataclass(frozen=True)
class CorpusSummary:
    """The result of the corpus stage: the folder is `<prepared.folder>/corpus`.

    `documents` are the texts that the queries search, of pairs for training too; `quarantined`
    counts unreadable rows.
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
        text += f", which search {self.documents} documents" if self.queries else ""
        return text + (f", {self.quarantined} rows quarantined" if self.quarantined else "")


def prepare_corpus(session: SparkSession, config: Config) -> CorpusSummary:
    """Read, clean, pair, split and write the corpus; runs on the driver.

    In `<prepared.folder>/corpus`, which is replaced as a whole or left as it was:

    - `pairs.parquet/`: `id` and `group` (int64), `anchor`, `positive` (null for single texts),
      `negatives` (strings; null but for triplets), `score` (float, 0 to 1, null without scores),
      `candidate_scores` (floats, of `positive` and `negatives`; null without such scores);
    - `evaluation/queries.parquet` (`query_id`, `text`, `document_id`, `group`),
      `evaluation/documents.parquet` (`document_id`, `text`) and `evaluation/distractors.parquet`
      (the same, of pairs for training), unless nothing is held out;
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
    alone = config.by_source()
    for one in alone:
        pair_forms.check_settings(one.corpus)
        check_languages(one.corpus.languages)
    if config.corpus.redact is not None:
        check_redactor(config.corpus.redact)
    excluded = _excluded_texts(session, config.corpus, config.storage)
    prepared = PreparedFolder.of(config)
    folder = prepared.corpus.path
    names = [source.name for source in config.corpus.sources]
    with new_folder(folder) as aside, Scratch(aside / "scratch") as scratch:
        places = units_folders(prepared.units, names)
        texts = [
            _read_texts(session, one, name, scratch, place)
            for one, name, place in zip(alone, names or [""], places, strict=True)
        ]
        frames = [one.frame for one in texts]
        empty = not any(one.quarantined for one in texts)
        write_quarantine(below_one_another(frames), aside, empty=empty)
        most_bytes = max(one.bytes for one in texts)
        with shuffle_partitions(session, most_bytes // _BYTES_PER_PARTITION):
            judged = [_judged(session, one, excluded, config, scratch) for one in texts]
            split = held_out.write_split(session, judged, aside)
            next_part("counting")
            of_sources = [
                _checked_lines(read, own, written, some_asked=split.asked > 0)
                for read, own, written in zip(texts, judged, split.written, strict=True)
            ]
            settings = [one.settings for one in texts]
            check_scores_differ(session, CorpusFolder(aside).pairs, settings, names)
            lines = added_up(of_sources)
            examples = _examples(judged, config.corpus.report_examples, lines)
        write_json(CorpusFolder(aside).funnel, [line.as_json() for line in lines])
        languages = sum((one.languages for one in texts), Counter[str]())
        statistics = {
            "bytes": sum(one.bytes for one in texts),
            "titled": sum(one.titled for one in texts),
            "languages": dict(sorted(languages.items(), key=lambda item: (-item[1], item[0]))),
            "examples": examples,
            "quarantine": first_places(aside, _PLACES),
            "tables": tuple(table for one in texts for table in one.tables),
            "deleted": _deleted_marks(frames, lines),
        }
        if names:
            told = ([line.as_json() for line in own] for own in of_sources)
            statistics["sources"] = dict(zip(names, told, strict=True))
        write_json(CorpusFolder(aside).statistics, statistics)
    for line in losses(lines):
        logger.info("corpus: %s", line)
    for name, written in zip(names, split.written, strict=False):
        logger.info("corpus: %d pairs for training of source %s", written, name)
    return CorpusSummary(
        folder,
        sum(split.written),
        split.asked,
        split.documents,
        sum(one.quarantined.total() for one in texts),
        tuple(lines),
        time.monotonic() - started,
    )


def _deleted_marks(frames: Sequence[DataFrame], lines: Iterable[FunnelLine]) -> list[int]:
    """Return the marks of the deleted keys that have rows, sorted."""
    if not any(line.name == DELETED for line in lines):
        return []
    rows = below_one_another([frame.select("reason", "key") for frame in frames])
    marks = rows.where(F.col("reason") == DELETED).select("key").distinct().collect()
    # Units that an earlier release has kept have none.
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
    """The texts of a source, and how its reading went.

    `settings` are those of the corpus, as if the source were alone; the name is empty for a single
    source without one. `tables` are its inputs that have versions. `quarantined` counts unreadable
    rows by reason, `languages` the texts whose language was identified, `bytes` the decompressed
    inputs. `titled` is the number of documents with a title minus those without, of `pairs:
    document`.
    """

    settings: CorpusSettings
    name: str
    frame: DataFrame
    tables: tuple[str, ...]
    quarantined: Counter[str]
    languages: Counter[str]
    bytes: int
    titled: int


def _read_texts(
    session: SparkSession, config: Config, name: str, scratch: Scratch, place: Location
) -> _Texts:
    """Read a source; refuse one of which too much could not be read."""
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
    # Pieces of documents are much longer than the lines that cannot be read, so bytes count there,
    # unless it is not known how many are lost.
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
    return _Texts(settings, name, cut.frame, cut.tables, reasons, languages, read, titled)


def _judged(
    session: SparkSession,
    texts: _Texts,
    excluded: DataFrame | None,
    config: Config,
    scratch: Scratch,
) -> held_out.JudgedPairs:
    """Return the pairs of a source, with the reasons why some are dropped or held out."""
    settings = texts.settings
    next_part("looking for duplicates")
    hashed = rows = pair_forms.hashed(texts.frame, settings)
    rows = overlaps.mark_duplicates(rows, settings)
    if rows is not hashed:
        rows = scratch.keep(rows)
    rows = overlaps.mark_near_duplicates(rows, settings, scratch)
    if excluded is not None:
        rows = overlaps.mark_excluded(rows, excluded, settings, scratch)
    rows = pair_forms.choose_members(rows, settings)
    # What follows from a row alone is computed again more cheaply than it is written and read.
    rows = rows if rows is hashed else scratch.keep(rows)
    next_part("making pairs")
    pairs = scratch.keep(pair_forms.make_pairs(rows, settings))
    next_part("holding out pairs for evaluation")
    corpus = PreparedFolder.of(config).corpus
    earlier = held_out.earlier_choices(session, corpus) if config.prepared.reuse else None
    pairs = held_out.mark_earlier(pairs, earlier)
    return held_out.judge_pairs(scratch, rows, pairs, settings, texts.name)


def _checked_lines(
    texts: _Texts, judged: held_out.JudgedPairs, written: int, *, some_asked: bool
) -> list[FunnelLine]:
    """Return the funnel of a source, which adds up and leaves enough."""
    counts = count_reasons(judged.rows, judged.pairs, judged.judged)
    lines = lines_before_pairs(counts, texts.quarantined, texts.settings)
    lines += lines_of_pairs(counts, judged.asked, written, some_asked=some_asked)
    of = f" of source {texts.name}" if texts.name else ""
    check_adds_up(lines)
    check_some_left(lines, of)
    check_dropped(lines, texts.frame, texts.settings, of)
    return lines


def _examples(
    sources: Iterable[held_out.JudgedPairs], most: int, lines: Iterable[FunnelLine]
) -> dict[str, dict[str, list[str]]]:
    """Return a few texts of each level and reason, of the first sources that have some."""
    found: dict[str, dict[str, list[str]]] = {}
    if not most or all(line.kind != "dropped" for line in lines):
        return found
    for source in sources:
        for level, reasons in example_texts(source.rows, source.pairs, most).items():
            for reason, texts in reasons.items():
                known = found.setdefault(level, {}).setdefault(reason, [])
                known += [text for text in texts if text not in known][: most - len(known)]
    return found
