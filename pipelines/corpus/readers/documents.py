"""Plain text and Markdown as documents, and `documents`: all files of text, told apart.

Runs on executors, over the items of :mod:`pipelines.corpus.readers.streams`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator

from pipelines.corpus.readers.encodings import Encoding
from pipelines.corpus.readers.formats import FileNames, Form, Format, Limits, Reading
from pipelines.corpus.readers.pieces import (
    TEXT_SUFFIXES,
    Document,
    known_title,
    lose,
    paragraph_cut,
)
from pipelines.corpus.readers.rows import Found, Record, quarantined_record
from pipelines.corpus.readers.streams import Skipped, line_end
from pipelines.corpus.readers.wikiextractor import is_wiki, is_wiki_name, wiki_form
from pipelines.files.compression import plain_suffix
from pipelines.files.locations import Location

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
