"""Units that are cut out of rows: lines, paragraphs of prose, sentences. Runs on executors.

A raw row gives any number of texts. What is not a text any more is only counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from pipelines.corpus.cleaning.languages import UNKNOWN, identify
from pipelines.corpus.cleaning.paragraphs import split_paragraphs
from pipelines.corpus.cleaning.prose import NO_PROSE
from pipelines.corpus.cleaning.rules import (
    OTHER_LANGUAGE,
    TEXT_RULES,
    clean,
    clean_lines,
    single_spaces,
    text_reasons,
)
from pipelines.corpus.cleaning.sentences import segment
from pipelines.corpus.cleaning.text_keys import ascii_keys
from pipelines.corpus.funnel import LINES, PARAGRAPHS, ROWS, SENTENCES
from pipelines.corpus.unit_schema import (
    carried_key,
    hash_of,
    sampled_language,
    shows_excerpts,
    unit_batch,
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
