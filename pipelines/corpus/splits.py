"""What a task reads: ranges of files, each of them by its format and encoding, as raw rows.

Runs on executors, but for :func:`probe`, which the driver asks too.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from pipelines.corpus.documents import Limits, markdown_records, text_records, wiki_records
from pipelines.corpus.encodings import BinaryError, Encoding, find_encoding, stream_of
from pipelines.corpus.inputs import MARKDOWN_SUFFIXES, TAB_SUFFIXES
from pipelines.corpus.records import (
    Columns,
    csv_records,
    json_records,
    tab_records,
    wiki_json_records,
)
from pipelines.corpus.rows import Found, Record, row_batches, unread
from pipelines.corpus.streams import (
    Item,
    UnreadableError,
    is_compressed,
    line_end,
    plain_suffix,
    read_chunks,
    until,
    whole_lines,
)

SPLIT_DDL = "file string, start bigint, stop bigint"
"""A split: the records of a file that begin at byte `start` or after, and before `stop` (null:
to its end)."""

HEAD_BYTES = 64 << 10
"""Of a file, that :func:`probe` gives."""
_SAMPLE_BYTES = 1 << 20
_SAMPLES = 16
_WIKI = re.compile(rb"\s*<doc ")
_WIKI_JSON = re.compile(rb'\s*\{\s*"')


class WrongFileError(UnreadableError):
    """What is in a file does not fit what is wanted of it."""


@dataclass(frozen=True)
class Wanted:
    """What is to be read of every file.

    Attributes:
        format: `text`, `markdown`, `wikiextractor`, `documents`, `jsonl` or `csv`.
        columns: Of formats that have some.
        limits: Sizes.
    """

    format: str
    columns: Columns
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Probe:
    """What the first bytes of a file say.

    Attributes:
        form: Key of :data:`READERS`.
        encoding: Of the whole file.
        head: Its first bytes, as they are streamed.
        header: The names of the columns, where a first record has them.
    """

    form: str
    encoding: Encoding
    head: bytes
    header: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Reading:
    items: Iterator[Item]
    probe: Probe
    wanted: Wanted
    start: int
    stop: int | None

    @property
    def own(self) -> Iterator[Item]:
        """Without the lines that begin behind the split."""
        return until(self.items, self.stop)


READERS: Mapping[str, Callable[[_Reading], Iterator[Found]]] = {
    "text": lambda r: text_records(r.own, r.probe.encoding, r.wanted.limits),
    "markdown": lambda r: markdown_records(r.own, r.probe.encoding, r.wanted.limits),
    "wiki": lambda r: wiki_records(r.items, r.probe.encoding, r.wanted.limits, r.start, r.stop),
    "wiki json": lambda r: wiki_json_records(r.own, r.probe.encoding, r.wanted.limits),
    "jsonl": lambda r: json_records(r.own, r.probe.encoding, r.wanted.columns),
    "tab": lambda r: tab_records(
        r.own, r.probe.encoding, r.wanted.columns, r.probe.header, r.start
    ),
    "csv": lambda r: csv_records(
        r.own, r.probe.encoding, r.wanted.limits, r.wanted.columns, r.probe.header
    ),
}
"""By the form of a file: what becomes of its items."""

_FLAT = ("text", "markdown")


def is_splittable(file: Path, form: str) -> bool:
    """Whether several tasks may read a file, as far as its name says."""
    if is_compressed(file):
        return False
    return form != "csv" or plain_suffix(file) in TAB_SUFFIXES


def probe(file: Path, wanted: Wanted) -> Probe:
    """Looks at the first bytes of a file, and for its encoding at some more of it.

    Raises:
        UnreadableError: It cannot be read, or it is no text.
    """
    sample = list(_sample(file))
    try:
        encoding = find_encoding(sample)
    except BinaryError:
        raise WrongFileError("binary") from None
    head = sample[0][encoding.mark : HEAD_BYTES] if sample else b""
    if encoding.is_wide:
        head = b"".join(stream_of([head], encoding))
    form = _FORMS[wanted.format](file, head)
    header = _HEADERS[form](head.decode(encoding.codec, "replace")) if form in _HEADERS else ()
    return Probe(form, encoding, head, header)


def _sample(file: Path) -> Iterator[bytes]:
    """The beginning, and of a long plain file that begins as ASCII some stretches of lines."""
    head = bytearray()
    try:
        for chunk in read_chunks(file):
            head += chunk
            if len(head) >= _SAMPLE_BYTES or (len(head) >= HEAD_BYTES and not chunk.isascii()):
                break
    except UnreadableError:
        if not head:
            raise
    if head:
        yield bytes(head)
    if is_compressed(file) or len(head) < _SAMPLE_BYTES or not head.isascii():
        return
    size = file.stat().st_size
    for place in range(1, _SAMPLES):
        stretch = next(read_chunks(file, size * place // _SAMPLES, HEAD_BYTES), b"")
        yield stretch[max(line_end(stretch), 0) :]


def _wiki_form(file: Path, head: bytes) -> str:
    return "wiki json" if _WIKI_JSON.match(head) else "wiki"


def _document_form(file: Path, head: bytes) -> str:
    if _WIKI.match(head) or _WIKI_JSON.match(head):
        return _wiki_form(file, head)
    return "markdown" if plain_suffix(file) in MARKDOWN_SUFFIXES else "text"


def _table_form(file: Path, head: bytes) -> str:
    return "tab" if plain_suffix(file) in TAB_SUFFIXES else "csv"


_FORMS: Mapping[str, Callable[[Path, bytes], str]] = {
    "text": lambda file, head: "text",
    "markdown": lambda file, head: "markdown",
    "wikiextractor": _wiki_form,
    "documents": _document_form,
    "jsonl": lambda file, head: "jsonl",
    "csv": _table_form,
}


def _tab_header(head: str) -> tuple[str, ...]:
    lines = (line for line in re.split(r"\r\n|\n|\r", head) if line)
    return tuple(next(lines, "").split("\t")) if head.strip("\r\n") else ()


def _csv_header(head: str) -> tuple[str, ...]:
    lines = re.findall(r"[^\r\n]*(?:\r\n|\n|\r|$)", head)
    try:
        return tuple(next(filter(None, csv.reader(lines)), ()))
    except csv.Error as error:
        raise WrongFileError(f"no header line ({error})") from None


_HEADERS: Mapping[str, Callable[[str], tuple[str, ...]]] = {
    "tab": _tab_header,
    "csv": _csv_header,
}


def read_splits(batches: Iterable[pa.RecordBatch], *, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Splits in, raw rows out. Runs on an executor.

    Args:
        batches: Columns as in :data:`SPLIT_DDL`.
        wanted: The same for all.

    Returns:
        Batches of :data:`~pipelines.corpus.rows.ROW_SCHEMA`. What cannot be read is a row too.
    """
    return row_batches(_rows(batches, wanted))


