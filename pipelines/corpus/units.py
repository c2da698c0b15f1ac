"""From raw rows to the texts that pairs are made of, judged by the rules.

One function for each kind of unit: whole rows (:mod:`pipelines.corpus.row_units`), and texts that
are cut out of them (:mod:`pipelines.corpus.text_units`). All of them run on the executors, over
Arrow batches.

Whatever is not a text any more is only counted: a row of the result then stands for `rows` of
its `level`; one that stands for none shows one of them as an example, in `anchor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from pipelines.corpus.cleaning.redaction import TEXT_COLUMNS, redact_batches
from pipelines.corpus.funnel import FILES, LINES, PARAGRAPHS, ROWS, SENTENCES
from pipelines.corpus.readers import FORMATS
from pipelines.corpus.row_units import row_units, summary_units, title_units
from pipelines.corpus.text_units import line_units, paragraph_units, sentence_units
from pipelines.corpus.unit_schema import unit_batch
from pipelines.settings import CorpusSettings


@dataclass(frozen=True)
class Unit:
    """What pairs are made of.

    Attributes:
        level: The level of the funnel that its texts belong to.
        form: From a batch of raw rows to batches of :data:`.unit_schema.SCHEMA`.
    """

    level: str
    form: Callable[[pa.RecordBatch, CorpusSettings], Iterator[pa.RecordBatch]]


UNITS: Mapping[str, Unit] = {
    "rows": Unit(ROWS, row_units),
    "summary": Unit(ROWS, summary_units),
    "title": Unit(ROWS, title_units),
    "lines": Unit(LINES, line_units),
    "paragraphs": Unit(PARAGRAPHS, paragraph_units),
    "sentences": Unit(SENTENCES, sentence_units),
}


def unit_of(settings: CorpusSettings) -> str:
    """The kind of unit: a key of :data:`UNITS`."""
    if settings.pairs in ("summary", "title"):
        return settings.pairs
    if settings.pairs == "adjacent" or settings.sentences:
        return "sentences"
    return FORMATS.load(settings.format).unit if settings.pairs == "single" else "rows"


def text_level(settings: CorpusSettings) -> str:
    """The level of the funnel that the texts belong to."""
    return UNITS[unit_of(settings)].level


def unit_batches(
    batches: Iterable[pa.RecordBatch], settings: CorpusSettings
) -> Iterator[pa.RecordBatch]:
    """Raw rows in, judged texts and counts out (:data:`.unit_schema.SCHEMA`). Runs on executors."""
    form = UNITS[unit_of(settings)].form
    for batch in redact_batches(batches, settings.redact, TEXT_COLUMNS):
        quarantined = pa.compute.is_valid(batch["quarantined"])
        counted = pa.compute.or_(quarantined, pa.compute.equal(batch["level"], FILES))
        if pa.compute.any(counted).as_py():
            yield _as_it_is(batch.filter(counted), settings)
            batch = batch.filter(pa.compute.invert(counted))  # noqa: PLW2901
        if batch.num_rows:
            yield from form(batch, settings)


def _as_it_is(batch: pa.RecordBatch, settings: CorpusSettings) -> pa.RecordBatch:
    """What is only counted, with an excerpt unless texts are to be shown nowhere."""
    names = ("level", "file", "offset", "reason", "quarantined", "rows", "bytes")
    columns = {name: batch[name] for name in names}
    if settings.report_examples:
        columns["anchor"] = batch["text_0"]
    return unit_batch(batch.num_rows, columns)
