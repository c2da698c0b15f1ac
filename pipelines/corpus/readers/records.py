"""What all formats with a record a line, or with columns, have in common.

Runs on executors, over the items of :mod:`pipelines.corpus.readers.streams`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pipelines.corpus.readers.csv_parser import Line
from pipelines.corpus.readers.encodings import Encoding
from pipelines.corpus.readers.formats import Columns
from pipelines.corpus.readers.rows import Found, Record, quarantined_record
from pipelines.corpus.readers.streams import Item, Skipped


def said_lines(
    items: Iterable[Item], encoding: Encoding, blank: bytes = b" \t\r\n"
) -> Iterator[Line | Found]:
    """The lines that say something; of what was passed over, a record for the quarantine."""
    for item in items:
        if isinstance(item, Skipped):
            yield quarantined_record(item.offset, item.end, item.data, encoding.codec, item.reason)
            continue
        offset = item.offset
        for line in item.data.splitlines(keepends=True):
            end = offset + encoding.width(line)
            yield (offset, end, line) if line.strip(blank) else end
            offset = end


def record_of(offset: int, end: int, values: Mapping[str, str | None], columns: Columns) -> Record:
    """A record by the values of its columns."""
    return Record(
        offset,
        end,
        tuple(values[name] for name in columns.texts),
        values[columns.title] if columns.title else None,
        score=values[columns.score] if columns.score else None,
        group=values[columns.group] if columns.group else None,
        key=values[columns.key] if columns.key else None,
        scores=tuple(values[name] for name in columns.scores),
    )
