"""Documents as pieces, whatever marks where documents begin.

A document that is longer than a piece may be is cut where a paragraph or a line ends; where the
stream was cut into chunks changes nothing. Runs on executors, over the items of
:mod:`pipelines.corpus.readers.streams`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pipelines.corpus.readers.encodings import Encoding
from pipelines.corpus.readers.rows import Found, Record, quarantined_record
from pipelines.corpus.readers.streams import Skipped, line_end

TEXT_SUFFIXES = (".txt", ".text", ".rst")
OUTSIDE = "outside of <doc>"

_PARAGRAPH_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")
_LONGEST_TITLE = 1000

Text = bytes | bytearray
Cut = Callable[[Text, int], int]
"""Where a piece of at most so many bytes ends in longer text."""


def known_title(title: str | None) -> str | None:
    """The title, or None for a long one: every piece repeats it, and it would outgrow the text."""
    return None if title is not None and len(title) > _LONGEST_TITLE else title


def paragraph_cut(data: Text, size: int) -> int:
    """After the last paragraph that ends in the first `size` bytes, or else the last line."""
    places = ((data.rfind(end, size // 4, size), len(end)) for end in _PARAGRAPH_ENDS)
    cut = max(place + length if place >= 0 else 0 for place, length in places)
    return cut or line_cut(data, size)


def line_cut(data: Text, size: int) -> int:
    """After the last line that ends in the first `size` bytes, or else the first one after."""
    feed = data.rfind(b"\n", size // 4, size)
    carriage = data.rfind(b"\r", size // 4, size)
    if max(feed, carriage) < 0:
        end = line_end(data, size)
        return end if end >= 0 else len(data)
    is_half = carriage > feed and data[carriage + 1 : carriage + 2] == b"\n"
    return max(feed, carriage) + 1 + is_half


@dataclass
class Document:
    """A document whose text comes bit by bit, and leaves as pieces.

    Attributes:
        offset: Byte that it begins at; None for text that is in no document.
        position: Byte that the text which is held begins at.
        title: Of the piece that is held.
        held: Text that has not left yet; a bytearray takes and loses some without moving the rest.
        place: Number of the next piece.
        is_code: In Markdown, whether the text ends inside of fenced code.
    """

    offset: int | None
    position: int
    encoding: Encoding
    piece: int
    cut: Cut
    title: str | None = None
    held: bytearray = field(default_factory=bytearray)
    place: int = 0
    is_code: bool = False

    def add(self, data: bytes) -> list[Found]:
        """Takes text, and gives the pieces that are full."""
        self.held += data
        found: list[Found] = []
        while len(self.held) > self.piece:
            found += self._leave(self._taken(self.cut(self.held, self.piece)))
        return found

    def _taken(self, size: int) -> bytes:
        data = bytes(memoryview(self.held)[:size])
        del self.held[:size]
        return data

    def end_piece(self) -> list[Found]:
        """Gives what is held."""
        return self._leave(self._taken(len(self.held))) if self.held else []

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
                found.append(quarantined_record(self.position, end, stretch, codec, why))
                self.position = end
        return found

    def _piece(self, end: int, text: str) -> Record:
        record = Record(self.position, end, (text,), self.title, self.offset, self.place)
        self.position, self.place = end, self.place + 1
        return record


def lose(document: Document | None, item: Skipped, encoding: Encoding) -> Iterator[Found]:
    """What the document holds, and what was passed over after it."""
    if document is not None:
        yield from document.end_piece()
        document.position = item.end
    yield quarantined_record(item.offset, item.end, item.data, encoding.codec, item.reason)


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
