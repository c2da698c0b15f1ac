"""What the rows of a source are cut into: texts, sentences, documents, or rows as they are.

Units that are cut out of rows: lines, paragraphs of prose, sentences. Runs on executors.

A raw row gives any number of texts. What is not a text any more is only counted.

Units that are whole rows: as they are, a summary and its paragraph, a title and its paragraph.

Runs on executors. A raw row gives one row of :data:`.unit_rows.SCHEMA`.

Units that are whole documents: a title with its text, or a piece of a text with the rest of it.

Nobody has asked a question about them yet. A title is the nearest thing to one; where there is
none, words from anywhere in the text stand for it, without which the text has to be recognised
(the inverse cloze task: Lee, Chang and Toutanova, "Latent retrieval for weakly supervised open
domain question answering", ACL 2019). Runs on executors.

From raw rows to the texts that pairs are made of, judged by the rules.

One function for each kind of unit: whole rows (:mod:`pipelines.corpus.texts`), and texts that
are cut out of them (:mod:`pipelines.corpus.texts`). All of them run on the executors, over
Arrow batches.

Whatever is not a text any more is only counted: a row of the result then stands for `rows` of
its `level`; one that stands for none shows one of them as an example, in `anchor`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from pipelines.arrow_columns import lists_of
from pipelines.catalog import FORMATS
from pipelines.corpus.cleaning.paragraphs import split_paragraphs
from pipelines.corpus.cleaning.prose import NO_PROSE, summary_pair
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

RUN = 16
"""Texts of a piece that follow one another and make a run: neighbours of one run are paired, and
pairs of one run, which share sentences, never meet in a granule."""
EXAMPLE_CHARACTERS = 300

_RULES_OF_SENTENCES = {name: rule for name, rule in TEXT_RULES.items() if name != OTHER_LANGUAGE}


@dataclass
class _Texts:
    """The texts that a batch gives, and the counts of what gives none."""

    level: str
    most_examples: int
    anchor: list[str] = field(default_factory=list)
    group: list[str | None] = field(default_factory=list)
    unit: list[int] = field(default_factory=list)
    run: list[int] = field(default_factory=list)
    place: list[int] = field(default_factory=list)
    language: list[str | None] = field(default_factory=list)
    key: list[int | None] = field(default_factory=list)
    counts: dict[tuple[str, str | None], int] = field(default_factory=dict)
    dropped: dict[tuple[str, str], set[str]] = field(default_factory=dict)

    def count(self, level: str, reason: str | None, example: str) -> None:
        key = (level, reason)
        self.counts[key] = self.counts.get(key, 0) + 1
        if reason is not None and example and self.most_examples:
            self.dropped.setdefault((level, reason), set()).add(example[:EXAMPLE_CHARACTERS])

    def _examples(self) -> set[tuple[str, str, str]]:
        """A few texts of each level and reason."""
        # The lowest hash is the lowest of the corpus, however the rows came in batches.
        return {
            (level, reason, min((hash_of(f"{number}{text}"), text) for text in texts)[1])
            for (level, reason), texts in self.dropped.items()
            for number in range(self.most_examples)
        }

    def text_batch(self, settings: CorpusSettings) -> pa.RecordBatch:
        anchors = single_spaces(pa.array(self.anchor, pa.string()))
        nothing = pa.nulls(len(anchors), pa.string())
        return unit_batch(
            len(anchors),
            {
                "level": pa.array([self.level] * len(anchors), pa.string()),
                "anchor": anchors,
                "group": pa.array(self.group, pa.string()),
                "anchor_key": ascii_keys(anchors),
                "unit": pa.array(self.unit, pa.int64()),
                "run": pa.array(self.run, pa.int64()),
                "place": pa.array(self.place, pa.int64()),
                "language": pa.array(self.language, pa.string()),
                "key": pa.array(self.key, pa.int64()),
                "reason": text_reasons(nothing, [anchors], settings, _RULES_OF_SENTENCES),
                "rows": pa.array([1] * len(anchors), pa.int64()),
                "bytes": pa.array([0] * len(anchors), pa.int64()),
            },
        )

    def count_batch(self, read_bytes: int) -> pa.RecordBatch:
        counted = [(level, reason, None, rows) for (level, reason), rows in self.counts.items()]
        # The bytes are those of rows, and stand with the first line.
        counted.sort(key=lambda line: line[0] != ROWS)
        # An example stands for no row: its row is counted already.
        lines = counted + [(*example, 0) for example in sorted(self._examples())]
        levels, reasons, texts, rows = zip(*lines, strict=True)
        return unit_batch(
            len(lines),
            {
                "level": pa.array(levels, pa.string()),
                "anchor": pa.array(texts, pa.string()),
                "reason": pa.array(reasons, pa.string()),
                "rows": pa.array(rows, pa.int64()),
                "bytes": pa.array([read_bytes] + [0] * (len(lines) - 1), pa.int64()),
            },
        )


def line_units(batch: pa.RecordBatch, settings: CorpusSettings) -> Iterator[pa.RecordBatch]:
    """The lines of a text, blank ones too."""
    return _parts(batch, settings, LINES, _lines)


def paragraph_units(batch: pa.RecordBatch, settings: CorpusSettings) -> Iterator[pa.RecordBatch]:
    """The paragraphs of prose of a text."""
    return _parts(batch, settings, PARAGRAPHS, _paragraphs)


def sentence_units(batch: pa.RecordBatch, settings: CorpusSettings) -> Iterator[pa.RecordBatch]:
    """The sentences of the paragraphs of prose of a text."""
    return _parts(batch, settings, SENTENCES, _sentences)


Cut = Callable[[str, str | None, CorpusSettings, _Texts], Iterator[tuple[str | None, str | None]]]
"""Cuts a piece, with its title, into texts and their languages. A null text stands for something
between two texts that is dropped, so that these are no neighbours."""


def _parts(
    batch: pa.RecordBatch, settings: CorpusSettings, level: str, cut: Cut
) -> Iterator[pa.RecordBatch]:
    texts = _Texts(level, settings.report_examples if shows_excerpts(settings) else 0)
    keys = carried_key(batch, settings).get("key", pa.nulls(batch.num_rows, pa.int64()))
    pieces = zip(
        clean_lines(batch["text_0"]).to_pylist(),
        clean(batch["title"]).to_pylist(),
        keys.to_pylist(),
        *_owners(batch),
        strict=True,
    )
    for piece, title, key, group, unit, own in pieces:
        before = len(texts.anchor)
        run, number = 0, -1
        for place, (text, language) in enumerate(cut(piece or "", title, settings, texts)):
            if text is not None:
                texts.anchor.append(text)
                if place // RUN != number:
                    number = place // RUN
                    run = hash_of(f"{own}/{number}")
                texts.run.append(run)
                texts.place.append(place)
                texts.language.append(language)
        found = len(texts.anchor) - before
        texts.group += [group] * found
        texts.unit += [hash_of(unit)] * found
        texts.key += [key] * found
        reason = None if found else "no text" if piece is None else NO_PROSE
        texts.count(ROWS, reason, title or piece or "")
    yield texts.text_batch(settings)
    yield texts.count_batch(pa.compute.sum(batch["bytes"]).as_py() or 0)


def _owners(batch: pa.RecordBatch) -> tuple[list[str | None], list[str], list[str]]:
    """Group as the columns say, unit that is held out as a whole, and a name of its own.

    A book is held out by pieces: as a whole it may be more than is wanted.
    """
    columns = ("group", "unit", "document", "place", "file", "offset", "text_0")
    groups, units, names = [], [], []
    for group, unit, document, place, file, offset, text in zip(
        *(batch[name].to_pylist() for name in columns), strict=True
    ):
        if document is not None:
            own = f"{document}/{place}"
        elif file is not None:
            own = f"{file}#{offset}"
        else:
            own = f"text {hash_of(text or '')}"
        groups.append(group)
        units.append(unit or group or own)
        names.append(own)
    return groups, units, names


def _lines(
    piece: str, title: str | None, settings: CorpusSettings, texts: _Texts
) -> Iterator[tuple[str | None, str | None]]:
    wanted = {*settings.languages, UNKNOWN}
    for line in piece.removesuffix("\n").split("\n"):
        language = identify(line) if settings.languages else sampled_language(line)
        if settings.languages and language not in wanted:
            texts.count(LINES, OTHER_LANGUAGE, line)
            yield None, None
        else:
            yield line, language


def _paragraphs(
    piece: str, title: str | None, settings: CorpusSettings, texts: _Texts
) -> Iterator[tuple[str | None, str | None]]:
    wanted = {*settings.languages, UNKNOWN}
    for paragraph in split_paragraphs(piece, title):
        reason, language = paragraph.reason, None
        if reason is None and settings.languages:
            language = identify(paragraph.text)
            reason = None if language in wanted else OTHER_LANGUAGE
        elif reason is None:
            language = sampled_language(paragraph.text)
        if reason is None:
            yield paragraph.text, language
        else:
            texts.count(PARAGRAPHS, reason, paragraph.text)
            yield None, None


def _sentences(
    piece: str, title: str | None, settings: CorpusSettings, texts: _Texts
) -> Iterator[tuple[str | None, str | None]]:
    # Only abbreviations differ between the languages; `en` cuts the others well enough.
    language_of_all = settings.languages[0] if len(settings.languages) == 1 else "en"
    for paragraph, language in _paragraphs(piece, title, settings, texts):
        if paragraph is None:
            yield None, None
            continue
        texts.count(PARAGRAPHS, None, "")
        for sentence in segment(language_of_all, paragraph):
            stripped = sentence.strip()
            if stripped:
                yield stripped, language


NO_TITLE = "no title"
NOT_FIRST = "not the beginning of a document"

_RULES_OF_TITLES = {
    name: rule for name, rule in TEXT_RULES.items() if name not in (OTHER_LANGUAGE, TOO_SHORT)
}
_ONE_TEXT = ("single", "group")


def row_units(batch: pa.RecordBatch, settings: CorpusSettings) -> Iterator[pa.RecordBatch]:
    """A row's texts as they are."""
    columns = {"anchor": clean(batch["text_0"])}
    if settings.pairs not in _ONE_TEXT:
        columns["positive"] = clean(batch["text_1"])
    lists = batch["negatives"]
    negatives = [
        clean(pa.compute.list_element(lists, place)) for place in range(settings.hard_negatives)
    ]
    judged = [*columns.values(), *negatives]
    if negatives:
        columns["negatives"] = lists_of(negatives)
    yield _judged(batch, columns, settings, judged)


