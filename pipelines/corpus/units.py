"""From raw rows to the texts that pairs are made of, judged by the rules.

One function for each kind of unit: the row as it is, its first sentence and what follows, its
title and first paragraph, its lines, its paragraphs, its sentences. All of them run on the
executors, over Arrow batches.

Whatever is not a text any more is only counted: a row of the result then stands for `rows` of
its `level`; one that stands for none shows one of them as an example, in `left`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import sentencex
import xxhash

from pipelines.corpus.funnel import FILES, LINES, PARAGRAPHS, ROWS, SENTENCES
from pipelines.corpus.inputs import DOCUMENT_FORMATS
from pipelines.corpus.languages import UNKNOWN, identify, is_installed
from pipelines.corpus.paragraphs import split_paragraphs
from pipelines.corpus.prose import NO_PROSE, summary_pair
from pipelines.corpus.rules import (
    OTHER_LANGUAGE,
    TEXT_RULES,
    TOO_SHORT,
    clean,
    clean_lines,
    single_spaces,
    text_reasons,
)
from pipelines.settings import CorpusSettings

SCHEMA = pa.schema(
    [
        ("level", pa.string()),
        ("file", pa.string()),
        ("offset", pa.int64()),
        ("left", pa.string()),
        ("right", pa.string()),
        ("negative", pa.string()),
        ("score", pa.string()),
        ("group", pa.string()),
        ("unit", pa.int64()),
        ("run", pa.int64()),
        ("place", pa.int64()),
        ("language", pa.string()),
        ("reason", pa.string()),
        ("quarantined", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
"""`file` and `offset` only of what is quarantined; a text has its `place` in its `run`. `unit` and
`run` are hashes, since names as long as paths would cost more than the texts."""

RUN = 16
"""Texts of a piece that follow one another and make a run: neighbours of one run are paired, and
pairs of one run, which share sentences, never meet in a granule."""

NO_TITLE = "no title"
NOT_FIRST = "not the beginning of a document"

# One paragraph in so many is asked for its language where only the report wants to know.
_SAMPLED = 16
_RULES_OF_SENTENCES = {name: rule for name, rule in TEXT_RULES.items() if name != OTHER_LANGUAGE}
_RULES_OF_TITLES = {
    name: rule for name, rule in TEXT_RULES.items() if name not in (OTHER_LANGUAGE, TOO_SHORT)
}
EXAMPLES = 3
EXAMPLE_CHARACTERS = 300
_SPARK_SEED = 42


def hash_of(name: str) -> int:
    """The signed 64-bit hash that Spark's `xxhash64` gives for a string."""
    digest: int = xxhash.xxh64_intdigest(name.encode(), seed=_SPARK_SEED)
    return digest - (1 << 64) if digest >= 1 << 63 else digest


def unit_of(settings: CorpusSettings) -> str:
    """The kind of unit: a key of :data:`UNITS`."""
    if settings.pairs in ("summary", "title"):
        return settings.pairs
    if settings.pairs == "adjacent" or settings.sentences:
        return "sentences"
    if settings.pairs == "single" and settings.format in DOCUMENT_FORMATS:
        return "lines" if settings.format == "text" else "paragraphs"
    return "rows"


def text_level(settings: CorpusSettings) -> str:
    """The level of the funnel that the texts belong to."""
    return UNITS[unit_of(settings)].level


def unit_batches(
    batches: Iterable[pa.RecordBatch], settings: CorpusSettings
) -> Iterator[pa.RecordBatch]:
    """Raw rows in, judged texts and counts out; see :data:`SCHEMA`. Runs on an executor."""
    form = UNITS[unit_of(settings)].form
    for batch in batches:
        unread = pa.compute.is_valid(batch["quarantined"])
        counted = pa.compute.or_(unread, pa.compute.equal(batch["level"], FILES))
        if pa.compute.any(counted).as_py():
            yield _as_it_is(batch.filter(counted))
            batch = batch.filter(pa.compute.invert(counted))  # noqa: PLW2901
        if batch.num_rows:
            yield from form(batch, settings)


def _as_it_is(batch: pa.RecordBatch) -> pa.RecordBatch:
    names = ("level", "file", "offset", "reason", "quarantined", "rows", "bytes")
    columns = {name: batch[name] for name in names}
    return _batch(batch.num_rows, {**columns, "left": batch["text_0"]})


