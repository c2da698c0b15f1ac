"""From raw rows to the texts that pairs are made of, judged by the rules.

One function for each kind of unit: whole rows (:mod:`pipelines.corpus.row_units`), and texts that
are cut out of them (:mod:`pipelines.corpus.text_units`). All of them run on the executors, over
Arrow batches.

Whatever is not a text any more is only counted: a row of the result then stands for `rows` of
its `level`; one that stands for none shows one of them as an example, in `anchor`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from pipelines.catalog import FORMATS
from pipelines.corpus.cleaning.redaction import TEXT_COLUMNS, redact_batches
from pipelines.corpus.deleted_keys import hashed_keys, without_deleted
from pipelines.corpus.document_units import document_units
from pipelines.corpus.funnel import FILES, LINES, PARAGRAPHS, ROWS, SENTENCES
from pipelines.corpus.kept_units.sources import Naming
from pipelines.corpus.readers.rows import file_of
from pipelines.corpus.row_units import row_units, summary_units, title_units
from pipelines.corpus.text_units import line_units, paragraph_units, sentence_units
from pipelines.corpus.unit_schema import SCHEMA, carried_key, shows_excerpts, unit_batch
from pipelines.settings import CorpusSettings

_SOURCE = SCHEMA.get_field_index("source")
_GROUP_ROWS = 4096
_GROUP_BYTES = 4 << 20


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
    """Raw rows in, judged texts and counts out (:data:`.unit_schema.SCHEMA`). Runs on executors.

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
