"""The raw row of every format, Arrow batches of it, and documents as pieces.

A document longer than a piece is cut at the end of a paragraph or a line, for any chunks of the
stream. Runs on executors, over the items of :mod:`pipelines.corpus.readers.streams`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from pipelines.corpus.funnel import ROWS
from pipelines.corpus.readers.streams import EXCERPT, Encoding, Skipped, line_end

# The address of a file of a volume in Databricks' sessions of Spark Connect.
_VOLUMES = "dbfs:/Volumes/"

ROW_SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("offset", pa.int64()),
        ("document", pa.string()),
        ("place", pa.int64()),
        ("title", pa.string()),
        ("text_0", pa.string()),
        ("text_1", pa.string()),
        ("negatives", pa.list_(pa.string())),
        ("score", pa.string()),
        ("candidate_scores", pa.list_(pa.string())),
        ("group", pa.string()),
        ("unit", pa.string()),
        ("reason", pa.string()),
        ("quarantined", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("level", pa.string()),
        ("input", pa.string()),
        ("key", pa.string()),
    ]
)
"""Every column of a raw row.

- `file`, `offset`: its beginning, in bytes of the decompressed file; null for rows read by Spark
  (but for the name of an unreadable Parquet file).
- `document`: `<file>#<offset>` of a piece's document, and `place`, the number of the piece in it,
  from 0; null for records.
- `title`, `text_0`, `text_1`, `negatives`, `score`, `candidate_scores` (of `text_1` and the
  negatives), `group`: as read.
- `unit`: the package of a docstring; null otherwise.
- `reason`: the reason for no text, in rows of other levels than `rows`.
- `quarantined`: the reason of an unreadable row; `text_0` is then its first characters.
- `rows`: 1, or the rows of an unreadable Parquet file.
- `bytes`: decompressed bytes that the row stands for; they sum up to all bytes read.
- `level`: a level of :mod:`pipelines.corpus.funnel`.
- `input`: address of its file in Spark's form, if files are read one by one (see
  :func:`file_of`); null if `file` says it, and for tables.
- `key`: as read; null unless the settings name its column.
"""

ROW_TYPES = {
    field.name: {pa.int64(): "bigint", pa.string(): "string"}.get(field.type, "array<string>")
    for field in ROW_SCHEMA
}
"""The types of the columns as Spark names them."""
ROW_DDL = ", ".join(f"`{name}` {kind}" for name, kind in ROW_TYPES.items())
"""The schema in Spark's DDL."""

# Texts with a column of their own.
_SINGLE = 2
_BATCH_ROWS = 4096
_BATCH_CHARACTERS = 4 << 20


@dataclass(slots=True)
class Record:
    """A record or a piece of a document. Columns are as read.

    Attributes:
        offset: Its first byte in the decompressed file.
        end: Byte after its last one.
        texts: One, two, or three and more: behind the second come hard negatives. A null counts.
        document: First byte of its document; it is piece number `place` of it.
        quarantined: The reason of an unreadable record.
        scores: Of the second text and the texts behind it.
    """

    offset: int
    end: int
    texts: tuple[str | None, ...]
    title: str | None = None
    document: int | None = None
    place: int | None = None
    score: str | None = None
    group: str | None = None
    key: str | None = None
    quarantined: str | None = None
    scores: tuple[str | None, ...] = ()


Found = Record | int
"""The output of a reader of a format: a record, or the byte after bytes of no record (a header,
blank lines)."""


def quarantined_record(offset: int, end: int, data: bytes, codec: str, reason: str) -> Record:
    """Return a record for the quarantine; `data` is its beginning in the encoding `codec`."""
    # No codec here has more than four bytes a character.
    excerpt = data[: 4 * EXCERPT].decode(codec, "replace")[:EXCERPT]
    return Record(offset, end, (excerpt,), quarantined=reason)


def row_batches(rows: Iterable[tuple[str, Record, int]]) -> Iterator[pa.RecordBatch]:
    """Yield batches of :data:`ROW_SCHEMA`, of a few thousand rows and a few MB each.

    `rows` hold the file, the record and its bytes.
    """
    held: list[tuple[str, Record, int]] = []
    characters = 0
    for row in rows:
        held.append(row)
        characters += sum(map(len, filter(None, (*row[1].texts, row[1].title, row[1].group))))
        if len(held) == _BATCH_ROWS or characters > _BATCH_CHARACTERS:
            yield _batch(held)
            held, characters = [], 0
    if held:
        yield _batch(held)