def _rows(batches: Iterable[pa.RecordBatch], wanted: Wanted) -> Iterator[tuple[str, Record, int]]:
    for batch in batches:
        columns = (batch[name].to_pylist() for name in ("file", "start", "stop"))
        for file, start, stop in zip(*columns, strict=True):
            yield from _with_sizes(file, _found(Path(file), start, stop, wanted), start)


def _found(file: Path, start: int, stop: int | None, wanted: Wanted) -> Iterator[Found]:
    try:
        probed = probe(file, wanted)
    except UnreadableError as error:
        # What is wrong with the whole file is said once, whatever the number of its splits.
        if not (start and isinstance(error, WrongFileError)):
            yield unread(start, start, b"", "utf-8", error.reason)
        return
    missing = _missing_column(probed, wanted)
    if missing is not None:
        if not start:
            yield unread(0, 0, probed.head, probed.encoding.codec, f"no column `{missing}`")
        return
    if probed.encoding.is_wide:
        if start:
            return
        stop = None
    if probed.form in _FLAT:
        start = _aligned(start, wanted.limits.document)
        stop = None if stop is None else _aligned(stop, wanted.limits.document)
    if start != stop:
        items = _items(file, probed.encoding, start, wanted.limits.record)
        yield from READERS[probed.form](_Reading(items, probed, wanted, start, stop))


def _missing_column(probed: Probe, wanted: Wanted) -> str | None:
    if probed.form not in _HEADERS or not probed.head:
        return None
    return next((name for name in wanted.columns.names if name not in probed.header), None)


def _aligned(place: int, unit: int) -> int:
    return -(-place // unit) * unit


def _items(file: Path, encoding: Encoding, start: int, most: int) -> Iterator[Item]:
    if start:
        # From the byte before, which may be the end of a line.
        return whole_lines(read_chunks(file, start - 1), start - 1, most, is_inside=True)
    chunks = _without(read_chunks(file), encoding.mark)
    stream = stream_of(chunks, encoding) if encoding.is_wide else chunks
    return whole_lines(stream, encoding.mark, most, width=encoding.width)


def _without(chunks: Iterable[bytes], mark: int) -> Iterator[bytes]:
    for chunk in chunks:
        skipped, mark = min(mark, len(chunk)), max(mark - len(chunk), 0)
        yield chunk[skipped:] if skipped else chunk


def _with_sizes(file: str, found: Iterable[Found], start: int) -> Iterator[tuple[str, Record, int]]:
    """The file and its records, each with the bytes that it stands for.

    These are its own, those since the record before, and behind it those that belong to none.
    """
    before = 0 if start == 0 else -1
    held: Record | None = None
    size = 0
    for one in found:
        if isinstance(one, int):
            if held is not None and one > before:
                size, before = size + one - before, one
            continue
        if held is not None:
            yield file, held, size
        elif before < 0:
            before = one.offset
        held, size = one, 0
        if one.end > before:
            size, before = one.end - before, one.end
    if held is not None:
        yield file, held, size
