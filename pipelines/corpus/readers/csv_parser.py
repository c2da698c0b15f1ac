"""Records of comma-separated files, whose fields may be quoted and hold line ends.

Runs on executors, over the items of :mod:`pipelines.corpus.readers.streams`. Whatever the quotes
are, a line is parsed a bounded number of times: inside of quotes all that a line does is to stay
inside, to end the record, or to break the rules, whichever line it was that opened the quote. So
where a record was found to be none, it is known what becomes of those that begin in its other
lines.

Which signs a file of separated fields uses, and its lines as RFC 4180 has them.

Spark and MySQL write a quote within quotes as `\"`, and a backslash there as two. RFC 4180 doubles
the quote. Lines are rewritten before they are parsed, so there is one parser, and what it says of
broken quotes holds for every dialect. Runs on executors.
"""

from __future__ import annotations

import csv
import enum
import re
import sys
from array import array
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, chain, islice
from typing import Any, Protocol

from pipelines.corpus.readers.rows import Found, Record, quarantined_record
from pipelines.corpus.readers.streams import Encoding, Item, Skipped


class NamesDialect(Protocol):
    """A section of the settings that says how its CSV files are written."""

    @property
    def csv_separator(self) -> str | None:
        """Between the fields."""

    @property
    def csv_escape(self) -> str | None:
        """Before a quote within quotes."""


@dataclass(frozen=True)
class Dialect:
    """How the fields of a line are told apart.

    Attributes:
        separator: Between them.
        escape: Before a quote, or itself, within quotes; None where a quote is doubled alone.
    """

    separator: str = ","
    escape: str | None = None

    @classmethod
    def of(cls, settings: NamesDialect) -> Dialect:
        """Return the dialect that settings name."""
        return cls(settings.csv_separator or ",", settings.csv_escape)

    def reader(self, lines: Iterable[str], *, strict: bool) -> Any:
        """Return Python's reader over lines, the first of which begins a record.

        Args:
            lines: With their ends.
            strict: Whether broken quotes are an error.
        """
        return csv.reader(self.rewritten(lines), delimiter=self.separator, strict=strict)

    def rewritten(self, lines: Iterable[str]) -> Iterable[str]:
        """Return lines in which quotes within quotes are doubled, one for each."""
        return lines if self.escape is None else _rewritten(lines, self.separator, self.escape)


RFC_4180 = Dialect()


