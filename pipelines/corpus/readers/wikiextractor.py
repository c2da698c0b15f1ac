"""The output of WikiExtractor: `<doc>` elements, or a JSON object a line.

Runs on executors, over the items of :mod:`pipelines.corpus.readers.streams`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipelines.corpus.cleaning.rules import unescape
from pipelines.corpus.readers.csv_parser import Line, decoded
from pipelines.corpus.readers.encodings import Encoding
from pipelines.corpus.readers.formats import FileNames, Form, Format, Reading
from pipelines.corpus.readers.json_lines import SUFFIXES, parse_object, plain_value
from pipelines.corpus.readers.pieces import TEXT_SUFFIXES, Document, known_title, line_cut, lose
from pipelines.corpus.readers.records import said_lines
from pipelines.corpus.readers.rows import Found, Record, quarantined_record
from pipelines.corpus.readers.streams import Skipped
from pipelines.files.locations import Location

_DOC = re.compile(rb"\s*<doc ")
_OBJECT = re.compile(rb'\s*\{\s*"')
# Its own names of files: wiki_00 to wiki_99 in folders AA to ZZ.
_NAME = re.compile(r"wiki_\d+")
# A document begins at the beginning of a line: elsewhere it is not looked for, or each of a line's
# many beginnings would be read to the line's end.
_MARKER = re.compile(rb'<(?:/doc>|(?<![^\r\n]<)doc [^\r\n]*?">)')
_TITLE = re.compile(rb'\btitle="')
_TITLE_END = re.compile(rb'"(?=\s+[\w:]+="|\s*/?>$)')


def wiki_records(reading: Reading) -> Iterator[Found]:
    """WikiExtractor's `<doc id= url= title=>` form: a document each.

    A document ends with `</doc>`, or where the next one begins. Text that is in none is for the
    quarantine. Only documents that begin in the range are given, but these to their end.
    """
    encoding, limits = reading.probe.encoding, reading.wanted.limits
    start, stop = reading.start, reading.stop
    outside = Document(None, start or encoding.mark, encoding, limits.piece, line_cut)
    # In the middle of a file the rest of another task's document comes first.
    document = None if start else outside
    for item in reading.items:
        position = item.offset
        if isinstance(item, Skipped):
            yield from lose(document, item, encoding) if document is not None else ()
            continue
        for text, marker in _marked(item.data):
            position += encoding.width(text)
            if document is not None:
                yield from document.add(text)
                if marker:
                    yield from document.close()
                    yield position
            begins = marker.startswith(b"<doc ")
            if stop is not None and position >= stop and (begins or document is None):
                return
            after = position + encoding.width(marker)
            if begins:
                title = _title(marker, encoding)
                document = Document(position, after, encoding, limits.piece, line_cut, title)
            elif marker and document is not None:
                document, outside.position = outside, after
            position = after
    if document is not None:
        yield from document.close()
        yield document.position


def _marked(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Text, each with the marker after it; the last one has none."""
    done = 0
    for marker in _MARKER.finditer(data):
        start = marker.start()
        yield data[done:start], marker[0]
        done = marker.end()
    yield data[done:], b""


def _title(marker: bytes, encoding: Encoding) -> str | None:
    start = _TITLE.search(marker)
    # Where no end fits the first beginning, none fits a later one.
    end = _TITLE_END.search(marker, start.end()) if start else None
    if start is None or end is None:
        return None
    return known_title(
        unescape(marker[start.end() : end.start()].decode(encoding.codec, "replace"))
    )


def wiki_json_records(reading: Reading) -> Iterator[Found]:
    """WikiExtractor's `--json` form: a document a line, with `text` and perhaps a `title`."""
    for line in said_lines(reading.own, reading.probe.encoding):
        if isinstance(line, tuple):
            yield from _pieces(line, reading.probe.encoding, reading.wanted.limits.piece)
        else:
            yield line


def _pieces(line: Line, encoding: Encoding, piece: int) -> Iterator[Record]:
    whole = decoded(line, encoding)
    if isinstance(whole, Record):
        yield whole
        return
    offset, end, data = line
    try:
        fields = parse_object(whole)
        text = plain_value(fields, "text")
        title = plain_value({"title": None, **fields}, "title")
    except ValueError as error:
        yield quarantined_record(offset, end, data, encoding.codec, str(error))
        return
    title = known_title(title)
    # What has left a bytearray in front is not moved for.
    rest = bytearray((text or "").encode())
    place = 0
    while len(rest) > piece:
        size = line_cut(rest, piece)
        part = rest[:size].decode()
        del rest[:size]
        yield Record(offset, end, (part,), title, document=offset, place=place)
        place += 1
    if rest or not place:
        last = None if text is None else rest.decode()
        yield Record(offset, end, (last,), title, document=offset, place=place)


DOC_ELEMENTS = Form(wiki_records)
OBJECTS = Form(wiki_json_records)


def is_wiki(head: bytes) -> bool:
    """Whether the first bytes are those of a file of WikiExtractor."""
    return bool(_DOC.match(head) or _OBJECT.match(head))


def is_wiki_name(stem: str) -> bool:
    """Whether a name is one that WikiExtractor gives."""
    return _NAME.fullmatch(stem) is not None


def wiki_form(file: Location, head: bytes) -> Form:
    """Which of the two forms it is in."""
    return OBJECTS if _OBJECT.match(head) else DOC_ELEMENTS


WIKIEXTRACTOR = Format(
    files=FileNames((*TEXT_SUFFIXES, *SUFFIXES), stem=is_wiki_name),
    form=wiki_form,
    is_documents=True,
    pairs=("summary", "adjacent", "title", "document", "single"),
    unit="paragraphs",
)
