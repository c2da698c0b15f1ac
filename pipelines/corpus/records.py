"""Records of JSON lines, and of comma and tab separated files, with the columns that are wanted.

Runs on executors, over the items of :mod:`pipelines.corpus.streams`. A record that cannot be read
is for the quarantine, and reading goes on after it.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pipelines.corpus.documents import Limits, line_cut
from pipelines.corpus.encodings import Encoding
from pipelines.corpus.rows import Found, Record, unread
from pipelines.corpus.streams import Item, Lost

WRONG_FIELDS = "not as many fields as the header"
WRONG_QUOTES = "quotes that are not closed"
NOT_JSON = "not JSON"
NOT_AN_OBJECT = "not a JSON object"

_ESCAPED = re.compile("[\ud800-\udfff]")
_KINDS: Mapping[type, str] = {list: "a list", dict: "an object"}


@dataclass(frozen=True)
class Columns:
    """The names of the columns that are wanted.

    Attributes:
        texts: One to three.
        title: Of the title, if there is one.
        score: Of the score, if there is one.
        group: Of the group, if there is one.
    """

    texts: tuple[str, ...]
    title: str | None = None
    score: str | None = None
    group: str | None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every column that a record must have."""
        others = (self.title, self.score, self.group)
        return self.texts + tuple(name for name in others if name is not None)


Line = tuple[int, int, bytes]
"""The byte of the file that it begins at, the one after it, and the line with its end."""


def _lines(
    items: Iterable[Item], encoding: Encoding, blank: bytes = b" \t\r\n"
) -> Iterator[Line | Found]:
    """The lines that say something; of what was passed over, a record for the quarantine."""
    for item in items:
        if isinstance(item, Lost):
            yield unread(item.offset, item.end, item.data, encoding.codec, item.reason)
            continue
        offset = item.offset
        for line in item.data.splitlines(keepends=True):
            end = offset + encoding.width(line)
            yield (offset, end, line) if line.strip(blank) else end
            offset = end


def _decode(line: Line, encoding: Encoding) -> str | Record:
    """The text of a line, or a record for the quarantine."""
    offset, end, data = line
    try:
        return data.decode(encoding.codec)
    except UnicodeDecodeError as error:
        place = offset + encoding.width(data[: error.start])
        return unread(offset, end, data, encoding.codec, f"not {encoding.label} at byte {place}")


def json_records(items: Iterable[Item], encoding: Encoding, columns: Columns) -> Iterator[Found]:
    """A record a line; a line that is no object with plain values in its columns is not read."""
    for line in _lines(items, encoding):
        yield line if not isinstance(line, tuple) else _json_record(line, encoding, columns)


def _json_record(line: Line, encoding: Encoding, columns: Columns) -> Record:
    text = _decode(line, encoding)
    if isinstance(text, Record):
        return text
    offset, end, data = line
    try:
        fields = parse_object(text)
        values = {name: plain_value(fields, name) for name in columns.names}
    except ValueError as error:
        return unread(offset, end, data, encoding.codec, str(error))
    return _record(offset, end, values, columns)


def parse_object(text: str) -> dict[str, Any]:
    """The object that a line of JSON is.

    Raises:
        ValueError: Its message is the reason for the quarantine.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(NOT_JSON) from None
    if not isinstance(value, dict):
        raise ValueError(NOT_AN_OBJECT)  # noqa: TRY004 - a value of the data, not of the program
    return value


def plain_value(fields: Mapping[str, Any], name: str) -> str | None:
    """A column as text, null as None.

    Raises:
        ValueError: It is not there, or holds several values.
    """
    if name not in fields:
        raise ValueError(f"no column `{name}`")
    value = fields[name]
    kind = _KINDS.get(type(value))
    if kind is not None:
        raise ValueError(f"column `{name}` holds {kind}")
    if isinstance(value, str):
        return _valid(value)
    return None if value is None else json.dumps(value)


def _valid(text: str) -> str:
    """With U+FFFD for half a surrogate pair, which JSON can spell and UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _record(offset: int, end: int, values: Mapping[str, str | None], columns: Columns) -> Record:
    return Record(
        offset,
        end,
        tuple(values[name] for name in columns.texts),
        values[columns.title] if columns.title else None,
        score=values[columns.score] if columns.score else None,
        group=values[columns.group] if columns.group else None,
    )


def wiki_json_records(items: Iterable[Item], encoding: Encoding, limits: Limits) -> Iterator[Found]:
    """WikiExtractor's `--json` form: a document a line, with `text` and perhaps a `title`."""
    for line in _lines(items, encoding):
        if isinstance(line, tuple):
            yield from _wiki_json_pieces(line, encoding, limits.piece)
        else:
            yield line


def _wiki_json_pieces(line: Line, encoding: Encoding, piece: int) -> Iterator[Record]:
    decoded = _decode(line, encoding)
    if isinstance(decoded, Record):
        yield decoded
        return
    offset, end, data = line
    try:
        fields = parse_object(decoded)
        text = plain_value(fields, "text")
        title = plain_value({"title": None, **fields}, "title")
    except ValueError as error:
        yield unread(offset, end, data, encoding.codec, str(error))
        return
    rest = (text or "").encode()
    place = 0
    while len(rest) > piece:
        size = line_cut(rest, piece)
        part, rest = rest[:size], rest[size:]
        yield Record(offset, end, (part.decode(),), title, document=offset, place=place)
        place += 1
    if rest or not place:
        last = None if text is None else rest.decode()
        yield Record(offset, end, (last,), title, document=offset, place=place)


