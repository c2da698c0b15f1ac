"""The raw row that every format gives, and Arrow batches of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from pipelines.corpus.funnel import ROWS
from pipelines.corpus.readers.streams import EXCERPT

# As Spark writes a file of a volume in Databricks' sessions of Spark Connect.
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

- `file`, `offset`: where it begins, in bytes of the unpacked file; null for what Spark reads (but
  for the name of a Parquet file that cannot be read).
- `document`: `<file>#<offset>` of the document that a piece belongs to, and `place`, the number
  of the piece in it, from 0; null for records.
- `title`, `text_0`, `text_1`, `negatives`, `score`, `candidate_scores` (of `text_1` and the
  negatives), `group`: as they were read.
- `unit`: the package of a docstring; null otherwise.
- `reason`: why a row of another level than `rows` gives nothing.
- `quarantined`: why it could not be read; `text_0` is then its first characters.
- `rows`: 1, or how many rows a Parquet file that cannot be read has.
- `bytes`: unpacked bytes that the row stands for; they sum up to what was read.
- `level`: a level of :mod:`pipelines.corpus.funnel`.
- `input`: address of the file that Spark read it from, where files are read one by one (see
  :func:`file_of`); null where `file` says it, and for tables.
- `key`: as it was read; null unless the settings name its column.
"""

ROW_TYPES = {
    field.name: {pa.int64(): "bigint", pa.string(): "string"}.get(field.type, "array<string>")
    for field in ROW_SCHEMA
}
"""The types of the columns as Spark names them."""
ROW_DDL = ", ".join(f"`{name}` {kind}" for name, kind in ROW_TYPES.items())
"""The schema as Spark has it."""

# Texts that have a column of their own.
_SINGLE = 2
_BATCH_ROWS = 4096
_BATCH_CHARACTERS = 4 << 20


@dataclass(slots=True)
class Record:
    """A record or a piece of a document.

    Attributes:
        offset: Byte of the unpacked file that it begins at.
        end: Byte after its last one.
        texts: One, two, or three and more: behind the second come hard negatives. A null is as
            good as a text here.
        title: Of the document or record.
        document: Byte that its document begins at.
        place: Number of the piece in its document.
        score: As it was read.
        group: As it was read.
        key: As it was read.
        quarantined: Why it could not be read.
        scores: Of the second text and those behind it, as they were read.
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
"""What a reader of a format gives: a record, or the byte after some that belong to none (a
header, blank lines)."""


def quarantined_record(offset: int, end: int, data: bytes, codec: str, reason: str) -> Record:
    """A record for the quarantine; `data` is its beginning in the encoding `codec`."""
    excerpt = data[: 4 * EXCERPT].decode(codec, "replace")[:EXCERPT]
    return Record(offset, end, (excerpt,), quarantined=reason)


def row_batches(rows: Iterable[tuple[str, Record, int]]) -> Iterator[pa.RecordBatch]:
    """Batches of :data:`ROW_SCHEMA`, of some thousand rows and some MB each.

    Args:
        rows: The file, the record and the bytes that it stands for.
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
    records = [record for _, record, _ in rows]
    columns = {
        "file": [file for file, _, _ in rows],
        "offset": [record.offset for record in records],
        "document": [
            None if record.document is None else f"{file}#{record.document}"
            for file, record, _ in rows
        ],
        "place": [record.place for record in records],
        "title": _clean([record.title for record in records]),
        "score": [record.score for record in records],
        "group": _clean([record.group for record in records]),
        "key": _clean([record.key for record in records]),
        "quarantined": [record.quarantined for record in records],
        "rows": [1] * len(rows),
        "bytes": [size for _, _, size in rows],
        "level": [ROWS] * len(rows),
    }
    for side in range(_SINGLE):
        texts = [record.texts[side] if side < len(record.texts) else None for record in records]
        columns[f"text_{side}"] = _clean(texts)
    columns["negatives"] = [_clean(record.texts[_SINGLE:]) or None for record in records]
    columns["candidate_scores"] = [record.scores or None for record in records]
    nothing: list[None] = [None] * len(rows)
    return pa.RecordBatch.from_arrays(
        [pa.array(columns.get(field.name, nothing), field.type) for field in ROW_SCHEMA],
        schema=ROW_SCHEMA,
    )


def _clean(texts: Iterable[str | None]) -> list[str | None]:
    """Without NUL, which ends a string in too many places."""
    return [text.replace("\0", "") if text is not None and "\0" in text else text for text in texts]


def file_of(address: str) -> str:
    """The path that is meant by the address of a file, as Spark writes it."""
    found = urlsplit(address)
    is_path = found.scheme == "file" or address.startswith(_VOLUMES)
    return unquote(found.path) if is_path else address
