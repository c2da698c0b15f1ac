"""Files of separated fields, with a header: commas, tabs or another sign between them.

Runs on executors, over lines of any encoding.

What all formats with a record a line, or with columns, have in common.

Runs on executors, over the items of :mod:`pipelines.corpus.readers.streams`.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipelines.corpus.readers.csv_parser import (
    RFC_4180,
    WRONG_QUOTES,
    Dialect,
    Line,
    decoded,
    quoted_fields,
)
from pipelines.corpus.readers.formats import (
    Columns,
    FileNames,
    Form,
    Format,
    Probe,
    Reading,
    Wanted,
)
from pipelines.corpus.readers.rows import Found, Record, quarantined_record
from pipelines.corpus.readers.streams import (
    Encoding,
    Item,
    Skipped,
    UnreadableError,
    WrongFileError,
)
from pipelines.files.locations import Location, plain_suffix


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


WRONG_FIELDS = "not as many fields as the header"
NOT_CLOSED_IN_LINE = "a quote is not closed in its line: see corpus.csv_multiline"


@dataclass(frozen=True)
class _Table:
    """Where in a record the columns are; a file without a header has no records either."""

    wanted: Wanted
    header: Sequence[str]
    places: Mapping[str, int]

    @classmethod
    def of(cls, reading: Reading) -> _Table:
        header = reading.probe.header
        wanted = header if reading.wanted.as_rows else reading.wanted.columns.names
        places = {name: header.index(name) for name in wanted} if header else {}
        return cls(reading.wanted, header, places)

    def record(self, line: Line, fields: Sequence[str], encoding: Encoding) -> Record:
        offset, end, data = line
        if len(fields) != len(self.header):
            return quarantined_record(offset, end, data, encoding.codec, WRONG_FIELDS)
        # As Spark has it, a field without anything is null.
        values = {name: fields[place] or None for name, place in self.places.items()}
        if self.wanted.as_rows:
            return Record(offset, end, (json.dumps(values),))
        return record_of(offset, end, values, self.wanted.columns)


def tab_records(reading: Reading) -> Iterator[Found]:
    """A record a line, whose fields have no quotes; the first line is the header."""
    encoding, table = reading.probe.encoding, _Table.of(reading)
    has_header = reading.start == 0
    for line in said_lines(reading.own, encoding, blank=b"\r\n"):
        if not isinstance(line, tuple):
            yield line
        elif has_header:
            has_header = False
            yield line[1]
        else:
            text = decoded(line, encoding)
            if isinstance(text, Record):
                yield text
            elif text.count("\t") + 1 != len(table.header):
                # Without cutting it: millions of empty fields are many times as large.
                yield quarantined_record(*line, encoding.codec, WRONG_FIELDS)
            else:
                fields = text.rstrip("\r\n").split("\t")
                yield table.record(line, fields, encoding)


def csv_records(reading: Reading) -> Iterator[Found]:
    """Records of what :func:`.csv_parser.quoted_fields` gives; the first is the header."""
    if not reading.wanted.multiline:
        yield from _csv_lines(reading)
        return
    encoding, table = reading.probe.encoding, _Table.of(reading)
    has_header = True
    most = reading.wanted.limits.record
    dialect, width = reading.wanted.dialect, len(table.header)
    for found in quoted_fields(reading.own, encoding, most, width, dialect):
        if not isinstance(found, tuple):
            yield found
        elif has_header:
            has_header = False
            yield found[0][1]
        else:
            yield table.record(*found, encoding)


def _csv_lines(reading: Reading) -> Iterator[Found]:
    """A record a line, in whichever range it is read: what is said of it follows from it alone.

    A line in which a quote stays open is left out. So is one that closes it, since an odd number
    of quotes is the only sign of either.
    """
    encoding, table = reading.probe.encoding, _Table.of(reading)
    # Process-wide, and harmless: a line is no longer than a record may be.
    csv.field_size_limit(sys.maxsize)
    has_header = reading.start == 0
    for line in said_lines(reading.own, encoding, blank=b"\r\n"):
        if not isinstance(line, tuple):
            yield line
        elif _is_open(line, reading):
            has_header = False
            yield quarantined_record(*line, encoding.codec, NOT_CLOSED_IN_LINE)
        elif has_header:
            has_header = False
            yield line[1]
        else:
            yield _csv_line(line, table, encoding)


def _is_open(line: Line, reading: Reading) -> bool:
    """Whether an odd number of quotes delimits fields."""
    quotes = line[2].count(b'"')
    if not quotes or reading.wanted.dialect.escape is None:
        return quotes % 2 == 1
    text = line[2].decode(reading.probe.encoding.codec, "surrogateescape")
    return sum(one.count('"') for one in reading.wanted.dialect.rewritten([text])) % 2 == 1


def _csv_line(line: Line, table: _Table, encoding: Encoding) -> Record:
    text = decoded(line, encoding)
    if isinstance(text, Record):
        return text
    try:
        fields = next(table.wanted.dialect.reader([text], strict=True))
    except csv.Error:
        return quarantined_record(*line, encoding.codec, WRONG_QUOTES)
    return table.record(line, fields, encoding)


def _tab_header(head: str, dialect: Dialect = RFC_4180) -> tuple[str, ...]:
    lines = (line for line in re.split(r"\r\n|\n|\r", head) if line)
    return _named(next(lines, "").split("\t")) if head.strip("\r\n") else ()


def _csv_header(head: str, dialect: Dialect = RFC_4180) -> tuple[str, ...]:
    lines = re.findall(r"[^\r\n]*(?:\r\n|\n|\r|$)", head)
    try:
        return _named(next(filter(None, dialect.reader(lines, strict=False)), ()))
    except csv.Error as error:
        raise WrongFileError(f"no header line ({error})") from None


def _named(header: Sequence[str]) -> tuple[str, ...]:
    """The header with the names that Spark gives to columns without one, `_c0` and on."""
    return tuple(name or f"_c{place}" for place, name in enumerate(header))


def _header(probed: Probe) -> tuple[str, ...]:
    if not probed.header:
        raise UnreadableError("no header line")
    return probed.header


TABS = Form(tab_records, header=_tab_header, columns=_header)
COMMAS = Form(csv_records, header=_csv_header, columns=_header)
_TAB_SUFFIXES = (".tsv", ".tab")


def _has_tabs(file: Location) -> bool:
    return plain_suffix(file) in _TAB_SUFFIXES


def _splits(file: Location, multiline: bool) -> bool:
    """Whether a line end is inside of quotes is known only from the beginning of the file on."""
    return _has_tabs(file) or not multiline


def _form(file: Location, head: bytes) -> Form:
    return TABS if _has_tabs(file) else COMMAS


DELIMITED = Format(
    files=FileNames((".csv", *_TAB_SUFFIXES)),
    form=_form,
    rows=_form,
    splits=_splits,
    columns=True,
)