def tab_records(
    items: Iterable[Item], encoding: Encoding, columns: Columns, header: Sequence[str], start: int
) -> Iterator[Found]:
    """A record a line, whose fields have no quotes.

    Args:
        items: Lines from byte `start` of the file on.
        encoding: Of the file.
        columns: What is wanted.
        header: The names in the first line of the file.
        start: 0 where that line is the first item.
    """
    places = _places(columns, header)
    has_header = start == 0
    for line in _lines(items, encoding, blank=b"\r\n"):
        if not isinstance(line, tuple):
            yield line
        elif has_header:
            has_header = False
            yield line[1]
        else:
            text = _decode(line, encoding)
            if isinstance(text, Record):
                yield text
            else:
                fields = text.rstrip("\r\n").split("\t")
                yield _table_record(line, fields, encoding, columns, places, len(header))


def _table_record(
    line: Line,
    fields: Sequence[str],
    encoding: Encoding,
    columns: Columns,
    places: Mapping[str, int],
    width: int,
) -> Record:
    offset, end, data = line
    if len(fields) != width:
        return unread(offset, end, data, encoding.codec, WRONG_FIELDS)
    # As Spark has it, a field without anything is null.
    values = {name: fields[place] or None for name, place in places.items()}
    return _record(offset, end, values, columns)


def _places(columns: Columns, header: Sequence[str]) -> dict[str, int]:
    """Where in a record the columns are; a file without a header has no records either."""
    return {name: header.index(name) for name in columns.names} if header else {}


def csv_records(
    items: Iterable[Item],
    encoding: Encoding,
    limits: Limits,
    columns: Columns,
    header: Sequence[str],
) -> Iterator[Found]:
    """Records as RFC 4180 has them; the first is the header.

    Where quotes are not closed, or close a record of several lines with another number of fields
    than the header, only the first line is given up: the next one begins a record again.
    """
    # Process-wide, and harmless: what is held is bounded by the lines that are.
    csv.field_size_limit(sys.maxsize)
    held = _QuotedLines(encoding, limits.record, len(header))
    places = _places(columns, header)
    has_header = True
    for found in _csv_lines(items, held):
        if not isinstance(found, tuple):
            yield found
        elif has_header:
            has_header = False
            yield found[0][1]
        else:
            yield _table_record(*found, encoding, columns, places, len(header))


def _csv_lines(
    items: Iterable[Item], held: _QuotedLines
) -> Iterator[tuple[Line, list[str]] | Found]:
    for item in items:
        if isinstance(item, Lost):
            yield from held.records(is_last=True)
            yield unread(item.offset, item.end, item.data, held.encoding.codec, item.reason)
            held.offset = item.end
        else:
            held.offset = held.offset if held.lines else item.offset
            held.lines += item.data.splitlines(keepends=True)
            yield from held.records(is_last=False)
    yield from held.records(is_last=True)


@dataclass
class _QuotedLines:
    """Lines that are not yet known to be whole records.

    Attributes:
        encoding: Of the file.
        most: Bytes that a record may have.
        fields: Of a record.
        lines: With their ends.
        offset: Byte that the first of them begins at.
    """

    encoding: Encoding
    most: int
    fields: int
    lines: list[bytes] = field(default_factory=list)
    offset: int = 0

    def records(self, *, is_last: bool) -> Iterator[tuple[Line, list[str]] | Found]:
        """Gives the records, and keeps the lines of one whose end is not there yet."""
        texts, wrong = self._texts()
        done = 0
        while done < len(texts):
            reader = csv.reader(map(texts.__getitem__, range(done, len(texts))), strict=True)
            first = done
            try:
                for fields in reader:
                    end = first + reader.line_num
                    if end - done > 1 and len(fields) != self.fields:
                        break
                    yield self._take(done, end, fields, wrong)
                    done = end
                else:
                    break
            except csv.Error:
                is_open = first + reader.line_num == len(texts) and not is_last
                if is_open and sum(map(len, self.lines[done:])) <= self.most:
                    break
            line = self._line(done, done + 1)
            yield unread(*line, self.encoding.codec, WRONG_QUOTES)
            done += 1
        self.lines = self.lines[done:]

    def _take(
        self, done: int, end: int, fields: list[str], wrong: frozenset[int]
    ) -> tuple[Line, list[str]] | Found:
        line = self._line(done, end)
        if not fields:
            return line[1]
        if wrong.isdisjoint(range(done, end)):
            return line, fields
        text = _decode(line, self.encoding)
        return text if isinstance(text, Record) else (line, fields)

    def _line(self, done: int, end: int) -> Line:
        data = b"".join(self.lines[done:end])
        offset, self.offset = self.offset, self.offset + self.encoding.width(data)
        return offset, self.offset, data

    def _texts(self) -> tuple[list[str], frozenset[int]]:
        """The lines as text, and which of them are not in the encoding."""
        codec = self.encoding.codec
        try:
            return [line.decode(codec) for line in self.lines], frozenset()
        except UnicodeDecodeError:
            texts = [line.decode(codec, "surrogateescape") for line in self.lines]
        wrong = (index for index, text in enumerate(texts) if _ESCAPED.search(text))
        return texts, frozenset(wrong)
