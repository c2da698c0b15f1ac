"""Documents as pieces: plain text, Markdown, and the output of WikiExtractor.

A document that is longer than a piece may be is cut where a paragraph or a line ends; where the
stream was cut into chunks changes nothing. Runs on executors, over the items of
:mod:`pipelines.corpus.streams`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pipelines.corpus.encodings import Encoding
from pipelines.corpus.rows import Found, Record, unread
from pipelines.corpus.streams import Item, Lost, line_end

OUTSIDE = "outside of <doc>"

# A heading of Markdown, or the fence of a block of code, in which a # is no heading.
_HEADING = rb"#(#{0,5})[ \t]+([^\r\n]*)"
_SIGN = re.compile(_HEADING + rb"|```")
# Nearly all text is without fences, and looking for a single first byte is many times faster.
_SIGN_WITHOUT_FENCES = re.compile(_HEADING)
_FENCE = b"```"
_MARKER = re.compile(rb'<(?:doc [^\r\n]*?">|/doc>)')
_TITLE = re.compile(rb'\btitle="(.*?)"(?=\s+[\w:]+="|\s*/?>$)')
_PARAGRAPH_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")
_PIECE_HEADING = 2

Cut = Callable[[bytes, int], int]
"""Where a piece of at most so many bytes ends in longer text."""


@dataclass(frozen=True)
class Limits:
    """Sizes in bytes.

    Attributes:
        record: Longer lines and records are passed over.
        piece: Of a document, about.
        document: A file of plain text or Markdown that is longer is several documents: document
            n holds the lines that begin in the n-th so many bytes.
    """

    record: int = 16 << 20
    piece: int = 64 << 10
    document: int = 64 << 20


def paragraph_cut(data: bytes, size: int) -> int:
    """After the last paragraph that ends in the first `size` bytes, or else the last line."""
    places = ((data.rfind(end, size // 4, size), len(end)) for end in _PARAGRAPH_ENDS)
    cut = max(place + length if place >= 0 else 0 for place, length in places)
    return cut or line_cut(data, size)


def line_cut(data: bytes, size: int) -> int:
    """After the last line that ends in the first `size` bytes, or else the first one after."""
    feed = data.rfind(b"\n", size // 4, size)
    carriage = data.rfind(b"\r", size // 4, size)
    if max(feed, carriage) < 0:
        end = line_end(data, size)
        return end if end >= 0 else len(data)
    is_half = carriage > feed and data[carriage + 1 : carriage + 2] == b"\n"
    return max(feed, carriage) + 1 + is_half


@dataclass
class _Document:
    """A document whose text comes bit by bit, and leaves as pieces.

    Attributes:
        offset: Byte that it begins at; None for text that is in no document.
        position: Byte that the text which is held begins at.
        title: Of the piece that is held.
        held: Text that has not left yet.
        place: Number of the next piece.
        is_code: In Markdown, whether the text ends inside of fenced code.
    """

    offset: int | None
    position: int
    encoding: Encoding
    piece: int
    cut: Cut
    title: str | None = None
    held: bytes = b""
    place: int = 0
    is_code: bool = False

    def add(self, data: bytes) -> list[Found]:
        """Takes text, and gives the pieces that are full."""
        self.held = self.held + data if self.held else data
        found: list[Found] = []
        while len(self.held) > self.piece:
            size = self.cut(self.held, self.piece)
            data, self.held = self.held[:size], self.held[size:]
            found += self._leave(data)
        return found

    def end_piece(self) -> list[Found]:
        """Gives what is held."""
        data, self.held = self.held, b""
        return self._leave(data) if data else []

    def close(self) -> list[Found]:
        """Gives what is held; a document that has no text at all is a row nevertheless."""
        found = self.end_piece()
        if self.offset is not None and not self.place:
            found.append(self._piece(self.position, ""))
        return found

    def _leave(self, data: bytes) -> list[Found]:
        if (self.place or self.offset is None) and data.isspace():
            self.position += self.encoding.width(data)
            return [self.position]
        if self.offset is not None:
            try:
                text = data.decode(self.encoding.codec)
            except UnicodeDecodeError:
                pass
            else:
                return [self._piece(self.position + self.encoding.width(data), text)]
        found: list[Found] = []
        for stretch, part, reason in _decoded(data, self.position, self.encoding):
            end = self.position + self.encoding.width(stretch)
            if self.offset is not None and part is not None:
                found.append(self._piece(end, part))
            else:
                codec, why = self.encoding.codec, reason or OUTSIDE
                found.append(unread(self.position, end, stretch, codec, why))
                self.position = end
        return found

    def _piece(self, end: int, text: str) -> Record:
        record = Record(self.position, end, (text,), self.title, self.offset, self.place)
        self.position, self.place = end, self.place + 1
        return record


def _lose(document: _Document | None, item: Lost, encoding: Encoding) -> Iterator[Found]:
    """What the document holds, and what was passed over after it."""
    if document is not None:
        yield from document.end_piece()
        document.position = item.end
    yield unread(item.offset, item.end, item.data, encoding.codec, item.reason)


def _decoded(
    data: bytes, position: int, encoding: Encoding
) -> Iterator[tuple[bytes, str | None, str | None]]:
    """Stretches of lines with their text; lines that are not in the encoding have a reason."""
    start = 0
    while start < len(data):
        try:
            yield data[start:], str(memoryview(data)[start:], encoding.codec), None
        except UnicodeDecodeError as error:
            wrong = start + error.start
        else:
            return
        place = position + encoding.width(data[:wrong])
        begin = 1 + max(data.rfind(b"\n", start, wrong), data.rfind(b"\r", start, wrong), start - 1)
        if begin > start:
            yield data[start:begin], data[start:begin].decode(encoding.codec), None
        end = line_end(data, wrong)
        start = end if end >= 0 else len(data)
        yield data[begin:start], None, f"not {encoding.label} at byte {place}"


def text_records(items: Iterable[Item], encoding: Encoding, limits: Limits) -> Iterator[Found]:
    """Plain text: pieces that end with a paragraph."""
    return _flat_records(items, encoding, limits, _Document.add)


def markdown_records(items: Iterable[Item], encoding: Encoding, limits: Limits) -> Iterator[Found]:
    """Markdown: a heading of level 1 or 2 begins a piece too.

    The title of a piece is the heading of level 1 before it, or else the first heading. Headings
    are those of CommonMark that begin with #, outside of fenced code.
    """
    return _flat_records(items, encoding, limits, _add_markdown)


def _add_markdown(document: _Document, data: bytes) -> Iterator[Found]:
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


def _take_heading(document: _Document, level: int, heading: bytes) -> list[Found]:
    begins = level <= _PIECE_HEADING and bool(document.held.strip())
    found = document.end_piece() if begins else []
    if level == 1 or document.title is None:
        text = heading.decode(document.encoding.codec, "replace")
        document.title = text.strip().rstrip("#").rstrip() or document.title
    return found


def _flat_records(
    items: Iterable[Item],
    encoding: Encoding,
    limits: Limits,
    add: Callable[[_Document, bytes], Iterable[Found]],
) -> Iterator[Found]:
    document: _Document | None = None
    following = 0
    for item in items:
        offset, data = item.offset, item.data
        while data:
            if document is None or offset >= following:
                if document is not None:
                    yield from document.close()
                document = _Document(offset, offset, encoding, limits.piece, paragraph_cut)
                following = _following(offset, encoding, limits)
            if isinstance(item, Lost):
                break
            end = line_end(data, following - offset - 1)
            part = data[:end] if end >= 0 else data
            yield from add(document, part)
            offset, data = offset + encoding.width(part), data[len(part) :]
        if isinstance(item, Lost):
            yield from _lose(document, item, encoding)
    if document is not None:
        yield from document.close()
        yield document.position


def _following(offset: int, encoding: Encoding, limits: Limits) -> int:
    """Byte at or after which the next document begins; a wide file is not cut."""
    if encoding.is_wide:
        return 1 << 62
    return (offset // limits.document + 1) * limits.document


def wiki_records(
    items: Iterable[Item], encoding: Encoding, limits: Limits, start: int, stop: int | None
) -> Iterator[Found]:
    """WikiExtractor's `<doc id= url= title=>` form: a document each.

    A document ends with `</doc>`, or where the next one begins. Text that is in none is for the
    quarantine.

    Args:
        items: From byte `start` on, and on after `stop`.
        encoding: Of the file.
        limits: Of a piece.
        start: Only documents that begin here or after.
        stop: And before this byte.
    """
    outside = _Document(None, start or encoding.mark, encoding, limits.piece, line_cut)
    # In the middle of a file the rest of another task's document comes first.
    document = None if start else outside
    for item in items:
        position = item.offset
        if isinstance(item, Lost):
            yield from _lose(document, item, encoding) if document is not None else ()
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
                document = _Document(position, after, encoding, limits.piece, line_cut, title)
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
        if data[start + 1] == ord("/") or not start or data[start - 1] in b"\r\n":
            yield data[done:start], marker[0]
            done = marker.end()
    yield data[done:], b""


def _title(marker: bytes, encoding: Encoding) -> str | None:
    found = _TITLE.search(marker)
    return html.unescape(found[1].decode(encoding.codec, "replace")) if found else None
