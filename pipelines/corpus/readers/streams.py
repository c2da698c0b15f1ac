"""Files of text as bytes: how to find and open them, their encodings, and their whole lines.

Runs on executors; the driver reads only the first bytes of a file. A sample of its bytes decides
the encoding of a file, once. A byte order mark decides by itself; a sample of UTF-8 with a stray
byte is UTF-8; charset-normalizer (https://charset-normalizer.readthedocs.io) judges the rest.
Bytes are decompressed and cut in bounded memory.
"""

from __future__ import annotations

import bz2
import codecs
import errno
import lzma
import os
import re
import stat
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import zstandard
from charset_normalizer import from_bytes

from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.files.locations import Location, as_local, is_within
from pipelines.files.stores import first_line

Width = Callable[[bytes], int]
"""The bytes of the file for a stretch of the stream; see :class:`Encoding`."""


class BinaryError(ValueError):
    """The bytes are no text in any encoding."""


_CONTINUATIONS = bytes(range(0x80, 0xC0))
_BELOW_FOUR_BYTES = bytes(range(0xF0))


def _utf16_width(data: bytes) -> int:
    characters = len(data.translate(None, _CONTINUATIONS))
    return 2 * (characters + len(data.translate(None, _BELOW_FOUR_BYTES)))


def _utf32_width(data: bytes) -> int:
    return 4 * len(data.translate(None, _CONTINUATIONS))


@dataclass(frozen=True)
class Encoding:
    """An encoding, and the stream of a file in it.

    Extensions of ASCII are streamed unchanged. The wide ones (UTF-16 and UTF-32) are streamed as
    UTF-8, so that a line end is a byte in every stream. `name` names Python's codec, `mark` is the
    length of the byte order mark. `width` gives the bytes of the file for any stretch of the
    stream.
    """

    name: str
    mark: int = 0
    width: Width = len

    @property
    def is_wide(self) -> bool:
        """Whether the stream differs from the file's bytes."""
        return self.width is not len

    @property
    def codec(self) -> str:
        """The codec of the stream."""
        return "utf-8" if self.is_wide else self.name

    @property
    def label(self) -> str:
        """The name to display: `UTF-8`, `cp1252`."""
        return self.name.upper() if self.name.startswith("utf") else self.name


UTF_8 = Encoding("utf-8")
# The mark of UTF-32 LE begins with the mark of UTF-16 LE, so it comes first.
_MARKS: Mapping[bytes, Encoding] = {
    codecs.BOM_UTF8: Encoding("utf-8", 3),
    codecs.BOM_UTF32_LE: Encoding("utf-32-le", 4, _utf32_width),
    codecs.BOM_UTF32_BE: Encoding("utf-32-be", 4, _utf32_width),
    codecs.BOM_UTF16_LE: Encoding("utf-16-le", 2, _utf16_width),
    codecs.BOM_UTF16_BE: Encoding("utf-16-be", 2, _utf16_width),
}
_CANDIDATES = [
    "cp1252", "cp1250", "cp1251", "koi8_r", "cp932", "euc_jp", "cp949", "gb18030", "big5",
    "cp1253", "cp1254", "cp1255", "cp1256", "cp874",
]  # fmt: skip
"""The encodings of text on the Web, or supersets of them (whatwg.org/encoding). Among all
encodings, a short sample matches a rare one too easily."""

_MAGIC = (
    b"PAR1", b"\x1f\x8b\x08", b"BZh91AY&SY", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"PK\x03\x04",
    b"%PDF-", b"\x89PNG", b"\xff\xd8\xff", b"\x7fELF", b"SQLite format 3\0", b"Obj\x01",
)  # fmt: skip
# Control characters foreign to text; ESC stays for the Japanese seven-bit encodings.
_CONTROLS = bytes(set(range(0x20)) - set(b"\t\n\v\f\r\x1b"))
_NO_TEXT_AT_ALL = 0.3
_NO_OTHER_ENCODING = 0.02
_SEQUENCE = re.compile(
    rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
)
_ASCII = bytes(range(0x80))
_JUDGED_BYTES = 64 * 1024
_PARTS = 8
_SIGN_IN_WORD = re.compile(r"[^\W\d_][\u00b9\u00b3\u00bf\u00a3\u00a5\u00bc\u00be]")


