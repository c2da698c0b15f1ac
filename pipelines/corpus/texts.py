"""From raw rows to the texts of pairs, judged by the rules. Runs on executors.

The kind of unit decides the cut of a raw row: the row itself, a summary or a title with its
paragraph, a document, or any number of lines, paragraphs or sentences. Dropped texts are only
counted: a row of the result then stands for `rows` of its `level`. A row with `rows` of 0 shows an
example in `anchor`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.arrow_columns import lists_of
from pipelines.catalog import FORMATS
from pipelines.corpus.cleaning.prose import NO_PROSE, split_paragraphs, summary_pair
from pipelines.corpus.cleaning.redaction import TEXT_COLUMNS, redact_batches
from pipelines.corpus.cleaning.rules import (
    OTHER_LANGUAGE,
    TEXT_RULES,
    TOO_SHORT,
    UNKNOWN,
    ascii_keys,
    clean,
    clean_lines,
    identify,
    segment,
    single_spaces,
    text_reasons,
)
from pipelines.corpus.funnel import FILES, LINES, PARAGRAPHS, ROWS, SENTENCES
from pipelines.corpus.readers.rows import file_of
from pipelines.corpus.unit_rows import (
    SCHEMA,
    Naming,
    carried_key,
    hash_of,
    hashed_keys,
    sampled_language,
    shows_excerpts,
    unit_batch,
    without_deleted,
)
from pipelines.settings import CorpusSettings
from pipelines.spark.parquet_parts import gathered

RUN = 16
"""Consecutive texts of a piece in a run. Neighbours of one run are paired. Pairs of one run share
sentences, so they never meet in a granule."""
EXAMPLE_CHARACTERS = 300
NO_TITLE = "no title"
NOT_FIRST = "not the beginning of a document"
TOO_FEW_WORDS = "no title and too few words"
SHORTEST_PIECE, LONGEST_PIECE = 4, 40
"""Words of a piece of `pairs: document`, at most half of a short text."""

# A word of a text with hardly any blanks counts as so many characters.
_CHARACTERS = 3
_RULES_OF_PARTS = {name: rule for name, rule in TEXT_RULES.items() if name != OTHER_LANGUAGE}
_RULES_OF_TITLES = {name: rule for name, rule in _RULES_OF_PARTS.items() if name != TOO_SHORT}

Pair = tuple[str | None, str | None, str | None]
"""Anchor, positive, and the reason for no pair."""
Part = tuple[str | None, str | None]
"""A text cut out of a piece, and its language. A null text stands for a dropped one, so that the
texts around it are no neighbours."""


@dataclass
class _Parts:
    """The texts cut out of a batch, and the counts of rows and dropped texts.

    `texts` has columns of :data:`.unit_rows.SCHEMA`; `counts` (rows) and `dropped` (examples) are
    by level and reason.
    """

    settings: CorpusSettings
    level: str
    texts: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    dropped: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))

    def count(self, level: str, reason: str | None, example: str) -> None:
        self.counts[level, reason] += 1
        if reason is not None and example and shows_excerpts(self.settings):
            self.dropped[level, reason].add(example[:EXAMPLE_CHARACTERS])

    def judged(self, level: str, found: Iterable[tuple[str, str | None]]) -> Iterator[Part]:
        """Yield the texts without a reason, and count the others."""
        wanted = self.settings.languages
        for text, reason in found:
            if reason is None:
                language = identify(text) if wanted else sampled_language(text)
                if not wanted or language in (*wanted, UNKNOWN):
                    yield text, language
                    continue
            self.count(level, reason or OTHER_LANGUAGE, text)
            yield None, None

    def batches(self, read_bytes: int) -> Iterator[pa.RecordBatch]:
        """Yield the texts, and then the counts."""
        anchors = single_spaces(pa.array(self.texts["anchor"], pa.string()))
        size = len(anchors)
        texts = {
            name: pa.array(values, SCHEMA.field(name).type) for name, values in self.texts.items()
        }
        texts |= {
            "level": pa.array([self.level] * size, pa.string()),
            "anchor": anchors,
            "anchor_key": ascii_keys(anchors),
            "reason": text_reasons(
                pa.nulls(size, pa.string()), [anchors], self.settings, _RULES_OF_PARTS
            ),
            "rows": pa.array([1] * size, pa.int64()),
            "bytes": pa.array([0] * size, pa.int64()),
        }
        yield unit_batch(size, texts)
        counted = [(level, reason, None, rows) for (level, reason), rows in self.counts.items()]
        # The bytes belong to the rows, and stand with their first line.
        counted.sort(key=lambda line: line[0] != ROWS)
        # The lowest hash is the lowest of the corpus, however batches split the rows. An example
        # stands for no row: its row is counted already.
        examples = {
            (*key, min((hash_of(f"{number}{text}"), text) for text in texts)[1], 0)
            for key, texts in self.dropped.items()
            for number in range(self.settings.report_examples)
        }
        levels, reasons, shown, rows = zip(*counted, *sorted(examples), strict=True)
        columns = {
            "level": pa.array(levels, pa.string()),
            "anchor": pa.array(shown, pa.string()),
            "reason": pa.array(reasons, pa.string()),
            "rows": pa.array(rows, pa.int64()),
            "bytes": pa.array([read_bytes] + [0] * (len(levels) - 1), pa.int64()),
        }
        yield unit_batch(len(levels), columns)


def _lines(piece: str, title: str | None, parts: _Parts) -> Iterator[Part]:
    return parts.judged(LINES, ((line, None) for line in piece.removesuffix("\n").split("\n")))


def _paragraphs(piece: str, title: str | None, parts: _Parts) -> Iterator[Part]:
    return parts.judged(PARAGRAPHS, split_paragraphs(piece, title))


def _sentences(piece: str, title: str | None, parts: _Parts) -> Iterator[Part]:
    languages = parts.settings.languages
    # Only abbreviations differ between the languages; `en` cuts the others well enough.
    language_of_all = languages[0] if len(languages) == 1 else "en"
    for paragraph, language in _paragraphs(piece, title, parts):
        if paragraph is None:
            yield None, None
            continue
        parts.count(PARAGRAPHS, None, "")
        for sentence in segment(language_of_all, paragraph):
            if stripped := sentence.strip():
                yield stripped, language


def _part_units(
    batch: pa.RecordBatch,
    settings: CorpusSettings,
    level: str,
    cut: Callable[[str, str | None, _Parts], Iterator[Part]],
) -> Iterator[pa.RecordBatch]:
    """Cut the pieces of a batch, with their titles, into texts."""
    parts = _Parts(settings, level)
    texts = parts.texts
    keys = carried_key(batch, settings).get("key", pa.nulls(batch.num_rows, pa.int64()))
    pieces = zip(
        clean_lines(batch["text_0"]).to_pylist(),
        clean(batch["title"]).to_pylist(),
        keys.to_pylist(),
        *_owners(batch),
        strict=True,
    )
    for piece, title, key, group, unit, name in pieces:
        before = len(texts["anchor"])
        run, number = 0, -1
        for place, (text, language) in enumerate(cut(piece or "", title, parts)):
            if text is not None:
                texts["anchor"].append(text)
                if place // RUN != number:
                    number = place // RUN
                    run = hash_of(f"{name}/{number}")
                texts["run"].append(run)
                texts["place"].append(place)
                texts["language"].append(language)
        found = len(texts["anchor"]) - before
        for column, value in (("group", group), ("unit", hash_of(unit)), ("key", key)):
            texts[column] += [value] * found
        reason = None if found else "no text" if piece is None else NO_PROSE
        parts.count(ROWS, reason, title or piece or "")
    yield from parts.batches(pc.sum(batch["bytes"]).as_py() or 0)


def _owners(batch: pa.RecordBatch) -> tuple[list[str | None], list[str], list[str]]:
    """Return the group of each row, its unit for holding out, and its name.

    A book is held out by pieces: as a whole it may exceed the share.
    """
    columns = ("group", "unit", "document", "place", "file", "offset", "text_0")
    groups, units, names = [], [], []
    for group, unit, document, place, file, offset, text in zip(
        *(batch[name].to_pylist() for name in columns), strict=True
    ):
        if document is not None:
            name = f"{document}/{place}"
        elif file is not None:
            name = f"{file}#{offset}"
        else:
            name = f"text {hash_of(text or '')}"
        groups.append(group)
        units.append(unit or group or name)
        names.append(name)
    return groups, units, names


def row_units(batch: pa.RecordBatch, settings: CorpusSettings) -> Iterator[pa.RecordBatch]:
    """Take a row's texts as they are."""
    columns = {"anchor": clean(batch["text_0"])}
    if settings.pairs not in ("single", "group"):
        columns["positive"] = clean(batch["text_1"])
    lists = batch["negatives"]
    negatives = [clean(pc.list_element(lists, place)) for place in range(settings.hard_negatives)]
    judged = [*columns.values(), *negatives]
    if negatives:
        columns["negatives"] = lists_of(negatives)
    yield _judged(batch, columns, settings, judged)