def summary_units(batch: pa.RecordBatch, settings: CorpusSettings) -> Iterator[pa.RecordBatch]:
    """A text's first sentence, and the prose that follows it."""
    # Null and blank texts are left to the rules for texts, which name them.
    pairs = [
        (text, text, None) if text is None or not text.strip() else _summary(text)
        for text in clean_lines(batch["text_0"]).to_pylist()
    ]
    columns = _two_sides(pairs)
    yield _judged(batch, columns, settings, [columns["anchor"], columns["positive"]])


def _summary(text: str) -> tuple[str | None, str | None, str | None]:
    pair = summary_pair(text)
    return pair.sentence, pair.paragraph, pair.reason


def title_units(batch: pa.RecordBatch, settings: CorpusSettings) -> Iterator[pa.RecordBatch]:
    """A document's title, and its first paragraph of prose."""
    titles = clean(batch["title"]).to_pylist()
    texts = clean_lines(batch["text_0"]).to_pylist()
    places = batch["place"].to_pylist()
    pairs = [_title(*row) for row in zip(titles, texts, places, strict=True)]
    yield two_sided_batch(batch, pairs, settings)


def two_sided_batch(
    batch: pa.RecordBatch,
    pairs: list[tuple[str | None, str | None, str | None]],
    settings: CorpusSettings,
) -> pa.RecordBatch:
    """Judged rows of titles, or what stands for one, and of texts.

    Args:
        batch: Raw rows.
        pairs: Of each row the title, the text, and the reason for which they are no pair.
        settings: Of the corpus.
    """
    columns = _two_sides(pairs)
    columns["reason"] = text_reasons(
        columns["reason"], [columns["anchor"]], settings, _RULES_OF_TITLES
    )
    return _judged(batch, columns, settings, [columns["positive"]])