def _batch(rows: list[tuple[str, Record, int]]) -> pa.RecordBatch:
    files, records, sizes = zip(*rows, strict=True)
    columns = {
        "file": files,
        "document": [
            None if record.document is None else f"{file}#{record.document}"
            for file, record, _ in rows
        ],
        "negatives": [_clean(record.texts[_SINGLE:]) or None for record in records],
        "candidate_scores": [record.scores or None for record in records],
        "rows": [1] * len(rows),
        "bytes": sizes,
        "level": [ROWS] * len(rows),
    }
    for name in ("offset", "place", "score", "quarantined"):
        columns[name] = [*map(attrgetter(name), records)]
    for name in ("title", "group", "key"):
        columns[name] = _clean(map(attrgetter(name), records))
    for side in range(_SINGLE):
        texts = [record.texts[side] if side < len(record.texts) else None for record in records]
        columns[f"text_{side}"] = _clean(texts)
    nothing: list[None] = [None] * len(rows)
    return pa.RecordBatch.from_arrays(
        [pa.array(columns.get(field.name, nothing), field.type) for field in ROW_SCHEMA],
        schema=ROW_SCHEMA,
    )


def _clean(texts: Iterable[str | None]) -> list[str | None]:
    """Remove NUL: it ends a string in too many places."""
    return [text.replace("\0", "") if text is not None and "\0" in text else text for text in texts]


def file_of(address: str) -> str:
    """Return the path of a file from its address in Spark's form."""
    found = urlsplit(address)
    is_path = found.scheme == "file" or address.startswith(_VOLUMES)
    return unquote(found.path) if is_path else address


TEXT_SUFFIXES = (".txt", ".text", ".rst")
OUTSIDE = "outside of <doc>"

_PARAGRAPH_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")
_LONGEST_TITLE = 1000

Text = bytes | bytearray
Cut = Callable[[Text, int], int]
"""Returns the end of a piece of about so many bytes in longer text."""


def known_title(title: str | None) -> str | None:
    """Return the title, or None for a long one: repeated in each piece, it would outgrow text."""
    return None if title is not None and len(title) > _LONGEST_TITLE else title


def paragraph_cut(data: Text, size: int) -> int:
    """Return the end of the last paragraph in the first `size` bytes, or else of the last line."""
    places = ((data.rfind(end, size // 4, size), len(end)) for end in _PARAGRAPH_ENDS)
    cut = max(place + length if place >= 0 else 0 for place, length in places)
    return cut or line_cut(data, size)


def line_cut(data: Text, size: int) -> int:
    """Return the end of the last line in the first `size` bytes, or else of the first one after."""
    feed = data.rfind(b"\n", size // 4, size)
    carriage = data.rfind(b"\r", size // 4, size)
    if max(feed, carriage) < 0:
        end = line_end(data, size)
        return end if end >= 0 else len(data)
    # A CRLF stays whole.
    is_half = carriage > feed and data[carriage + 1 : carriage + 2] == b"\n"
    return max(feed, carriage) + 1 + is_half


@dataclass
class Document:
    """A document; its text comes bit by bit, and leaves as pieces.

    Attributes:
        offset: Its first byte; None for text of no document.
        position: First byte of the held text.
        piece: Bytes of a piece, at most.
        title: Of the held piece.
        held: Text for the next pieces; a bytearray grows and shrinks without moving the rest.
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
        """Take text, and return the full pieces."""
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
        """Return the held text as a piece."""
        return self._leave(self._taken(len(self.held))) if self.held else []

    def close(self) -> list[Found]:
        """Return the last piece; a document without any text is a row nevertheless."""
        found = self.end_piece()
        if self.offset is not None and not self.place:
            found.append(self._piece(self.position, ""))
        return found

    def _leave(self, data: bytes) -> list[Found]:
        if (self.place or self.offset is None) and data.isspace():
            self.position += self.encoding.width(data)
            return [self.position]
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
    """Yield the held text of the document, and the skipped stretch after it."""
    if document is not None:
        yield from document.end_piece()
        document.position = item.end
    yield quarantined_record(item.offset, item.end, item.data, encoding.codec, item.reason)


def _decoded(
    data: bytes, position: int, encoding: Encoding
) -> Iterator[tuple[bytes, str | None, str | None]]:
    """Yield stretches of lines with their text, or the reason of lines in another encoding."""
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
