"""Files of text as rows, one for each line, in whatever encoding and compression they are.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from pipelines.corpus.documents import Limits
from pipelines.corpus.encodings import Encoding, stream_of
from pipelines.corpus.records import Columns
from pipelines.corpus.splits import Wanted, probe
from pipelines.corpus.streams import (
    Item,
    Lost,
    UnreadableError,
    read_chunks,
    until,
    whole_lines,
)

MARK = "\ufeff"

_TEXT = Wanted("text", Columns(()))
_MOST_BYTES = Limits().record


def encoding_of(file: Path) -> Encoding:
    """The encoding of a file of text.

    Raises:
        UnreadableError: It cannot be read, or it is no text.
    """
    return probe(file, _TEXT).encoding


def read_lines(batches: Iterable[pa.RecordBatch], *, column: str) -> Iterator[pa.RecordBatch]:
    """The lines of splits. Runs on an executor.

    Args:
        batches: Columns as in :data:`~pipelines.corpus.splits.SPLIT_DDL`.
        column: Of the lines.

    Raises:
        UnreadableError: A file is damaged, or no text, or has a line that is too long.
    """
    for batch in batches:
        splits = (batch[name].to_pylist() for name in ("file", "start", "stop"))
        for file, start, stop in zip(*splits, strict=True):
            for lines in _lines(Path(file), start, stop):
                yield pa.RecordBatch.from_pydict({column: pa.array(lines, pa.string())})


def _lines(file: Path, start: int, stop: int | None) -> Iterator[list[str]]:
    try:
        encoding = encoding_of(file)
    except UnreadableError as error:
        raise UnreadableError(f"{file}: {error.reason}") from None
    if encoding.is_wide:
        if start:
            return
        stop = None
    for item in until(_items(file, encoding, start), stop):
        if isinstance(item, Lost):
            raise UnreadableError(f"{file} at byte {item.offset}: {item.reason}")
        text = item.data.decode(encoding.codec, "replace")
        if not item.offset:
            text = text.removeprefix(MARK)
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        # Behind the last line end there is nothing.
        yield lines if lines[-1] else lines[:-1]


def _items(file: Path, encoding: Encoding, start: int) -> Iterator[Item]:
    if start:
        # From the byte before, which may be the end of a line.
        chunks = read_chunks(file, start - 1)
        return whole_lines(chunks, start - 1, _MOST_BYTES, is_inside=True)
    chunks = read_chunks(file)
    stream = stream_of(chunks, encoding) if encoding.is_wide else chunks
    return whole_lines(stream, 0, _MOST_BYTES, width=encoding.width)