def _title(
    title: str | None, text: str | None, place: int | None
) -> tuple[str | None, str | None, str | None]:
    if place:
        return None, None, NOT_FIRST
    if not title:
        return None, None, NO_TITLE
    for paragraph in split_paragraphs(text or "", title):
        if paragraph.reason is None:
            return title, paragraph.text, None
    return title, None, NO_PROSE


def _two_sides(pairs: list[tuple[str | None, str | None, str | None]]) -> dict[str, pa.Array]:
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
    """One text row a raw row, with the first reason that drops one of the texts to be judged."""
    reasons = columns.pop("reason", batch["reason"])
    carried = ("level", "score", "candidate_scores", "group", "rows", "bytes")
    units = pa.compute.coalesce(batch["unit"], batch["document"]).to_pylist()
    return unit_batch(
        batch.num_rows,
        {
            **{name: batch[name] for name in carried},
            **carried_key(batch, settings),
            **columns,
            "unit": pa.array([name and hash_of(name) for name in units], pa.int64()),
            "language": _languages(judged[0]),
            "reason": text_reasons(reasons, judged, settings),
        },
    )


def _languages(texts: pa.Array) -> pa.Array:
    found = [sampled_language(text) if text else None for text in texts.to_pylist()]
    return pa.array(found, pa.string())


