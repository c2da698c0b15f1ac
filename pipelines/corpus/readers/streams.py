"""The unpacked bytes of a file, in chunks, and the whole lines in them: in bounded memory.

Runs on executors; on the driver only for the first bytes of a file.
"""

from __future__ import annotations

import bz2
import lzma
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import IO, Any

import zstandard

from pipelines.corpus.readers.encodings import Width
from pipelines.corpus.readers.finding import open_regular
from pipelines.files.locations import Location

CHUNK = 1 << 20
"""Bytes that are read at once."""
EXCERPT = 200
"""Characters that are kept of what cannot be read."""

# Packed bytes that are read at once.
_FEED = 1 << 14
# The largest that `zstd --long=31` makes; what a file of it takes in memory.
_LARGEST_WINDOW = 1 << 31
# The most that a byte can stand for: 1,032 bytes of a match in deflate (RFC 1951), and in zstd a
# block of 128 KB whose three bytes of header and one of content say that they are all equal
# (RFC 8878). So these many packed bytes give no more than about one chunk.
_DEFLATE_FEED = 1 << 10
_ZSTD_FEED = 1 << 5
# Text shrinks to a third, and to a twentieth where it repeats itself.
_MAX_GROWTH = 1000
_SMALL_ENOUGH = 1 << 30
_EXCERPT_BYTES = 4 * EXCERPT
_NEAR = 256


class _InSmallPieces:
    """A decompressor that gives all of what it was fed at once, fed little by little.

    Has the interface of Python's own for bz2 and xz.

    Args:
        inner: Has `decompress`, `eof` and `unused_data`.
        piece: Bytes that it is fed at once.
    """

    def __init__(self, inner: Any, piece: int) -> None:
        self._inner = inner
        self._piece = piece
        self._rest = b""

    @property
    def eof(self) -> bool:
        """Whether its end has been reached."""
        return bool(self._inner.eof)

    @property
    def needs_input(self) -> bool:
        """Whether it has nothing left to be fed."""
        return not self._rest

    @property
    def unused_data(self) -> bytes:
        """What was found behind the end."""
        return bytes(self._inner.unused_data) + self._rest

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """At least so many bytes, as long as there are some, and a piece more at most."""
        data = self._rest + data
        found = bytearray()
        place = 0
        while place < len(data) and len(found) < max_length and not self._inner.eof:
            found += self._inner.decompress(data[place : place + self._piece])
            place += self._piece
        self._rest = data[place:]
        return bytes(found)


def _gzip() -> _InSmallPieces:
    return _InSmallPieces(zlib.decompressobj(wbits=zlib.MAX_WBITS | 16), _DEFLATE_FEED)


def _zstd() -> _InSmallPieces:
    new = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
    return _InSmallPieces(new.decompressobj(), _ZSTD_FEED)


DECOMPRESSORS: Mapping[str, Callable[[], Any]] = {
    ".gz": _gzip,
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lambda: lzma.LZMADecompressor(memlimit=_LARGEST_WINDOW),
    ".zst": _zstd,
}
"""By suffix; each object has the interface of :class:`bz2.BZ2Decompressor`."""
_DAMAGE = (zlib.error, OSError, lzma.LZMAError, EOFError, zstandard.ZstdError)


class UnreadableError(Exception):
    """A file, or what is left of it, cannot be read.

    Args:
        reason: For the quarantine.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


_VANISHED = "vanished"
_NOT_READABLE = "not readable"


def may_pass(reason: str) -> bool:
    """Whether a file that was not read for this reason may be readable the next time, as it is."""
    return reason == _VANISHED or reason.startswith(_NOT_READABLE)


class WrongFileError(UnreadableError):
    """What is in a file does not fit what is wanted of it."""


def read_chunks(file: Location, start: int = 0, size: int | None = None) -> Iterator[bytes]:
    """The unpacked bytes of a file, in chunks of a few megabytes at most.

    Args:
        file: Unpacked as its name says.
        start: Byte to begin at; 0 for compressed files.
        size: Bytes that are read at once of a file that is not compressed.

    Raises:
        UnreadableError: At the place up to which it can be read.
    """
    new_decompressor = DECOMPRESSORS.get(file.suffix.lower())
    try:
        with open_regular(file) as stored:
            if new_decompressor is not None:
                yield from _joined(_unpacked(stored, new_decompressor, file.suffix.lower()))
                return
            stored.seek(start)
            while chunk := stored.read(size or CHUNK):
                yield chunk
    except FileNotFoundError:
        raise UnreadableError(_VANISHED) from None
    except OSError as error:
        raise UnreadableError(f"{_NOT_READABLE} ({error.strerror or error})") from None


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in chunks of :data:`CHUNK` and a piece at most, whatever the pieces are."""
    held = bytearray()
    try:
        for piece in pieces:
            held += piece
            if len(held) >= CHUNK:
                yield bytes(held)
                held.clear()
    except UnreadableError:
        if held:
            yield bytes(held)
        raise
    if held:
        yield bytes(held)


def _unpacked(
    stored: IO[bytes], new_decompressor: Callable[[], Any], suffix: str
) -> Iterator[bytes]:
    """All members of a file, one after the other; zeros behind the last are padding."""
    member = None
    first = True
    size = 0
    most = max(_SMALL_ENOUGH, _MAX_GROWTH * os.fstat(stored.fileno()).st_size)
    while packed := stored.read(_FEED):
        while packed or (member is not None and not member.needs_input):
            if member is None:
                packed = packed if first else packed.lstrip(b"\0")
                if not packed:
                    break
                member, first = new_decompressor(), False
            try:
                unpacked = member.decompress(packed, CHUNK)
            except _DAMAGE as error:
                raise UnreadableError(f"damaged {suffix} ({error})") from None
            packed, member = (member.unused_data, None) if member.eof else (b"", member)
            size += len(unpacked)
            if size > most:
                reason = f"a {suffix} that unpacks to more than {_MAX_GROWTH} times its size"
                raise UnreadableError(reason)
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
class Skipped:
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


Item = Lines | Skipped


def line_end(data: bytes | bytearray, start: int = 0) -> int:
    """Index after the first line end (LF, CRLF or CR) at or after `start`.

    -1 where there is none, or only a CR as the last byte, which may be half of a CRLF.
    """
    width = _NEAR
    while start < len(data):
        # In growing windows: where lines end with CR alone, the next LF may be at the very end.
        stop = start + width
        feed = data.find(b"\n", start, stop)
        carriage = data.find(b"\r", start, feed if feed >= 0 else stop)
        if carriage >= 0:
            following = data[carriage + 1 : carriage + 2]
            return carriage + 1 + (following == b"\n") if following else -1
        if feed >= 0:
            return feed + 1
        start, width = stop, 2 * width
    return -1


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
    passed = Skipped(offset, offset, b"", "") if is_inside else None
    reason = ""
    try:
        for chunk in _slices(chunks, most):
            data = rest + chunk
            if passed is None and _first_line_is_longer(data, len(rest), most):
                seen = data[: min(_EXCERPT_BYTES, most)]
                passed = Skipped(offset, offset, seen, f"longer than {_size(most)}")
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
        yield Skipped(end - width(unread), end, unread[:_EXCERPT_BYTES], reason)
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
