"""The work of a task: ranges of files, each read by its form and encoding, as raw rows.

Runs on executors, but for :func:`probe`, which the driver calls too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import pyarrow as pa

from pipelines.catalog import FORMATS
from pipelines.corpus.readers.formats import HEAD_BYTES, Format, Probe, Reading, Wanted
from pipelines.corpus.readers.rows import Found, Record, quarantined_record, row_batches
from pipelines.corpus.readers.streams import (
    BinaryError,
    Encoding,
    Item,
    UnreadableError,
    WrongFileError,
    find_encoding,
    line_end,
    read_chunks,
    stream_of,
    whole_lines,
)
from pipelines.files.locations import Location, is_compressed, location

FileRange: TypeAlias = tuple[str, int, int | None]
"""A split: the address of a file, the first possible byte of its records, and the byte after the
last one (None: the end of the file)."""

_SAMPLE_BYTES = 1 << 20
_SAMPLES = 16


def probe(file: Location, wanted: Wanted) -> Probe:
    """Look at the first bytes of a file, and for its encoding at further samples.

    An unreadable file, or one without text, raises an :class:`.streams.UnreadableError`.
    """
    sample = list(_sample(file))
    try:
        encoding = find_encoding(sample)
    except BinaryError:
        raise WrongFileError("binary") from None
    head = sample[0][encoding.mark : HEAD_BYTES] if sample else b""
    if encoding.is_wide:
        head = b"".join(stream_of([head], encoding))
    known: Format = FORMATS.load(wanted.format)
    form_of = known.rows if wanted.as_rows else known.form
    assert form_of is not None, f"{wanted.format} is not read by tasks"
    form = form_of(file, head)
    text = head.decode(encoding.codec, "replace")
    header = form.header(text, wanted.dialect) if form.header else ()
    return Probe(form, encoding, head, header)


def _sample(file: Location) -> Iterator[bytes]:
    """Yield the beginning; of a long plain file, and an ASCII beginning, further stretches."""
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


def read_tasks(tasks: Iterable[Iterable[FileRange]], *, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Yield the raw rows of the splits of tasks. Runs on an executor; see :func:`read_splits`."""
    return read_splits(chain.from_iterable(tasks), wanted=wanted)