SHORTEST_PIECE, LONGEST_PIECE = 4, 40
"""Words of a piece; it is half of a short text at most."""
_SHORTEST_TEXT = 2 * SHORTEST_PIECE
_TITLED = SCHEMA.get_field_index("titled")
_CHARACTERS = 3
"""That stand for a word where a text has hardly any blanks."""
TOO_FEW_WORDS = "no title and too few words"

Pair = tuple[str | None, str | None, str | None]
"""Anchor, positive, and the reason why a document gives none."""


def document_units(batch: pa.RecordBatch, settings: CorpusSettings) -> Iterator[pa.RecordBatch]:
    """A document's title and its text, or a piece of its text and what is around it."""
    texts = single_spaces(clean_lines(batch["text_0"])).to_pylist()
    # A title stands for the beginning of a document, of which a row may be a later part.
    places = batch["place"].to_pylist()
    of_rows = zip(clean(batch["title"]).to_pylist(), places, strict=True)
    titles = [None if place else title for title, place in of_rows]
    pairs = [
        _pair(title, text, settings.max_characters)
        for title, text in zip(titles, texts, strict=True)
    ]
    units = two_sided_batch(batch, pairs, settings)
    # A document counts once, by its beginning.
    signs = [
        None if place else 1 if title else -1 for title, place in zip(titles, places, strict=True)
    ]
    kept = pa.compute.is_null(units["reason"])
    titled = pa.compute.if_else(kept, pa.array(signs, pa.int64()), None)
    yield units.set_column(_TITLED, SCHEMA.field(_TITLED), titled)


def _pair(title: str | None, text: str | None, most: int) -> Pair:
    if not text or not text.strip():
        return title, text, None
    text = shortened(text, most)
    return (title, text, None) if title else cut_piece(text)


def shortened(text: str, most: int) -> str:
    """The beginning of a text, of no more characters, to the end of a word if there is one."""
    if len(text) <= most:
        return text
    return text[: most + 1].rpartition(" ")[0] or text[:most]


