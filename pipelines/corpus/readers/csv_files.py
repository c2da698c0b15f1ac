"""CSV and TSV: separated fields below a header. In CSV they may be quoted and hold line ends.

Runs on executors. Each line is parsed a bounded number of times, even with broken quotes: within
quotes a line can only stay inside, end the record, or break the rules, whichever line opened the
quote. So a failed record also decides the fate of records that begin in its other lines.
"""

from __future__ import annotations

import csv
import enum
import json
import re
import sys
from array import array
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice

from pipelines.corpus.readers.formats import (
    RFC_4180,
    Dialect,
    FileNames,
    Form,
    Format,
    Line,
    Probe,
    Reading,
    Wanted,
    decoded,
    filled_lines,
    record_of,
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

WRONG_QUOTES = "quotes that are not closed"
WRONG_FIELDS = "not as many fields as the header"
NOT_CLOSED_IN_LINE = "a quote is not closed in its line: see corpus.csv_multiline"

Fields = tuple[Line, list[str]]
"""The lines of a record, and its fields."""


@dataclass(frozen=True)
class _Table:
    """The maker of records from fields, by the places of the wanted columns in the header."""

    wanted: Wanted
    encoding: Encoding
    width: int
    places: Mapping[str, int]

    @classmethod
    def of(cls, reading: Reading) -> _Table:
        header, wanted = reading.header, reading.wanted
        names = header if wanted.as_rows else wanted.columns.names
        # A file without a header has no records either.
        places = {name: header.index(name) for name in names} if header else {}
        return cls(wanted, reading.encoding, len(header), places)

    def record(self, line: Line, fields: Sequence[str]) -> Record:
        if len(fields) != self.width:
            return self.refused(line, WRONG_FIELDS)
        offset, end, _ = line
        # As in Spark, a field without anything is null.
        values = {name: fields[place] or None for name, place in self.places.items()}
        if self.wanted.as_rows:
            return Record(offset, end, (json.dumps(values),))
        return record_of(offset, end, values, self.wanted.columns)

    def refused(self, line: Line, reason: str) -> Record:
        return quarantined_record(*line, self.encoding.codec, reason)


def tab_records(reading: Reading) -> Iterator[Found]:
    """Yield a record for each line, with fields without quotes; the first line is the header."""
    encoding, table, has_header = reading.encoding, _Table.of(reading), reading.start == 0
    for line in filled_lines(reading.items_in_range, encoding, blank=b"\r\n"):
        if not isinstance(line, tuple):
            yield line
        elif has_header:
            has_header = False
            yield line[1]
        elif isinstance(text := decoded(line, encoding), Record):
            yield text
        elif text.count("\t") + 1 != table.width:
            # Refused before the cut: millions of empty fields are many times as large.
            yield table.refused(line, WRONG_FIELDS)
        else:
            yield table.record(line, text.rstrip("\r\n").split("\t"))


def csv_records(reading: Reading) -> Iterator[Found]:
    """Yield the records of :func:`quoted_fields`; the first is the header."""
    # Process-wide, and harmless: no held text is longer than a record may be.
    csv.field_size_limit(sys.maxsize)
    wanted = reading.wanted
    if not wanted.multiline:
        yield from _csv_lines(reading)
        return
    table, has_header = _Table.of(reading), True
    fields = quoted_fields(
        reading.items_in_range, reading.encoding, wanted.record, table.width, wanted.dialect
    )
    for found in fields:
        if not isinstance(found, tuple):
            yield found
        elif has_header:
            has_header = False
            yield found[0][1]
        else:
            yield table.record(*found)


def _csv_lines(reading: Reading) -> Iterator[Found]:
    """Yield a record for each line; it depends on the line alone, in any range.

    A line with an open quote is quarantined. So is the line with its end, since an odd number of
    quotes is the only sign of either.
    """
    encoding, dialect = reading.encoding, reading.wanted.dialect
    table, has_header = _Table.of(reading), reading.start == 0
    for line in filled_lines(reading.items_in_range, encoding, blank=b"\r\n"):
        if not isinstance(line, tuple):
            yield line
        elif _is_open(line[2], encoding, dialect):
            has_header = False
            yield table.refused(line, NOT_CLOSED_IN_LINE)
        elif has_header:
            has_header = False
            yield line[1]
        elif isinstance(text := decoded(line, encoding), Record):
            yield text
        else:
            try:
                fields = next(dialect.reader([text], strict=True))
            except csv.Error:
                yield table.refused(line, WRONG_QUOTES)
            else:
                yield table.record(line, fields)


def _is_open(line: bytes, encoding: Encoding, dialect: Dialect) -> bool:
    """Return whether an odd number of quotes delimits fields."""
    quotes = line.count(b'"')
    if quotes and dialect.escape is not None:
        text = line.decode(encoding.codec, "surrogateescape")
        quotes = sum(part.count('"') for part in dialect.rewritten([text]))
    return quotes % 2 == 1


def _tab_header(head: str, dialect: Dialect) -> tuple[str, ...]:
    lines = (line for line in re.split(r"\r\n|\n|\r", head) if line)
    return _named(next(lines, "").split("\t")) if head.strip("\r\n") else ()


def _csv_header(head: str, dialect: Dialect) -> tuple[str, ...]:
    lines = re.findall(r"[^\r\n]*(?:\r\n|\n|\r|$)", head)
    try:
        return _named(next(filter(None, dialect.reader(lines, strict=False)), ()))
    except csv.Error as error:
        raise WrongFileError(f"no header line ({error})") from None


def _named(header: Sequence[str]) -> tuple[str, ...]:
    """Name columns without a name as Spark does, `_c0` and on."""
    return tuple(name or f"_c{place}" for place, name in enumerate(header))


def _columns(probed: Probe) -> tuple[str, ...]:
    if not probed.header:
        raise UnreadableError("no header line")
    return probed.header


def quoted_fields(
    items: Iterable[Item],
    encoding: Encoding,
    most: int,
    width: int,
    dialect: Dialect = RFC_4180,
) -> Iterator[Fields | Found]:
    """Yield records by RFC 4180, but for the signs of the dialect.

    A record fails if its quotes are not closed within `most` bytes, or if it has several lines and
    not `width` fields. Only its first line is lost: the next one begins a record again.
    """
    held = _HeldLines(encoding, most, width, dialect)
    for item in items:
        if isinstance(item, Skipped):
            yield from held.records(is_last=True)
            yield quarantined_record(item.offset, item.end, item.data, encoding.codec, item.reason)
            held.offset = item.end
        else:
            held.add(item.offset, item.data)
            yield from held.records(is_last=False)
    yield from held.records(is_last=True)


class _Fate(enum.Enum):
    """The fate of a record that its first line does not end."""

    CLOSED = enum.auto()
    BROKEN = enum.auto()
    OPEN = enum.auto()


@dataclass(frozen=True)
class _Stretch:
    """Consecutive lines: all but the first begin inside of quotes, all but the last end there.

    Every record that begins in one of them has this `fate`. `end` is the index after the last line;
    `fields` counts the fields of a closed record of all lines.
    """

    fate: _Fate
    end: int
    fields: int = 0


class _Reader:
    """Python's reader of records; it knows whether an error came from the end of the lines."""

    def __init__(self, lines: Iterable[str], dialect: Dialect) -> None:
        self.is_open = False
        self.reader = dialect.reader(self._until_end(lines), strict=True)

    def _until_end(self, lines: Iterable[str]) -> Iterator[str]:
        yield from lines
        # Between two records this is no more than their end; inside of one it has none.
        self.is_open = True

    @property
    def fate(self) -> _Fate:
        return _Fate.OPEN if self.is_open else _Fate.BROKEN


@dataclass
class _HeldLines:
    """Lines without a known fate yet.

    They lie in one buffer: an object for each would be many times as large.

    Attributes:
        most: Bytes that a record may have.
        width: Fields of a record.
        offset: Byte of the file at the start of the first line that has not left.
        data: The lines with their ends.
        begin: Start of `data` among all bytes added so far.
        ends: Ends of the lines among these bytes.
        done: Index of that line.
        seen: Index after the last parsed line; lines from `done` on are inside of the quotes of the
            first one.
        is_doubtful: Whether some lines may not be in the encoding.
    """

    encoding: Encoding
    most: int
    width: int
    dialect: Dialect
    offset: int = 0
    data: bytearray = field(default_factory=bytearray)
    begin: int = 0
    ends: array[int] = field(default_factory=lambda: array("q"))
    done: int = 0
    seen: int = 0
    is_doubtful: bool = False

    def add(self, offset: int, data: bytes) -> None:
        """Take lines; the first begins at byte `offset` of the file."""
        if self.done == len(self.ends):
            self.offset, self.is_doubtful = offset, False
        # Half of the lines have left by then, so each byte moves about once.
        if 2 * self.done >= len(self.ends):
            self._forget()
        # One decode of the block: only doubtful lines are checked one by one.
        try:
            data.decode(self.encoding.codec)
        except UnicodeDecodeError:
            self.is_doubtful = True
        sizes = map(len, data.splitlines(keepends=True))
        start = self.begin + len(self.data)
        self.ends.extend(islice(accumulate(sizes, initial=start), 1, None))
        self.data += data

    def _forget(self) -> None:
        """Drop the lines that have left: seldom, since all other lines move."""
        begin = self._start(self.done)
        del self.data[: begin - self.begin], self.ends[: self.done]
        self.begin = begin
        self.seen = max(self.seen - self.done, 0)
        self.done = 0

    def _start(self, line: int) -> int:
        return self.ends[line - 1] if line else self.begin

    def _texts(self, first: int, last: int) -> Iterator[str]:
        codec = self.encoding.codec
        start = self._start(first) - self.begin
        for end in self.ends[first:last]:
            stop = end - self.begin
            # The parser needs only the signs; `_taken` quarantines undecodable bytes.
            yield self.data[start:stop].decode(codec, "surrogateescape")
            start = stop

    def _fields(self, start: int, end: int) -> list[str]:
        fields: list[str] = next(self.dialect.reader(self._texts(start, end), strict=False))
        return fields

    def records(self, *, is_last: bool) -> Iterator[Fields | Found]:
        """Yield the records, and keep the lines of one that has no end yet."""
        while self.done < len(self.ends):
            if self.seen > self.done:
                stretch: _Stretch | None = self._continued()
            else:
                stretch = yield from self._complete()
            if stretch is None:
                return
            if self._may_close(self.done, stretch, is_last=is_last):
                self.seen = stretch.end
                return
            yield from self._without_first(stretch, is_last=is_last)

    def _complete(self) -> Generator[Fields | Found, None, _Stretch | None]:
        """Yield records up to a failed or open one; return the fate of its lines."""
        first = self.done
        lines = _Reader(self._texts(first, len(self.ends)), self.dialect)
        try:
            for fields in lines.reader:
                end = first + lines.reader.line_num
                if end - self.done > 1 and not self._fits(self.done, end, len(fields)):
                    return _Stretch(_Fate.CLOSED, end, len(fields))
                yield self._taken(end, fields)
        except csv.Error:
            return _Stretch(lines.fate, first + lines.reader.line_num)
        return None

    def _continued(self) -> _Stretch:
        """Return the fate of the open record, from the new lines."""
        first = self.seen
        unseen = self._texts(first, len(self.ends))
        # A quote in front puts the parser inside of quotes, like the seen lines.
        lines = _Reader(chain(['"' + next(unseen, "")], unseen), self.dialect)
        try:
            next(lines.reader)
        except csv.Error:
            return _Stretch(lines.fate, min(first + lines.reader.line_num, len(self.ends)))
        end = first + lines.reader.line_num
        return _Stretch(_Fate.CLOSED, end, len(self._fields(self.done, end)))

    def _without_first(self, stretch: _Stretch, *, is_last: bool) -> Iterator[Fields | Found]:
        """Give up the first line of a stretch, unless the stretch is a record, and read the others.

        The last line of a closed stretch may open new quotes, so it stays.
        """
        end = stretch.end if stretch.fate is _Fate.OPEN else stretch.end - 1
        fields = stretch.fields
        if self._fits_closed(stretch, fields):
            yield self._taken(stretch.end, self._fields(self.done, stretch.end))
            return
        fields -= self._separators(next(self._texts(self.done, self.done + 1)))
        yield self._given_up()
        while self.done < end:
            text = next(self._texts(self.done, self.done + 1))
            line_reader = _Reader([text], self.dialect)
            try:
                yield self._taken(self.done + 1, next(line_reader.reader))
            except csv.Error:
                if line_reader.is_open and self._may_close(self.done, stretch, is_last=is_last):
                    self.seen = stretch.end
                    return
                if line_reader.is_open and stretch.fate is _Fate.CLOSED:
                    # As a first line it is outside of quotes, and has other separators.
                    from_here = fields - self._separators('"' + text) + self._separators(text)
                    if self._fits_closed(stretch, from_here):
                        yield self._taken(stretch.end, self._fields(self.done, stretch.end))
                        return
                yield self._given_up()
            fields -= self._separators('"' + text)
        self.seen = self.done

    def _may_close(self, start: int, stretch: _Stretch, *, is_last: bool) -> bool:
        """Return whether a record that begins in a line may end in a line still to come."""
        return stretch.fate is _Fate.OPEN and not is_last and self._is_small(start, stretch.end)

    def _fits_closed(self, stretch: _Stretch, fields: int) -> bool:
        return stretch.fate is _Fate.CLOSED and self._fits(self.done, stretch.end, fields)

    def _fits(self, start: int, end: int, fields: int) -> bool:
        return fields == self.width and self._is_small(start, end)

    def _is_small(self, start: int, end: int) -> bool:
        return self._start(end) - self._start(start) <= self.most

    def _given_up(self) -> Record:
        return quarantined_record(*self._left(self.done + 1), self.encoding.codec, WRONG_QUOTES)

    def _taken(self, end: int, fields: list[str]) -> Fields | Found:
        line = self._left(end)
        if not fields:
            return line[1]
        if self.is_doubtful and isinstance(text := decoded(line, self.encoding), Record):
            return text
        return line, fields

    def _left(self, end: int) -> Line:
        start, stop = self._start(self.done) - self.begin, self._start(end) - self.begin
        data = bytes(self.data[start:stop])
        self.done = end
        offset, self.offset = self.offset, self.offset + self.encoding.width(data)
        return offset, self.offset, data

    def _separators(self, line: str) -> int:
        """Count the separators of a single line, closed or not."""
        fields: Sequence[str] = next(self.dialect.reader([line], strict=False), ())
        return max(len(fields) - 1, 0)


TABS = Form(tab_records, header=_tab_header, columns=_columns)
COMMAS = Form(csv_records, header=_csv_header, columns=_columns)
_TAB_SUFFIXES = (".tsv", ".tab")


def _has_tabs(file: Location) -> bool:
    return plain_suffix(file) in _TAB_SUFFIXES


def _form(file: Location, head: bytes) -> Form:
    return TABS if _has_tabs(file) else COMMAS


DELIMITED = Format(
    files=FileNames((".csv", *_TAB_SUFFIXES)),
    form=_form,
    rows=_form,
    # Only a parse from the beginning of the file shows whether a line end is within quotes.
    splits=lambda file, multiline: _has_tabs(file) or not multiline,
    columns=True,
)