def summary_units(batch: pa.RecordBatch, settings: CorpusSettings) -> Iterator[pa.RecordBatch]:
    """Pair a text's first sentence with the prose after it."""
    # The rules for texts name null and blank ones.
    pairs = [
        (text, text, None) if text is None or not text.strip() else summary_pair(text)
        for text in clean_lines(batch["text_0"]).to_pylist()
    ]
    columns = _two_sides(pairs)
    yield _judged(batch, columns, settings, [columns["anchor"], columns["positive"]])


def title_units(batch: pa.RecordBatch, settings: CorpusSettings) -> Iterator[pa.RecordBatch]:
    """Pair a document's title with its first paragraph of prose."""
    titles = clean(batch["title"]).to_pylist()
    texts = clean_lines(batch["text_0"]).to_pylist()
    places = batch["place"].to_pylist()
    yield _titled(batch, map(_title, titles, texts, places), settings)


def _title(title: str | None, text: str | None, place: int | None) -> Pair:
    if place:
        return None, None, NOT_FIRST
    if not title:
        return None, None, NO_TITLE
    prose = (found for found, reason in split_paragraphs(text or "", title) if reason is None)
    paragraph = next(prose, None)
    return title, paragraph, NO_PROSE if paragraph is None else None


def document_units(batch: pa.RecordBatch, settings: CorpusSettings) -> Iterator[pa.RecordBatch]:
    """Pair a document's title with its text, or a piece of its text with the text around it.

    The title stands for a query. Without one, a random span of the text does, cut out of the text
    (the inverse cloze task: Lee, Chang and Toutanova, "Latent retrieval for weakly supervised open
    domain question answering", ACL 2019).
    """
    texts = single_spaces(clean_lines(batch["text_0"])).to_pylist()
    # A title stands for the beginning of its document, and a row may be a later part.
    places = batch["place"].to_pylist()
    titles_of_rows = clean(batch["title"]).to_pylist()
    titles = [None if place else title for title, place in zip(titles_of_rows, places, strict=True)]
    pairs = (_document(*row, settings.max_characters) for row in zip(titles, texts, strict=True))
    units = _titled(batch, pairs, settings)
    # A document counts once, by its beginning.
    signs = [
        None if place else 1 if title else -1 for title, place in zip(titles, places, strict=True)
    ]
    kept = pc.is_null(units["reason"])
    titled = pc.if_else(kept, pa.array(signs, pa.int64()), None)
    yield units.set_column(SCHEMA.get_field_index("titled"), SCHEMA.field("titled"), titled)