def cut_piece(text: str) -> Pair:
    """A piece of a text and the rest of it, the same whenever it is asked for.

    Args:
        text: With single blanks.
    """
    separator, units = " ", text.split(" ")
    if len(units) < _SHORTEST_TEXT:
        separator = ""
        units = [text[at : at + _CHARACTERS] for at in range(0, len(text), _CHARACTERS)]
    if len(units) < _SHORTEST_TEXT:
        return None, text, TOO_FEW_WORDS
    chance = hash_of(text) & (1 << 62) - 1
    longest = min(LONGEST_PIECE, len(units) // 2)
    chance, length = divmod(chance, longest - SHORTEST_PIECE + 1)
    length += SHORTEST_PIECE
    first = chance % (len(units) - length + 1)
    rest = units[:first] + units[first + length :]
    return separator.join(units[first : first + length]), separator.join(rest), None


_SOURCE = SCHEMA.get_field_index("source")
_GROUP_ROWS = 4096
_GROUP_BYTES = 4 << 20


@dataclass(frozen=True)
class Unit:
    """What pairs are made of.

    Attributes:
        level: The level of the funnel that its texts belong to.
        form: From a batch of raw rows to batches of :data:`.unit_rows.SCHEMA`.
    """

    level: str
    form: Callable[[pa.RecordBatch, CorpusSettings], Iterator[pa.RecordBatch]]


UNITS: Mapping[str, Unit] = {
    "rows": Unit(ROWS, row_units),
    "summary": Unit(ROWS, summary_units),
    "title": Unit(ROWS, title_units),
    "document": Unit(ROWS, document_units),
    "lines": Unit(LINES, line_units),
    "paragraphs": Unit(PARAGRAPHS, paragraph_units),
    "sentences": Unit(SENTENCES, sentence_units),
}


def unit_of(settings: CorpusSettings) -> str:
    """The kind of unit: a key of :data:`UNITS`."""
    if settings.pairs in ("summary", "title", "document"):
        return settings.pairs
    if settings.pairs == "adjacent" or settings.sentences:
        return "sentences"
    return FORMATS.load(settings.format).unit if settings.pairs == "single" else "rows"


def text_level(settings: CorpusSettings) -> str:
    """The level of the funnel that the texts belong to."""
    return UNITS[unit_of(settings)].level


def unit_batches(
    batches: Iterable[pa.RecordBatch],
    settings: CorpusSettings,
    naming: Naming | None = None,
    deleted: Collection[int] = (),
) -> Iterator[pa.RecordBatch]:
    """Raw rows in, judged texts and counts out (:data:`.unit_rows.SCHEMA`). Runs on executors.

    Args:
        batches: Of :data:`.readers.rows.ROW_SCHEMA`.
        settings: Of the corpus.
        naming: What the inputs are called whose units are to be kept, each for itself; they are
            files. None where all are used once.
        deleted: Hashes of keys whose rows are counted and nothing else.
    """
    redacted = redact_batches(batches, settings.redact, TEXT_COLUMNS)
    cut = partial(_units, settings=settings, deleted=deleted)
    if naming is None:
        for batch in redacted:
            yield from cut(batch)
    else:
        yield from gathered(_units_by_source(redacted, cut, naming))


def _units(
    batch: pa.RecordBatch, settings: CorpusSettings, deleted: Collection[int]
) -> Iterator[pa.RecordBatch]:
    if settings.key_column is not None:
        place = batch.schema.get_field_index("key")
        batch = batch.set_column(place, SCHEMA.field("key"), hashed_keys(batch["key"]))
        batch, gone = without_deleted(batch, deleted)
        if gone is not None:
            yield _as_it_is(gone, settings)
    quarantined = pa.compute.is_valid(batch["quarantined"])
    counted = pa.compute.or_(quarantined, pa.compute.equal(batch["level"], FILES))
    if pa.compute.any(counted).as_py():
        yield _as_it_is(batch.filter(counted), settings)
        batch = batch.filter(pa.compute.invert(counted))
    if batch.num_rows:
        yield from UNITS[unit_of(settings)].form(batch, settings)


def _units_by_source(
    batches: Iterable[pa.RecordBatch],
    cut: Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]],
    naming: Naming,
) -> Iterator[pa.RecordBatch]:
    """The units of each file apart, since counts are kept with what they count."""
    for batch in batches:
        addresses = pa.compute.run_end_encode(batch["input"])
        by_spark = addresses.values.null_count == 0
        files = addresses if by_spark else pa.compute.run_end_encode(batch["file"])
        begin = 0
        for told, end in zip(files.values.to_pylist(), files.run_ends.to_pylist(), strict=True):
            file = file_of(told) if by_spark else told
            for units in cut(batch.slice(begin, end - begin)):
                number = pa.repeat(pa.scalar(naming.id_of(file), pa.int64()), units.num_rows)
                yield units.set_column(_SOURCE, SCHEMA.field(_SOURCE), number)
            begin = end


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are not too small, each of which is a row group of a file."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        rows, size = sum(one.num_rows for one in held), sum(one.nbytes for one in held)
        if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield pa.concat_batches(held)
            held = []
    if held:
        yield pa.concat_batches(held)


def _as_it_is(batch: pa.RecordBatch, settings: CorpusSettings) -> pa.RecordBatch:
    """What is only counted, with an excerpt unless texts are to be shown nowhere."""
    names = ("level", "file", "offset", "reason", "quarantined", "rows", "bytes")
    columns = {name: batch[name] for name in names} | carried_key(batch, settings)
    if shows_excerpts(settings):
        columns["anchor"] = batch["text_0"]
    return unit_batch(batch.num_rows, columns)