def _row_units(batch: pa.RecordBatch, settings: CorpusSettings) -> Iterator[pa.RecordBatch]:
    """A row's texts as they are."""
    sides = [clean(batch[f"text_{side}"]) for side in range(_SIDES[settings.pairs])]
    yield _judged(batch, dict(zip(("left", "right", "negative"), sides, strict=False)), settings)


def _summary_units(batch: pa.RecordBatch, settings: CorpusSettings) -> Iterator[pa.RecordBatch]:
    """A text's first sentence, and the prose that follows it."""
    # Null and blank texts are left to the rules for texts, which name them.
    pairs = [
        (text, text, None) if text is None or not text.strip() else _summary(text)
        for text in clean_lines(batch["text_0"]).to_pylist()
    ]
    yield _judged(batch, _two_sides(pairs), settings)


def _summary(text: str) -> tuple[str | None, str | None, str | None]:
    pair = summary_pair(text)
    return pair.sentence, pair.paragraph, pair.reason


def _title_units(batch: pa.RecordBatch, settings: CorpusSettings) -> Iterator[pa.RecordBatch]:
    """A document's title, and its first paragraph of prose."""
    titles = clean(batch["title"]).to_pylist()
    texts = clean_lines(batch["text_0"]).to_pylist()
    places = batch["place"].to_pylist()
    pairs = [_title(*row) for row in zip(titles, texts, places, strict=True)]
    columns = _two_sides(pairs)
    columns["reason"] = text_reasons(
        columns["reason"], [columns["left"]], settings, _RULES_OF_TITLES
    )
    yield _judged(batch, columns, settings, judged=("right",))


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
    left, right, reason = zip(*pairs, strict=True)
    return {
        "left": single_spaces(pa.array(left, pa.string())),
        "right": single_spaces(pa.array(right, pa.string())),
        "reason": pa.array(reason, pa.string()),
    }


def _judged(
    batch: pa.RecordBatch,
    columns: dict[str, pa.Array],
    settings: CorpusSettings,
    judged: Sequence[str] = ("left", "right", "negative"),
) -> pa.RecordBatch:
    """One text row a raw row, with the first reason that drops it."""
    sides = [columns[side] for side in judged if side in columns]
    reasons = columns.pop("reason", batch["reason"])
    carried = ("level", "score", "group", "rows", "bytes")
    units = pa.compute.coalesce(batch["unit"], batch["document"]).to_pylist()
    return _batch(
        batch.num_rows,
        {
            **{name: batch[name] for name in carried},
            **columns,
            "unit": pa.array([name and hash_of(name) for name in units], pa.int64()),
            "language": _languages(sides[0]),
            "reason": text_reasons(reasons, sides, settings),
        },
    )


def _languages(texts: pa.Array) -> pa.Array:
    found = [_sampled_language(text) if text else None for text in texts.to_pylist()]
    return pa.array(found, pa.string())


def _sampled_language(text: str) -> str | None:
    asked = zlib.crc32(text.encode()) % _SAMPLED == 0 and is_installed()
    return identify(text) if asked else None


@dataclass
class _Texts:
    """The texts that a batch gives, and the counts of what gives none."""

    level: str
    left: list[str] = field(default_factory=list)
    group: list[str | None] = field(default_factory=list)
    unit: list[int] = field(default_factory=list)
    run: list[int] = field(default_factory=list)
    place: list[int] = field(default_factory=list)
    language: list[str | None] = field(default_factory=list)
    counts: dict[tuple[str, str | None], int] = field(default_factory=dict)
    examples: dict[tuple[str, str, int], tuple[int, str]] = field(default_factory=dict)

    def count(self, level: str, reason: str | None, example: str) -> None:
        key = (level, reason)
        self.counts[key] = self.counts.get(key, 0) + 1
        text = example[:EXAMPLE_CHARACTERS]
        if reason is None or not text:
            return
        # The lowest hash is the lowest of the corpus, however the rows came in batches.
        for number in range(EXAMPLES):
            ranked = (hash_of(f"{number}{text}"), text)
            place = (level, reason, number)
            self.examples[place] = min(self.examples.get(place, ranked), ranked)

    def text_batch(self, settings: CorpusSettings) -> pa.RecordBatch:
        left = single_spaces(pa.array(self.left, pa.string()))
        nothing = pa.nulls(len(left), pa.string())
        return _batch(
            len(left),
            {
                "level": pa.array([self.level] * len(left), pa.string()),
                "left": left,
                "group": pa.array(self.group, pa.string()),
                "unit": pa.array(self.unit, pa.int64()),
                "run": pa.array(self.run, pa.int64()),
                "place": pa.array(self.place, pa.int64()),
                "language": pa.array(self.language, pa.string()),
                "reason": text_reasons(nothing, [left], settings, _RULES_OF_SENTENCES),
                "rows": pa.array([1] * len(left), pa.int64()),
                "bytes": pa.array([0] * len(left), pa.int64()),
            },
        )

    def count_batch(self, read_bytes: int) -> pa.RecordBatch:
        counted = [(level, reason, None, rows) for (level, reason), rows in self.counts.items()]
        shown = {(level, reason, text) for (level, reason, _), (_, text) in self.examples.items()}
        # An example stands for no row: its row is counted already.
        lines = counted + [(*example, 0) for example in sorted(shown)]
        levels, reasons, texts, rows = zip(*lines, strict=True)
        return _batch(
            len(lines),
            {
                "level": pa.array(levels, pa.string()),
                "left": pa.array(texts, pa.string()),
                "reason": pa.array(reasons, pa.string()),
                "rows": pa.array(rows, pa.int64()),
                "bytes": pa.array([read_bytes] + [0] * (len(lines) - 1), pa.int64()),
            },
        )


