"""Plain text, Markdown and the output of WikiExtractor; `documents` takes and detects all of them.

Runs on executors, over the items of :mod:`pipelines.corpus.readers.streams`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from pipelines.corpus.cleaning.rules import unescape
from pipelines.corpus.readers.formats import (
    FileNames,
    Form,
    Format,
    Line,
    Reading,
    filled_lines,
    text_lines,
)
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

_MARKDOWN_SUFFIXES = (".md", ".markdown")
_PAIRS = ("summary", "adjacent", "title", "document", "single")
_DOC = re.compile(rb"\s*<doc ")
_OBJECT = re.compile(rb'\s*\{\s*"')
# WikiExtractor's names of files: wiki_00 to wiki_99 in folders AA to ZZ.
_NAME = re.compile(r"wiki_\d+")
# A document begins at the beginning of a line. A search elsewhere would read each of a line's many
# beginnings to the line's end.
_MARKER = re.compile(rb'<(?:/doc>|(?<![^\r\n]<)doc [^\r\n]*?">)')
_TITLE = re.compile(rb'\btitle="')
_TITLE_END = re.compile(rb'"(?=\s+[\w:]+="|\s*/?>$)')


def wiki_records(reading: Reading) -> Iterator[Found]:
    """Yield the documents of WikiExtractor's `<doc id= url= title=>` form.

    A document ends with `</doc>`, or before the next one. Text outside goes to the quarantine. It
    yields only documents that begin in the range, but these to their end.
    """
    encoding, wanted = reading.encoding, reading.wanted
    start, stop = reading.start, reading.stop
    outside = Document(None, start or encoding.mark, encoding, wanted.piece, line_cut)
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
                document = Document(position, after, encoding, wanted.piece, line_cut, title)
            elif marker and document is not None:
                document, outside.position = outside, after
            position = after
    if document is not None:
        yield from document.close()
        yield document.position


def _marked(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield stretches of text, each with the marker after it; the last one has none."""
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
    """Yield WikiExtractor's `--json` form: a document a line, of a `text` and perhaps a `title`."""
    for found in text_lines(reading):
        if isinstance(found, tuple):
            yield from _pieces(*found, reading)
        else:
            yield found


def _pieces(line: Line, document: str, reading: Reading) -> Iterator[Record]:
    offset, end, _ = line
    try:
        fields = parse_object(document)
        text = plain_value(fields, "text")
        title = known_title(plain_value({"title": None, **fields}, "title"))
    except ValueError as error:
        yield quarantined_record(*line, reading.encoding.codec, str(error))
        return
    # A bytearray loses bytes in front without moving the rest.
    rest = bytearray((text or "").encode())
    place, piece = 0, reading.wanted.piece
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


def _is_wiki_name(stem: str) -> bool:
    return _NAME.fullmatch(stem) is not None


def _wiki_form(file: Location, head: bytes) -> Form:
    return OBJECTS if _OBJECT.match(head) else DOC_ELEMENTS


WIKIEXTRACTOR = Format(
    files=FileNames((*TEXT_SUFFIXES, *SUFFIXES), stem=_is_wiki_name),
    form=_wiki_form,
    is_documents=True,
    pairs=_PAIRS,
    unit="paragraphs",
)


# A heading of Markdown, or the fence of a block of code: inside of it a # is no heading.
_HEADING = rb"#(#{0,5})[ \t]+([^\r\n]*)"
_SIGN = re.compile(_HEADING + rb"|```")
# Nearly all text has no fences, and a search for a single first byte is many times faster.
_SIGN_WITHOUT_FENCES = re.compile(_HEADING)
_FENCE = b"```"
_PIECE_HEADING = 2


def _add_markdown(document: Document, data: bytes) -> Iterator[Found]:
    """Add text of Markdown: a heading of level 1 or 2 begins a piece, too.

    The title of a piece is the heading of level 1 before it, or else the first heading. Headings
    are CommonMark's with #, outside of fenced code.
    """
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
    """Yield the pieces of plain text or Markdown; each ends with a paragraph."""
    encoding, wanted = reading.encoding, reading.wanted
    document: Document | None = None
    # The next document begins at or after this byte.
    following = 0
    for item in reading.items_in_range:
        offset, data = item.offset, item.data
        while data:
            if document is None or offset >= following:
                if document is not None:
                    yield from document.close()
                document = Document(offset, offset, encoding, wanted.piece, paragraph_cut)
                # A wide file is not cut.
                unit = 1 << 62 if encoding.is_wide else wanted.document
                following = (offset // unit + 1) * unit
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


def line_records(reading: Reading) -> Iterator[Found]:
    """Yield a row of a table for each line, blank ones too, in the one wanted column.

    A byte outside of the encoding becomes U+FFFD.
    """
    (column,) = reading.wanted.columns.texts
    encoding = reading.encoding
    for line in filled_lines(reading.items_in_range, encoding, blank=b""):
        if isinstance(line, tuple):
            text = line[2].rstrip(b"\r\n").decode(encoding.codec, "replace")
            yield Record(*line[:2], (json.dumps({column: text}),))
        else:
            yield line


PLAIN_TEXT = Form(partial(_flat_records, add=Document.add), is_flat=True)
MARKDOWN_TEXT = Form(partial(_flat_records, add=_add_markdown), is_flat=True)
LINES = Form(line_records)


def _form(file: Location, head: bytes) -> Form:
    if _DOC.match(head) or _OBJECT.match(head):
        return _wiki_form(file, head)
    return MARKDOWN_TEXT if plain_suffix(file) in _MARKDOWN_SUFFIXES else PLAIN_TEXT


TEXT = Format(
    files=FileNames((*TEXT_SUFFIXES, *_MARKDOWN_SUFFIXES)),
    form=lambda file, head: PLAIN_TEXT,
    rows=lambda file, head: LINES,
    is_documents=True,
    # Plain text has no mark for a title.
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
    files=FileNames((*TEXT_SUFFIXES, *_MARKDOWN_SUFFIXES), stem=_is_wiki_name),
    form=_form,
    is_documents=True,
    pairs=_PAIRS,
    unit="paragraphs",
)