def find_encoding(sample: Sequence[bytes]) -> Encoding:
    """Return the encoding of a file from stretches of it, the first from its beginning.

    A file without text raises a :class:`BinaryError`.
    """
    head = sample[0] if sample else b""
    marked = next((kind for mark, kind in _MARKS.items() if head.startswith(mark)), None)
    if marked is not None:
        return marked
    if head.startswith(_MAGIC):
        raise BinaryError
    controls = _controls(head)
    if controls > _NO_TEXT_AT_ALL * len(head):
        return _unmarked_wide(head)
    if controls > max(2, _NO_OTHER_ENCODING * len(head)) and not _is_utf8(head):
        raise BinaryError
    if is_mostly_utf8(sample):
        return UTF_8
    return Encoding(_judged(sample))


def _controls(data: bytes) -> int:
    return len(data) - len(data.translate(None, _CONTROLS))


def _unmarked_wide(head: bytes) -> Encoding:
    """Tell UTF-16-LE from UTF-16-BE: Western text has a NUL in every other byte."""
    even, odd = head[::2].count(0), head[1::2].count(0)
    if min(even, odd) > 0.1 * max(even, odd):
        raise BinaryError
    encoding = "utf-16-le" if odd > even else "utf-16-be"
    if _controls(head.decode(encoding, "ignore").encode("utf-8", "replace")) > 2:
        raise BinaryError
    return Encoding(encoding, 0, _utf16_width)


def is_mostly_utf8(sample: Iterable[bytes]) -> bool:
    """Return whether at most one byte is not UTF-8, or no more than there are non-ASCII characters.

    The sample may begin and end in the middle of a character.
    """
    good = bad = 0
    for data in sample:
        if _is_utf8(data):
            good += len(data.translate(None, _ASCII)) // 2
            continue
        rest, found = _SEQUENCE.subn(b"", data)
        good += found
        bad += len(rest.translate(None, _ASCII))
    return bad <= max(1, good)


def _is_utf8(data: bytes) -> bool:
    try:
        codecs.utf_8_decode(data, "strict", False)
    except UnicodeDecodeError:
        return False
    return True


def _judged(sample: Sequence[bytes]) -> str:
    # Whole lines, so that no character is cut; and no ASCII lines, which decide nothing.
    telling: list[bytes] = []
    size = 0
    for data in sample:
        for line in data.splitlines(keepends=True)[:-1] or [data]:
            if not line.isascii() and size < _JUDGED_BYTES:
                telling.append(line)
                size += len(line)
    if (found := _judged_lines(telling)) is not None:
        return found
    # A broken line spoils them all: most parts are without one.
    parts = (_judged_lines(telling[start::_PARTS]) for start in range(_PARTS))
    counts = Counter(filter(None, parts))
    return counts.most_common(1)[0][0] if counts else "utf-8"


def _judged_lines(lines: Sequence[bytes]) -> str | None:
    data = b"".join(lines)
    matches = from_bytes(data, cp_isolation=_CANDIDATES)
    best = matches.best()
    if best is None or best.encoding not in _CANDIDATES:
        return None
    if best.encoding != "cp1250":
        return str(best.encoding)
    # Western text without the few signs in which the two differ can be read as Central European.
    alike = (match.could_be_from_charset for match in matches if match.chaos <= best.chaos)
    is_western = any("cp1252" in names for names in alike)
    has_signs = _SIGN_IN_WORD.search(data.decode("cp1252", "ignore")) is not None
    return "cp1252" if is_western and not has_signs else "cp1250"


def stream_of(chunks: Iterable[bytes], encoding: Encoding) -> Iterator[bytes]:
    """Yield the stream of a wide file: its chunks, without the mark, as UTF-8.

    Half a surrogate pair and an incomplete last character become bytes of no UTF-8; code points
    unknown to UTF-32 become U+FFFD.
    """
    errors = "surrogatepass" if encoding.width is _utf16_width else "replace"
    decoder = codecs.getincrementaldecoder(encoding.name)(errors)
    for chunk in chunks:
        yield decoder.decode(chunk).encode("utf-8", "surrogatepass")
    rest, _ = decoder.getstate()
    if rest:
        yield b"\x80"