def _line_units(batch: pa.RecordBatch, settings: CorpusSettings) -> Iterator[pa.RecordBatch]:
    """The lines of a text, blank ones too."""
    return _parts(batch, settings, LINES, _lines)


def _paragraph_units(batch: pa.RecordBatch, settings: CorpusSettings) -> Iterator[pa.RecordBatch]:
    """The paragraphs of prose of a text."""
    return _parts(batch, settings, PARAGRAPHS, _paragraphs)


def _sentence_units(batch: pa.RecordBatch, settings: CorpusSettings) -> Iterator[pa.RecordBatch]:
    """The sentences of the paragraphs of prose of a text."""
    return _parts(batch, settings, SENTENCES, _sentences)


Cut = Callable[[str, str | None, CorpusSettings, _Texts], Iterator[tuple[str | None, str | None]]]
"""Cuts a piece, with its title, into texts and their languages. A null text stands for something
between two texts that is dropped, so that these are no neighbours."""


def _parts(
    batch: pa.RecordBatch, settings: CorpusSettings, level: str, cut: Cut
) -> Iterator[pa.RecordBatch]:
    texts = _Texts(level)
    pieces = zip(
        clean_lines(batch["text_0"]).to_pylist(),
        clean(batch["title"]).to_pylist(),
        *_owners(batch),
        strict=True,
    )
    for piece, title, group, unit, own in pieces:
        before = len(texts.left)
        unit_hash, run, number = hash_of(unit), 0, -1
        for place, (text, language) in enumerate(cut(piece or "", title, settings, texts)):
            if text is not None:
                texts.left.append(text)
                texts.group.append(group)
                if place // RUN != number:
                    number = place // RUN
                    run = hash_of(f"{own}/{number}")
                texts.unit.append(unit_hash)
                texts.run.append(run)
                texts.place.append(place)
                texts.language.append(language)
        reason = None if len(texts.left) > before else "no text" if piece is None else NO_PROSE
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
        language = identify(line) if settings.languages else _sampled_language(line)
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
            language = _sampled_language(paragraph.text)
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
        for sentence in sentencex.segment(language_of_all, paragraph):
            stripped = sentence.strip()
            if stripped:
                yield stripped, language


def _batch(rows: int, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """A batch of :data:`SCHEMA`; columns that are not given are null."""
    arrays = [columns.get(name, pa.nulls(rows, SCHEMA.field(name).type)) for name in SCHEMA.names]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


@dataclass(frozen=True)
class Unit:
    """What pairs are made of.

    Attributes:
        level: The level of the funnel that its texts belong to.
        form: From a batch of raw rows to batches of :data:`SCHEMA`.
    """

    level: str
    form: Callable[[pa.RecordBatch, CorpusSettings], Iterator[pa.RecordBatch]]


UNITS: Mapping[str, Unit] = {
    "rows": Unit(ROWS, _row_units),
    "summary": Unit(ROWS, _summary_units),
    "title": Unit(ROWS, _title_units),
    "lines": Unit(LINES, _line_units),
    "paragraphs": Unit(PARAGRAPHS, _paragraph_units),
    "sentences": Unit(SENTENCES, _sentence_units),
}
_SIDES = {"single": 1, "group": 1, "columns": 2, "triplets": 3}