@cache
def _within_quotes(escape: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return what matches the inside of quotes, up to the quote that closes them, and escapes."""
    sign = re.escape(escape)
    inside = re.compile(rf'(?:[^"{sign}]+|""|{sign}["{sign}]|{sign}(?!"))*')
    return inside, re.compile(rf'{sign}(["{sign}])')


def _rewritten(lines: Iterable[str], separator: str, escape: str) -> Iterator[str]:
    inside, escaped = _within_quotes(escape)
    is_open = False
    for line in lines:
        if '"' not in line and (not is_open or escape not in line):
            yield line
            continue
        parts: list[str] = []
        # Outside of quotes it is the beginning of a field whenever the loop comes round.
        place = 0
        while place < len(line):
            if is_open or line[place] == '"':
                begin = place if is_open else place + 1
                end = _end_of(inside, line, begin)
                text = escaped.sub(lambda found: _PLAIN.get(found[1], found[1]), line[begin:end])
                parts.append(line[place:begin] + text)
                place, is_open = end, end == len(line)
                if is_open:
                    break
            stop = line.find(separator, place)
            stop = len(line) if stop < 0 else stop + 1
            parts.append(line[place:stop])
            place = stop
        yield "".join(parts)


_PLAIN = {'"': '""'}


def _end_of(inside: re.Pattern[str], line: str, begin: int) -> int:
    found = inside.match(line, begin)
    assert found is not None, "it matches nothing at least"
    return found.end()


WRONG_QUOTES = "quotes that are not closed"

Line = tuple[int, int, bytes]
"""The byte of the file that it begins at, the one after it, and the line with its end."""
Fields = tuple[Line, list[str]]
"""A record that was read, with the lines that it takes."""


def decoded(line: Line, encoding: Encoding) -> str | Record:
    """The text of a line, or a record for the quarantine."""
    offset, end, data = line
    try:
        return data.decode(encoding.codec)
    except UnicodeDecodeError as error:
        place = offset + encoding.width(data[: error.start])
        return quarantined_record(
            offset, end, data, encoding.codec, f"not {encoding.label} at byte {place}"
        )


def quoted_fields(
    items: Iterable[Item],
    encoding: Encoding,
    most: int,
    width: int,
    dialect: Dialect = RFC_4180,
) -> Iterator[Fields | Found]:
    """Records as RFC 4180 has them, but for the signs of the dialect.

    Where quotes are not closed within `most` bytes, or close a record of several lines with another
    number of fields than `width`, only the first line is given up: the next one begins a record
    again.

    Args:
        most: Bytes that a record may have.
        width: Fields of the header.
        dialect: Of the file.
    """
    # Process-wide, and harmless: what is held is bounded by the lines that are.
    csv.field_size_limit(sys.maxsize)
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
    """What becomes of a record that its first line does not end."""

    CLOSED = enum.auto()
    BROKEN = enum.auto()
    OPEN = enum.auto()


@dataclass(frozen=True)
class _Stretch:
    """Lines of which all but the first begin inside of quotes, and all but the last end there.

    Attributes:
        fate: Of every record that one of them opens.
        end: Index after the last of them.
        fields: Of a closed record of all of them.
    """

    fate: _Fate
    end: int
    fields: int = 0


class _Reader:
    """Python's reader of records, which can say whether it was let down by the lines' end."""

    def __init__(self, lines: Iterable[str], dialect: Dialect) -> None:
        self.is_open = False
        self.reader = dialect.reader(self._until_end(lines), strict=True)

    def _until_end(self, lines: Iterable[str]) -> Iterator[str]:
        yield from lines
        # Between two records this is no more than their end; inside of one it has none.
        self.is_open = True


@dataclass
class _HeldLines:
    """Lines that are not yet known to be whole records.

    They stand one behind the other in one buffer: an object each would be many times as large.

    Attributes:
        encoding: Of the file.
        most: Bytes that a record may have.
        width: Fields of a record.
        dialect: Of the file.
        offset: Byte of the file that the first line which has not left begins at.
        data: The lines with their ends.
        begin: Where `data` begins among all bytes that were added.
        ends: Where the lines end among these.
        done: Index of the first line that has not left.
        seen: Index after the last line that was looked at; those from `done` on are inside of the
            quotes that the first one opens.
        is_doubtful: Whether there may be lines that are not in the encoding.
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
        """Takes lines, the first of which begins at a byte of the file."""
        if self.done == len(self.ends):
            self.offset, self.is_doubtful = offset, False
        if 2 * self.done >= len(self.ends):
            self._forget()
        try:
            data.decode(self.encoding.codec)
        except UnicodeDecodeError:
            self.is_doubtful = True
        sizes = map(len, data.splitlines(keepends=True))
        start = self.begin + len(self.data)
        self.ends.extend(islice(accumulate(sizes, initial=start), 1, None))
        self.data += data

    def _forget(self) -> None:
        """Drops the lines that have left: seldom, since the others move."""
        begin = self._start(self.done)
        del self.data[: begin - self.begin], self.ends[: self.done]
        self.begin = begin
        self.seen = max(self.seen - self.done, 0)
        self.done = 0

    def _start(self, line: int) -> int:
        return self.ends[line - 1] if line else self.begin

    def _bytes(self, start: int, end: int) -> bytes:
        return bytes(self.data[self._start(start) - self.begin : self._start(end) - self.begin])

    def _text(self, line: int) -> str:
        return next(self._texts(line, line + 1))

    def _texts(self, first: int, last: int) -> Iterator[str]:
        codec = self.encoding.codec
        start = self._start(first) - self.begin
        for end in self.ends[first:last]:
            stop = end - self.begin
            yield self.data[start:stop].decode(codec, "surrogateescape")
            start = stop

    def _fields(self, start: int, end: int) -> list[str]:
        """Those of a record that is known to be whole."""
        fields: list[str] = next(self.dialect.reader(self._texts(start, end), strict=False))
        return fields

    def records(self, *, is_last: bool) -> Iterator[Fields | Found]:
        """Gives the records, and keeps the lines of one whose end is not there yet."""
        while self.done < len(self.ends):
            if self.seen > self.done:
                stretch: _Stretch | None = self._continued()
            else:
                stretch = yield from self._whole()
            if stretch is None:
                return
            if self._may_close(self.done, stretch, is_last=is_last):
                self.seen = stretch.end
                return
            yield from self._without_first(stretch, is_last=is_last)

    def _whole(self) -> Generator[Fields | Found, None, _Stretch | None]:
        """Gives records up to one that is none, or none yet; returns what is known of that."""
        first = self.done
        lines = _Reader(self._texts(first, len(self.ends)), self.dialect)
        try:
            for fields in lines.reader:
                end = first + lines.reader.line_num
                if end - self.done > 1 and not self._fits(self.done, end, len(fields)):
                    return _Stretch(_Fate.CLOSED, end, len(fields))
                yield self._taken(end, fields)
        except csv.Error:
            fate = _Fate.OPEN if lines.is_open else _Fate.BROKEN
            return _Stretch(fate, first + lines.reader.line_num)
        return None

    def _continued(self) -> _Stretch:
        """What becomes of the record that is open, by the lines that were not seen yet."""
        first = self.seen
        unseen = self._texts(first, len(self.ends))
        lines = _Reader(chain(['"' + next(unseen, "")], unseen), self.dialect)
        try:
            next(lines.reader)
        except csv.Error:
            fate = _Fate.OPEN if lines.is_open else _Fate.BROKEN
            return _Stretch(fate, min(first + lines.reader.line_num, len(self.ends)))
        end = first + lines.reader.line_num
        return _Stretch(_Fate.CLOSED, end, len(self._fields(self.done, end)))

    def _without_first(self, stretch: _Stretch, *, is_last: bool) -> Iterator[Fields | Found]:
        """Gives up the first line of a stretch, unless it is whole, and reads the others.

        The last line of one that has an end may open quotes of its own: it is left.
        """
        end = stretch.end if stretch.fate is _Fate.OPEN else stretch.end - 1
        fields = stretch.fields
        if self._fits_closed(self.done, stretch, fields):
            yield self._taken(stretch.end, self._fields(self.done, stretch.end))
            return
        fields -= self._separators(self._text(self.done))
        yield self._given_up()
        while self.done < end:
            text = self._text(self.done)
            alone = _Reader([text], self.dialect)
            try:
                yield self._taken(self.done + 1, next(alone.reader))
            except csv.Error:
                if alone.is_open and self._may_close(self.done, stretch, is_last=is_last):
                    self.seen = stretch.end
                    return
                if alone.is_open and stretch.fate is _Fate.CLOSED:
                    own = fields - self._separators('"' + text) + self._separators(text)
                    if self._fits_closed(self.done, stretch, own):
                        yield self._taken(stretch.end, self._fields(self.done, stretch.end))
                        return
                yield self._given_up()
            fields -= self._separators('"' + text)
        self.seen = self.done

    def _may_close(self, start: int, stretch: _Stretch, *, is_last: bool) -> bool:
        """Whether a record that begins in a line may end in one that is not there yet."""
        return stretch.fate is _Fate.OPEN and not is_last and self._is_small(start, stretch.end)

    def _fits_closed(self, start: int, stretch: _Stretch, fields: int) -> bool:
        return stretch.fate is _Fate.CLOSED and self._fits(start, stretch.end, fields)

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
        data = self._bytes(self.done, end)
        self.done = end
        offset, self.offset = self.offset, self.offset + self.encoding.width(data)
        return offset, self.offset, data

    def _separators(self, line: str) -> int:
        """Count those between the fields of a line that is read alone, closed or not."""
        fields: Sequence[str] = next(self.dialect.reader([line], strict=False), ())
        return max(len(fields) - 1, 0)