def _document(title: str | None, text: str | None, most: int) -> Pair:
    if not text or not text.strip():
        return title, text, None
    text = shortened(text, most)
    return (title, text, None) if title else cut_piece(text)


def shortened(text: str, most: int) -> str:
    """Return the beginning of a text: `most` characters, or up to the end of a word before."""
    if len(text) <= most:
        return text
    return text[: most + 1].rpartition(" ")[0] or text[:most]


def cut_piece(text: str) -> Pair:
    """Return a pseudorandom piece of a text with single blanks, and the rest.

    The same text always gives the same piece.
    """
    separator, units = " ", text.split(" ")
    if len(units) < 2 * SHORTEST_PIECE:
        separator = ""
        units = [text[at : at + _CHARACTERS] for at in range(0, len(text), _CHARACTERS)]
    if len(units) < 2 * SHORTEST_PIECE:
        return None, text, TOO_FEW_WORDS
    # Hashes are signed; the mask keeps the places below from being negative.
    chance = hash_of(text) & (1 << 62) - 1
    longest = min(LONGEST_PIECE, len(units) // 2)
    chance, length = divmod(chance, longest - SHORTEST_PIECE + 1)
    length += SHORTEST_PIECE
    first = chance % (len(units) - length + 1)
    rest = units[:first] + units[first + length :]
    return separator.join(units[first : first + length]), separator.join(rest), None


def _titled(
    batch: pa.RecordBatch, pairs: Iterable[Pair], settings: CorpusSettings
) -> pa.RecordBatch:
    """Judge rows of titles (or pieces in place of titles) and texts."""
    columns = _two_sides(pairs)
    columns["reason"] = text_reasons(
        columns["reason"], [columns["anchor"]], settings, _RULES_OF_TITLES
    )
    return _judged(batch, columns, settings, [columns["positive"]])


def _two_sides(pairs: Iterable[Pair]) -> dict[str, pa.Array]:
    anchors, positives, reasons = zip(*pairs, strict=True)
    return {
        "anchor": single_spaces(pa.array(anchors, pa.string())),
        "positive": single_spaces(pa.array(positives, pa.string())),
        "reason": pa.array(reasons, pa.string()),
    }


def _judged(
    batch: pa.RecordBatch,
    columns: dict[str, pa.Array],
    settings: CorpusSettings,
    judged: Sequence[pa.Array],
) -> pa.RecordBatch:
    """Return a text row for each raw row, with the first reason against a judged text."""
    reasons = columns.pop("reason", batch["reason"])
    carried = ("level", "score", "candidate_scores", "group", "rows", "bytes")
    units = pc.coalesce(batch["unit"], batch["document"]).to_pylist()
    languages = [sampled_language(text) if text else None for text in judged[0].to_pylist()]
    return unit_batch(
        batch.num_rows,
        {
            **{name: batch[name] for name in carried},
            **carried_key(batch, settings),
            **columns,
            "unit": pa.array([name and hash_of(name) for name in units], pa.int64()),
            "language": pa.array(languages, pa.string()),
            "reason": text_reasons(reasons, judged, settings),
        },
    )


class Unit(NamedTuple):
    """A kind of unit: the funnel level of its texts, and the function to form them of raw rows.

    `form` yields batches of :data:`.unit_rows.SCHEMA`.
    """

    level: str
    form: Callable[[pa.RecordBatch, CorpusSettings], Iterator[pa.RecordBatch]]


UNITS: Mapping[str, Unit] = {
    "rows": Unit(ROWS, row_units),
    "summary": Unit(ROWS, summary_units),
    "title": Unit(ROWS, title_units),
    "document": Unit(ROWS, document_units),
    "lines": Unit(LINES, partial(_part_units, level=LINES, cut=_lines)),
    "paragraphs": Unit(PARAGRAPHS, partial(_part_units, level=PARAGRAPHS, cut=_paragraphs)),
    "sentences": Unit(SENTENCES, partial(_part_units, level=SENTENCES, cut=_sentences)),
}


def unit_of(settings: CorpusSettings) -> str:
    """Return the kind of unit: a key of :data:`UNITS`."""
    if settings.pairs in ("summary", "title", "document"):
        return settings.pairs
    if settings.pairs == "adjacent" or settings.sentences:
        return "sentences"
    return FORMATS.load(settings.format).unit if settings.pairs == "single" else "rows"


def text_level(settings: CorpusSettings) -> str:
    """Return the funnel level of the texts."""
    return UNITS[unit_of(settings)].level


def unit_batches(
    batches: Iterable[pa.RecordBatch],
    settings: CorpusSettings,
    naming: Naming | None = None,
    deleted: Collection[int] = (),
) -> Iterator[pa.RecordBatch]:
    """Yield judged texts and counts (:data:`.unit_rows.SCHEMA`) for raw rows. Runs on an executor.

    `batches` are of :data:`.readers.rows.ROW_SCHEMA`. `naming` names the files, to keep their
    units apart; None if all are used once. Rows with the hash of their key in `deleted` are only
    counted.
    """
    redacted = redact_batches(batches, settings.redact, TEXT_COLUMNS)
    if naming is None:
        for batch in redacted:
            yield from _units(batch, settings, deleted)
    else:
        yield from gathered(_units_by_source(redacted, settings, deleted, naming))


def _units(
    batch: pa.RecordBatch, settings: CorpusSettings, deleted: Collection[int]
) -> Iterator[pa.RecordBatch]:
    if settings.key_column is not None:
        # From here on no batch holds a key itself.
        place = batch.schema.get_field_index("key")
        batch = batch.set_column(place, SCHEMA.field("key"), hashed_keys(batch["key"]))
        batch, gone = without_deleted(batch, deleted)
        if gone is not None:
            yield _as_it_is(gone, settings)
    quarantined = pc.is_valid(batch["quarantined"])
    counted = pc.or_(quarantined, pc.equal(batch["level"], FILES))
    if pc.any(counted).as_py():
        yield _as_it_is(batch.filter(counted), settings)
        batch = batch.filter(pc.invert(counted))
    if batch.num_rows:
        yield from UNITS[unit_of(settings)].form(batch, settings)


def _units_by_source(
    batches: Iterable[pa.RecordBatch],
    settings: CorpusSettings,
    deleted: Collection[int],
    naming: Naming,
) -> Iterator[pa.RecordBatch]:
    """Yield the units of each file apart, since each keeps its own counts."""
    for batch in batches:
        addresses = pc.run_end_encode(batch["input"])
        by_spark = addresses.values.null_count == 0
        files = addresses if by_spark else pc.run_end_encode(batch["file"])
        begin = 0
        for file, end in zip(files.values.to_pylist(), files.run_ends.to_pylist(), strict=True):
            source = naming.id_of(file_of(file) if by_spark else file)
            for units in _units(batch.slice(begin, end - begin), settings, deleted):
                column = pa.repeat(pa.scalar(source, pa.int64()), units.num_rows)
                place = SCHEMA.get_field_index("source")
                yield units.set_column(place, SCHEMA.field("source"), column)
            begin = end


def _as_it_is(batch: pa.RecordBatch, settings: CorpusSettings) -> pa.RecordBatch:
    """Return rows to count, with an excerpt unless excerpts are forbidden."""
    names = ("level", "file", "offset", "reason", "quarantined", "rows", "bytes")
    columns = {name: batch[name] for name in names} | carried_key(batch, settings)
    if shows_excerpts(settings):
        columns["anchor"] = batch["text_0"]
    return unit_batch(batch.num_rows, columns)