def exists(path: Location, key: str) -> bool:
    """Return whether there is such a file or folder; refuse an unreachable store."""
    try:
        return path.exists()
    except OSError as error:
        if as_local(path) is not None:
            raise
        remedy = "Correct the address or the credentials: see docs/guides/buckets.md"
        raise InputError(key, f"{path} cannot be reached ({first_line(error)})", remedy) from None


@dataclass(frozen=True)
class Links:
    """The policy for links in a folder of inputs, or in the part of a glob without wildcards.

    `follow` allows links out of it.
    """

    root: Location
    key: str
    follow: bool

    @cached_property
    def _real_root(self) -> Location:
        return self.root.resolve()

    def check(self, path: Location) -> None:
        """Refuse a path that links lead to out of the folder; the error names `follow_links`."""
        real = path.resolve()
        if not self.follow and not is_within(real, self._real_root):
            section = self.key.partition(".")[0]
            raise InputError(
                self.key,
                f"{path} is a link to {real}, outside of {self._real_root}",
                f"Set {section}.follow_links to true, or name the file itself",
            )


def check_regular(path: Location, key: str) -> None:
    """Refuse pipes, sockets and devices with an `InputError`: opening one may block for ever."""
    local = as_local(path)
    if local is None:
        return
    try:
        mode = local.stat().st_mode
    except OSError:
        # The task that reads it reports it.
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kinds = {stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket"}
        kind = kinds.get(stat.S_IFMT(mode), "device")
        raise InputError(key, f"{path} is a {kind}", "Name regular files, or folders of them")


def open_regular(path: Location) -> IO[bytes]:
    """Open a regular file to read it, or raise an `OSError`.

    It never blocks on a file replaced by a pipe meanwhile.
    """
    local = as_local(path)
    if local is None:
        return path.open("rb")
    opened = open(local, "rb", opener=_without_waiting)  # noqa: SIM115 - Path has no opener
    if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        opened.close()
        raise OSError(errno.EINVAL, "no regular file")
    return opened


def _without_waiting(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NONBLOCK)


def files_below(
    folder: Location, is_hidden: Callable[[str], bool], links: Links | None = None
) -> Iterator[Location]:
    """Yield the files at any depth, except hidden ones and files in hidden folders.

    Without `links`, it skips links to folders; with them, it refuses forbidden ones.
    """
    local = as_local(folder)
    if local is None:
        for name in storage.file_names(folder):
            if not any(map(is_hidden, name.split("/"))):
                yield folder / name
        return
    follow, seen = links is not None and links.follow, set[str]()
    for parent, folders, names in os.walk(local, followlinks=follow):
        if follow and os.path.realpath(parent) in seen:
            # A link back, or a second link to a folder read already.
            folders[:] = []
            continue
        seen.add(os.path.realpath(parent))
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        for path in (Path(parent, name) for name in folders):
            if links is not None and path.is_symlink():
                links.check(path)
        yield from (Path(parent, name) for name in sorted(names) if not is_hidden(name))


def sort_key(path: Location) -> tuple[bool, tuple[str, ...]]:
    """Return a key that orders files by the parts of their paths, file systems before stores."""
    return as_local(path) is None, path.parts


CHUNK = 1 << 20
"""Bytes per read."""
EXCERPT = 200
"""Characters kept of unreadable data."""

# Packed bytes read at once.
_FEED = 1 << 14
# The largest window of `zstd --long=31`, and the memory for a file with it.
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
    """A wrapper that feeds decompressors without an output limit `piece` bytes at a time.

    `inner` has `decompress`, `eof` and `unused_data`; the wrapper has the interface of
    :class:`bz2.BZ2Decompressor`.
    """

    def __init__(self, inner: Any, piece: int) -> None:
        self._inner = inner
        self._piece = piece
        self._rest = b""

    @property
    def eof(self) -> bool:
        return bool(self._inner.eof)

    @property
    def needs_input(self) -> bool:
        return not self._rest

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inner.unused_data) + self._rest

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Return up to `max_length` bytes, and the rest of the last piece beyond them."""
        data = self._rest + data
        found = bytearray()
        place = 0
        while place < len(data) and len(found) < max_length and not self._inner.eof:
            found += self._inner.decompress(data[place : place + self._piece])
            place += self._piece
        self._rest = data[place:]
        return bytes(found)


DECOMPRESSORS: Mapping[str, Callable[[], Any]] = {
    ".gz": lambda: _InSmallPieces(zlib.decompressobj(wbits=zlib.MAX_WBITS | 16), _DEFLATE_FEED),
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lambda: lzma.LZMADecompressor(memlimit=_LARGEST_WINDOW),
    ".zst": lambda: _InSmallPieces(
        zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj(), _ZSTD_FEED
    ),
}
"""By suffix; each object has the interface of :class:`bz2.BZ2Decompressor`."""
_DAMAGE = (zlib.error, OSError, lzma.LZMAError, EOFError, zstandard.ZstdError)


class UnreadableError(Exception):
    """A file, or the rest of it, cannot be read; the reason is for the quarantine."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


