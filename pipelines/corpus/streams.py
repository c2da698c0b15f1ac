"""The unpacked bytes of a file, in chunks, and the whole lines in them: in bounded memory.

Runs on executors; on the driver only for the first bytes of a file.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import zstandard

from pipelines.corpus.encodings import Width

CHUNK = 1 << 20
"""Bytes that are read at once."""
EXCERPT = 200
"""Characters that are kept of what cannot be read."""

# Packed bytes that are unpacked at once. Text grows some four times, and the worst input a
# decompressor knows (a long run of one byte, in zstd) some hundred megabytes.
_FEED = 1 << 14
_LARGEST_WINDOW = 1 << 31
_EXCERPT_BYTES = 4 * EXCERPT

DECOMPRESSORS: Mapping[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS | 16),
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lzma.LZMADecompressor,
    ".zst": lambda: zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj(),
}
"""By suffix; each object has `decompress`, `eof` and `unused_data`, as Python's own do."""
_DAMAGE = (zlib.error, OSError, lzma.LZMAError, EOFError, zstandard.ZstdError)


class UnreadableError(Exception):
    """A file, or what is left of it, cannot be read.

    Args:
        reason: For the quarantine.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def is_compressed(file: Path) -> bool:
    """Whether the name says so."""
    return file.suffix.lower() in DECOMPRESSORS


def plain_suffix(file: Path) -> str:
    """The suffix under that of the compression, in lower case: `.txt` of `a.TXT.gz`."""
    return Path(file.stem if is_compressed(file) else file.name).suffix.lower()


def read_chunks(file: Path, start: int = 0, size: int | None = None) -> Iterator[bytes]:
    """The unpacked bytes of a file, in chunks of any size.

    Args:
        file: Unpacked as its name says.
        start: Byte to begin at; 0 for compressed files.
        size: Bytes that are read at once of a file that is not compressed.

    Raises:
        UnreadableError: At the place up to which it can be read.
    """
    new_decompressor = DECOMPRESSORS.get(file.suffix.lower())
    try:
        with file.open("rb") as stored:
            if new_decompressor is not None:
                yield from _unpacked(stored, new_decompressor, file.suffix.lower())
                return
            stored.seek(start)
            while chunk := stored.read(size or CHUNK):
                yield chunk
    except FileNotFoundError:
        raise UnreadableError("vanished") from None
    except OSError as error:
        raise UnreadableError(f"not readable ({error.strerror or error})") from None


def _unpacked(
    stored: IO[bytes], new_decompressor: Callable[[], Any], suffix: str
) -> Iterator[bytes]:
    """All members of a file, one after the other; zeros behind the last are padding."""
    member = None
    first = True
    while packed := stored.read(_FEED):
        while packed:
            if member is None:
                packed = packed if first else packed.lstrip(b"\0")
                if not packed:
                    break
                member, first = new_decompressor(), False
            try:
                unpacked = member.decompress(packed)
            except _DAMAGE as error:
                raise UnreadableError(f"damaged {suffix} ({error})") from None
            packed, member = (member.unused_data, None) if member.eof else (b"", member)
            if unpacked:
                yield unpacked
    if member is not None:
        raise UnreadableError(f"damaged {suffix} (it ends too early)")


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines, each with its line end but perhaps for the last of the file.

    Attributes:
        offset: Byte in the unpacked file.
        data: Not empty; of the stream of the encoding.
    """

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """What was passed over: a line that is too long, or the rest of a damaged file.

    Attributes:
        offset: Byte in the unpacked file.
        end: Byte after the last one that was seen.
        data: The beginning of it.
        reason: For the quarantine.
    """

    offset: int
    end: int
    data: bytes
    reason: str


Item = Lines | Lost


def line_end(data: bytes, start: int = 0) -> int:
    """Index after the first line end (LF, CRLF or CR) at or after `start`.

    -1 where there is none, or only a CR as the last byte, which may be half of a CRLF.
    """
    feed = data.find(b"\n", start)
    carriage = data.find(b"\r", start, feed if feed >= 0 else len(data))
    if carriage < 0 or carriage + 1 == feed:
        return feed + 1 or -1
    return carriage + 1 if carriage + 1 < len(data) else -1


def last_line_end(data: bytes) -> int:
    """Index after the last line end; -1 as :func:`line_end` has it."""
    return max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1 or -1


def whole_lines(
    chunks: Iterable[bytes],
    offset: int,
    most: int,
    *,
    width: Width = len,
    is_inside: bool = False,
) -> Iterator[Item]:
    """Cuts a stream into stretches of whole lines, in order and without gaps.

    Args:
        chunks: Of the stream; at :class:`UnreadableError` the last item says why.
        offset: Byte of the file that the stream begins at.
        most: Bytes; a longer line is passed over and never held as a whole.
        width: Of the encoding.
        is_inside: The stream begins inside a line, which is left out.
    """
    # The beginning of a line: all of it, or, of one that is passed over, a CR at most.
    rest = b""
    passed = Lost(offset, offset, b"", "") if is_inside else None
    reason = ""
    try:
        for chunk in _slices(chunks, most):
            data = rest + chunk
            if passed is None and _first_line_is_longer(data, len(rest), most):
                seen = data[: min(_EXCERPT_BYTES, most)]
                passed = Lost(offset, offset, seen, f"longer than {_size(most)}")
            if passed is not None:
                end = line_end(data)
                past = end if end >= 0 else len(data) - data.endswith(b"\r")
                offset += width(data[:past])
                data = data[past:]
                if end < 0:
                    rest = data
                    continue
                if passed.reason:
                    yield replace(passed, end=offset)
                passed = None
            end = max(last_line_end(data), 0)
            if end:
                yield Lines(offset, data[:end])
                offset += width(data[:end])
            rest = data[end:]
    except UnreadableError as error:
        reason = error.reason
    end = offset + width(rest)
    if passed is not None and passed.reason:
        yield replace(passed, end=end)
    if reason:
        unread = rest if passed is None else b""
        yield Lost(end - width(unread), end, unread[:_EXCERPT_BYTES], reason)
    elif rest and passed is None:
        yield Lines(offset, rest)


def _first_line_is_longer(data: bytes, before: int, most: int) -> bool:
    """Whether it is too long for certain; only one that began `before` this chunk can be."""
    if len(data) <= most:
        return False
    end = line_end(data, max(before - 1, 0))
    return end > most or (end < 0 and before > 0)


def _slices(chunks: Iterable[bytes], most: int) -> Iterator[bytes]:
    """Chunks that are no longer than a line may be."""
    size = min(most, CHUNK)
    for chunk in chunks:
        if len(chunk) <= size:
            yield chunk
        else:
            yield from (chunk[i : i + size] for i in range(0, len(chunk), size))


def _size(most: int) -> str:
    return f"{most >> 20} MB" if most >= 1 << 20 else f"{most} bytes"


def until(items: Iterable[Item], stop: int | None) -> Iterator[Item]:
    """The items without the lines that begin at byte `stop` or after; the width is 1."""
    for item in items:
        if stop is not None and isinstance(item, Lines):
            if item.offset >= stop:
                return
            # The line that begins before may end after.
            end = line_end(item.data, stop - item.offset - 1)
            if end >= 0:
                yield Lines(item.offset, item.data[:end])
                return
        elif stop is not None and item.offset >= stop:
            return
        yield item
