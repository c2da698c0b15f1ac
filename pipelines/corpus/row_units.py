"""Units that are whole rows: as they are, a summary and its paragraph, a title and its paragraph.

Runs on executors. A raw row gives one row of :data:`.unit_schema.SCHEMA`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from pipelines.arrow_columns import lists_of
from pipelines.corpus.cleaning.paragraphs import split_paragraphs
from pipelines.corpus.cleaning.prose import NO_PROSE, summary_pair
from pipelines.corpus.cleaning.rules import (
    OTHER_LANGUAGE,
    TEXT_RULES,
    TOO_SHORT,
    clean,
    clean_lines,
    single_spaces,
    text_reasons,
)
from pipelines.corpus.unit_schema import (
    carried_key,
    hash_of,
    sampled_language,
    unit_batch,
)
from pipelines.settings import CorpusSettings

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
