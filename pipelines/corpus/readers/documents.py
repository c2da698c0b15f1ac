"""Plain text and Markdown as documents, and `documents`: all files of text, told apart.

Runs on executors, over the items of :mod:`pipelines.corpus.readers.streams`.

The output of WikiExtractor: `<doc>` elements, or a JSON object a line.

Runs on executors, over the items of :mod:`pipelines.corpus.readers.streams`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator

from pipelines.corpus.cleaning.rules import unescape
from pipelines.corpus.readers.csv_format import said_lines
from pipelines.corpus.readers.csv_parser import Line, decoded
from pipelines.corpus.readers.formats import FileNames, Form, Format, Limits, Reading
from pipelines.corpus.readers.json_lines import SUFFIXES, parse_object, plain_value
from pipelines.corpus.readers.rows import (
    TEXT_SUFFIXES,
    Document,
    Found,
    Record,
    known_title,
    line_cut,
    lose,
    paragraph_cut,
    quarantined_record,
)
from pipelines.corpus.readers.streams import Encoding, Skipped, line_end
from pipelines.files.locations import Location, plain_suffix

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


# A heading of Markdown, or the fence of a block of code, in which a # is no heading.
_HEADING = rb"#(#{0,5})[ \t]+([^\r\n]*)"
_SIGN = re.compile(_HEADING + rb"|```")
# Nearly all text is without fences, and looking for a single first byte is many times faster.
_SIGN_WITHOUT_FENCES = re.compile(_HEADING)
_FENCE = b"```"
_PIECE_HEADING = 2


def text_records(reading: Reading) -> Iterator[Found]:
    """Plain text: pieces that end with a paragraph."""
    return _flat_records(reading, Document.add)


def markdown_records(reading: Reading) -> Iterator[Found]:
    """Markdown: a heading of level 1 or 2 begins a piece too.

    The title of a piece is the heading of level 1 before it, or else the first heading. Headings
    are those of CommonMark that begin with #, outside of fenced code.
    """
    return _flat_records(reading, _add_markdown)


def _add_markdown(document: Document, data: bytes) -> Iterator[Found]:
    done = 0
    for sign in (_SIGN if _FENCE in data else _SIGN_WITHOUT_FENCES).finditer(data):
        start = sign.start()
        if start and data[start - 1] not in b"\r\n":
            continue
        if sign[1] is None:
            document.is_code = not document.is_code
        elif not document.is_code:
            yield from document.add(data[done:start])
            done = start
            yield from _take_heading(document, 1 + len(sign[1]), sign[2])
    yield from document.add(data[done:])


def _take_heading(document: Document, level: int, heading: bytes) -> list[Found]:
    begins = level <= _PIECE_HEADING and bool(document.held) and not document.held.isspace()
    found = document.end_piece() if begins else []
    if level == 1 or document.title is None:
        text = heading.decode(document.encoding.codec, "replace").strip().rstrip("#").rstrip()
        document.title = known_title(text or document.title)
    return found


def _flat_records(
    reading: Reading, add: Callable[[Document, bytes], Iterable[Found]]
) -> Iterator[Found]:
    encoding, limits = reading.probe.encoding, reading.wanted.limits
    document: Document | None = None
    following = 0
    for item in reading.own:
        offset, data = item.offset, item.data
        while data:
            if document is None or offset >= following:
                if document is not None:
                    yield from document.close()
                document = Document(offset, offset, encoding, limits.piece, paragraph_cut)
                following = _following(offset, encoding, limits)
            if isinstance(item, Skipped):
                break
            end = line_end(data, following - offset - 1)
            part = data[:end] if end >= 0 else data
            yield from add(document, part)
            offset, data = offset + encoding.width(part), data[len(part) :]
        if isinstance(item, Skipped):
            yield from lose(document, item, encoding)
    if document is not None:
        yield from document.close()
        yield document.position


def _following(offset: int, encoding: Encoding, limits: Limits) -> int:
    """Byte at or after which the next document begins; a wide file is not cut."""
    if encoding.is_wide:
        return 1 << 62
    return (offset // limits.document + 1) * limits.document


def line_records(reading: Reading) -> Iterator[Found]:
    """A row of a table for each line, blank ones too, in the one column that is wanted.

    A byte that is not in the encoding becomes U+FFFD.
    """
    (column,) = reading.wanted.columns.texts
    encoding = reading.probe.encoding
    for item in reading.own:
        if isinstance(item, Skipped):
            yield quarantined_record(item.offset, item.end, item.data, encoding.codec, item.reason)
            continue
        offset = item.offset
        for line in item.data.splitlines(keepends=True):
            end = offset + encoding.width(line)
            text = line.rstrip(b"\r\n").decode(encoding.codec, "replace")
            yield Record(offset, end, (json.dumps({column: text}),))
            offset = end


PLAIN_TEXT = Form(text_records, is_flat=True)
MARKDOWN_TEXT = Form(markdown_records, is_flat=True)
LINES = Form(line_records)


def _form(file: Location, head: bytes) -> Form:
    if is_wiki(head):
        return wiki_form(file, head)
    return MARKDOWN_TEXT if plain_suffix(file) in _MARKDOWN_SUFFIXES else PLAIN_TEXT


_MARKDOWN_SUFFIXES = (".md", ".markdown")
_PAIRS = ("summary", "adjacent", "title", "document", "single")

TEXT = Format(
    files=FileNames((*TEXT_SUFFIXES, *_MARKDOWN_SUFFIXES)),
    form=lambda file, head: PLAIN_TEXT,
    rows=lambda file, head: LINES,
    is_documents=True,
    # Nothing in plain text says that it is a title.
    pairs=tuple(pairs for pairs in _PAIRS if pairs != "title"),
    unit="lines",
)
MARKDOWN = Format(
    files=FileNames(_MARKDOWN_SUFFIXES),
    form=lambda file, head: MARKDOWN_TEXT,
    is_documents=True,
    pairs=_PAIRS,
    unit="paragraphs",
)
DOCUMENTS = Format(
    files=FileNames((*TEXT_SUFFIXES, *_MARKDOWN_SUFFIXES), stem=is_wiki_name),
    form=_form,
    is_documents=True,
    pairs=_PAIRS,
    unit="paragraphs",
)