def read_splits(splits: Iterable[FileRange], *, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Yield the raw rows of splits, in batches of :data:`.rows.ROW_SCHEMA`. Runs on an executor.

    Rows keep the order of the splits. Unreadable places are rows too.
    """
    return row_batches(
        row
        for file, start, stop in splits
        for row in _with_sizes(
            file, records_of(location(file, wanted.stores), start, stop, wanted), start
        )
    )


def records_of(file: Location, start: int, stop: int | None, wanted: Wanted) -> Iterator[Found]:
    """Yield the records of a split, of a file of any encoding and compression.

    Unreadable places are records too, never an error. `stop` None is the end of the file.
    """
    try:
        probed = probe(file, wanted)
    except UnreadableError as error:
        # The first split alone reports a problem of the whole file.
        if not (start and isinstance(error, WrongFileError)):
            yield quarantined_record(start, start, b"", "utf-8", error.reason)
        return
    has_header = probed.form.header is not None and probed.head and not wanted.as_rows
    problem = column_problem(wanted.columns.names, probed.header) if has_header else None
    if problem is not None:
        if not start:
            yield quarantined_record(0, 0, probed.head, probed.encoding.codec, problem)
        return
    # A wide file is not cut: its first split reads all of it.
    if probed.encoding.is_wide:
        if start:
            return
        stop = None
    if probed.form.is_flat:
        unit = wanted.document
        start = -(-start // unit) * unit
        stop = None if stop is None else -(-stop // unit) * unit
    if start != stop:
        items = _items(file, probed.encoding, start, wanted.record)
        yield from probed.form.records(
            Reading(items, probed.encoding, probed.header, wanted, start, stop)
        )


def column_problem(names: Iterable[str], columns: Sequence[str]) -> str | None:
    """Name a missing or repeated wanted column; None if each is there once."""
    for name in names:
        count = columns.count(name)
        if count != 1:
            return f"two columns `{name}`" if count else f"no column `{name}`"
    return None


def _items(file: Location, encoding: Encoding, start: int, most: int) -> Iterator[Item]:
    if start:
        # From the byte before: it may end a line.
        return whole_lines(read_chunks(file, start - 1), start - 1, most, is_inside=True)
    chunks = _without(read_chunks(file), encoding.mark)
    stream = stream_of(chunks, encoding) if encoding.is_wide else chunks
    return whole_lines(stream, encoding.mark, most, width=encoding.width)


def _without(chunks: Iterable[bytes], mark: int) -> Iterator[bytes]:
    for chunk in chunks:
        skipped, mark = min(mark, len(chunk)), max(mark - len(chunk), 0)
        yield chunk[skipped:] if skipped else chunk


def _with_sizes(file: str, found: Iterable[Found], start: int) -> Iterator[tuple[str, Record, int]]:
    """Yield the file and its records, each with the bytes that it stands for.

    These are its own bytes, the bytes since the record before, and bytes of no record behind it.
    """
    # The bytes before a later split's first record belong to the split before.
    before = 0 if start == 0 else -1
    held: Record | None = None
    size = 0
    for item in found:
        if isinstance(item, int):
            if held is not None and item > before:
                size, before = size + item - before, item
            continue
        if held is not None:
            yield file, held, size
        elif before < 0:
            before = item.offset
        held, size = item, 0
        if item.end > before:
            size, before = item.end - before, item.end
    if held is not None:
        yield file, held, size


_SPLIT_BYTES = 64 << 20
_TASK_BYTES = 48 << 20
_MIN_TASK_BYTES = 4 << 20
_TASKS_PER_CORE = 3
_UNPACKED = 4
"""Bytes of text in a compressed byte, about."""
_FILE_BYTES = 64 << 10
"""The cost of opening a file, in bytes read in the same time, about."""


@dataclass(frozen=True)
class Split:
    """The records that begin in a range of bytes of a file, of about `size` bytes of text.

    `stop` is the byte after the range; None for the end of the file.
    """

    file: str
    start: int
    stop: int | None
    size: int


def split_file(file: Location, kind: str, *, multiline: bool = True) -> Iterator[Split]:
    """Yield the splits of a file; it may be gone by now.

    `multiline` says whether a quoted field of a CSV file may hold line ends.
    """
    try:
        size = file.stat().st_size
    except OSError:
        # The task that reads it reports it.
        size = 0
    if is_compressed(file):
        size *= _UNPACKED
    splits = not is_compressed(file) and FORMATS.load(kind).splits(file, multiline)
    if not splits or size <= _SPLIT_BYTES:
        yield Split(str(file), 0, None, size)
        return
    for start in range(0, size, _SPLIT_BYTES):
        stop = start + _SPLIT_BYTES if start + _SPLIT_BYTES < size else None
        yield Split(str(file), start, stop, min(_SPLIT_BYTES, size - start))


def pack(splits: Sequence[Split], cores: int) -> list[list[Split]]:
    """Deal splits to tasks, in their order, so that each task has enough to do and none too much.

    There are at least as many tasks as cores, if there are so many splits.
    """
    sizes = [split.size + _FILE_BYTES for split in splits]
    total = sum(sizes)
    share = max(total // (_TASKS_PER_CORE * cores), _MIN_TASK_BYTES)
    most = min(_TASK_BYTES, share, math.ceil(total / cores))
    tasks: list[list[Split]] = []
    held = math.inf
    for number, (split, size) in enumerate(zip(splits, sizes, strict=True)):
        is_scarce = len(tasks) + len(splits) - number <= cores
        if held + size > most or is_scarce:
            tasks.append([])
            held = 0
        tasks[-1].append(split)
        held += size
    return tasks