_VANISHED = "vanished"
_NOT_READABLE = "not readable"


def may_pass(reason: str) -> bool:
    """Return whether a file unreadable for this reason may be readable the next time."""
    return reason == _VANISHED or reason.startswith(_NOT_READABLE)


class WrongFileError(UnreadableError):
    """The content of a file does not fit the settings."""


def read_chunks(file: Location, start: int = 0, size: int | None = None) -> Iterator[bytes]:
    """Yield the bytes of a file, decompressed by its suffix, in chunks of a few megabytes at most.

    `start` is the byte to begin at, 0 for compressed files; `size` is the bytes per read of others.
    An :class:`UnreadableError` comes after the last readable byte.
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
    """Yield the same bytes in chunks of :data:`CHUNK` and a piece at most."""
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
    """Yield all members of a file, one after the other; zeros behind the last are padding."""
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
    """Whole lines with their line ends; the last line of a file may lack its own.

    `data`, never empty, is of the stream of the encoding; `offset` is a byte of the decompressed
    file.
    """

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Skipped:
    """A skipped stretch: a line beyond the limit, or the rest of a damaged file.

    It goes from byte `offset` of the decompressed file up to `end`; `data` is its beginning.
    """

    offset: int
    end: int
    data: bytes
    reason: str


Item = Lines | Skipped


def line_end(data: bytes | bytearray, start: int = 0) -> int:
    """Return the index after the first line end (LF, CRLF or CR) at or after `start`.

    -1 if there is none, or only a CR as the last byte: it may be half of a CRLF.
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
    """Return the index after the last line end; -1 as in :func:`line_end`."""
    return max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1 or -1


def whole_lines(
    chunks: Iterable[bytes],
    offset: int,
    most: int,
    *,
    width: Width = len,
    is_inside: bool = False,
) -> Iterator[Item]:
    """Cut a stream into stretches of whole lines, in order and without gaps.

    The stream begins at byte `offset` of the file; with `is_inside`, inside a line to leave out. A
    line of more than `most` bytes is skipped and never held as a whole. If `chunks` raises
    :class:`UnreadableError`, the last item carries the reason.
    """
    # The beginning of a line: all of it, or a CR at most of a skipped one.
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
    """Return whether the first line surely exceeds `most`; `before` bytes of it came earlier."""
    if len(data) <= most:
        return False
    end = line_end(data, max(before - 1, 0))
    return end > most or (end < 0 and before > 0)


def _slices(chunks: Iterable[bytes], most: int) -> Iterator[bytes]:
    """Yield chunks no longer than a line may be."""
    size = min(most, CHUNK)
    for chunk in chunks:
        if len(chunk) <= size:
            yield chunk
        else:
            yield from (chunk[i : i + size] for i in range(0, len(chunk), size))


def _size(most: int) -> str:
    return f"{most >> 20} MB" if most >= 1 << 20 else f"{most} bytes"


def until(items: Iterable[Item], stop: int | None) -> Iterator[Item]:
    """Yield the items without the lines that begin at byte `stop` or after.

    Only for encodings whose stream is the file (width 1).
    """
    for item in items:
        if stop is not None and isinstance(item, Lines):
            if item.offset >= stop:
                return
            # A line may begin before `stop` and end after it.
            end = line_end(item.data, stop - item.offset - 1)
            if end >= 0:
                yield Lines(item.offset, item.data[:end])
                return
        elif stop is not None and item.offset >= stop:
            return
        yield item
