"""In which encoding a file of text is, decided once a file from a sample of its bytes.

UTF-8 is the rule. A byte order mark decides for itself; a sample that is not UTF-8 by more than
a stray byte is judged by charset-normalizer (https://charset-normalizer.readthedocs.io).
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from charset_normalizer import from_bytes

Width = Callable[[bytes], int]
"""Bytes that a stretch of the stream takes in the file; see :class:`Encoding`."""


class BinaryError(ValueError):
    """The bytes are no text in any encoding."""


def _utf16_width(data: bytes) -> int:
    characters = len(data.translate(None, _CONTINUATIONS))
    return 2 * (characters + len(data.translate(None, _BELOW_FOUR_BYTES)))


def _utf32_width(data: bytes) -> int:
    return 4 * len(data.translate(None, _CONTINUATIONS))


_CONTINUATIONS = bytes(range(0x80, 0xC0))
_BELOW_FOUR_BYTES = bytes(range(0xF0))


@dataclass(frozen=True)
class Encoding:
    """An encoding, and how a file in it is streamed.

    Encodings that extend ASCII are streamed as they are. The wide ones (UTF-16 and UTF-32) are
    streamed as UTF-8, so that a line end is a byte in every stream.

    Attributes:
        name: As Python's codecs have it.
        mark: Bytes of the byte order mark.
        width: Bytes of the file for a stretch of the stream; it may begin and end anywhere.
    """

    name: str
    mark: int = 0
    width: Width = len

    @property
    def is_wide(self) -> bool:
        """Whether the stream is not the file's own bytes."""
        return self.width is not len

    @property
    def codec(self) -> str:
        """What decodes the stream."""
        return "utf-8" if self.is_wide else self.name

    @property
    def label(self) -> str:
        """The name for people: `UTF-8`, `cp1252`."""
        return self.name.upper() if self.name.startswith("utf") else self.name


UTF_8 = Encoding("utf-8")
# The marks of UTF-32 LE begin as those of UTF-16 LE do, so they come first.
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
"""The encodings that text on the Web is in; supersets where there are some (whatwg.org/encoding).
Among all that exist, short samples find a rare one too easily."""

_MAGIC = (
    b"PAR1", b"\x1f\x8b\x08", b"BZh91AY&SY", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"PK\x03\x04",
    b"%PDF-", b"\x89PNG", b"\xff\xd8\xff", b"\x7fELF", b"SQLite format 3\0", b"Obj\x01",
)  # fmt: skip
# Control characters that no text needs; ESC stays for the Japanese seven-bit encodings.
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
    """The encoding of a file.

    Args:
        sample: Stretches of the file, the first from its beginning.

    Raises:
        BinaryError: The file holds no text.
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
    """Western text in UTF-16 has a NUL in every other byte."""
    even, odd = head[::2].count(0), head[1::2].count(0)
    if min(even, odd) > 0.1 * max(even, odd):
        raise BinaryError
    encoding = "utf-16-le" if odd > even else "utf-16-be"
    if _controls(head.decode(encoding, "ignore").encode("utf-8", "replace")) > 2:
        raise BinaryError
    return Encoding(encoding, 0, _utf16_width)


def is_mostly_utf8(sample: Iterable[bytes]) -> bool:
    """Whether what is not UTF-8 in it is a stray byte, or less than what is.

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
    # Whole lines, so that no character is cut; and only those that tell something.
    telling: list[bytes] = []
    size = 0
    for data in sample:
        for line in data.splitlines(keepends=True)[:-1] or [data]:
            if not line.isascii() and size < _JUDGED_BYTES:
                telling.append(line)
                size += len(line)
    found = _judged_lines(telling)
    if found is None:
        # A broken line spoils them all: most parts are without one.
        parts = (_judged_lines(telling[start::_PARTS]) for start in range(_PARTS))
        counts = Counter(part for part in parts if part is not None)
        found = counts.most_common(1)[0][0] if counts else "utf-8"
    return found


def _judged_lines(lines: Sequence[bytes]) -> str | None:
    data = b"".join(lines)
    matches = from_bytes(data, cp_isolation=_CANDIDATES)
    best = matches.best()
    if best is None or best.encoding not in _CANDIDATES:
        return None
    if best.encoding != "cp1250":
        return str(best.encoding)
    # Western text without the few signs in which the two differ can be read as Central European.
    alike = {
        name
        for match in matches
        if match.chaos <= best.chaos
        for name in match.could_be_from_charset
    }
    is_western = "cp1252" in alike and not _SIGN_IN_WORD.search(data.decode("cp1252", "ignore"))
    return "cp1252" if is_western else "cp1250"


def stream_of(chunks: Iterable[bytes], encoding: Encoding) -> Iterator[bytes]:
    """The stream of a wide file: its chunks as UTF-8.

    Half a surrogate pair and a rest that is no character pass as bytes that are not UTF-8, and
    what UTF-32 does not know as U+FFFD.

    Args:
        chunks: Of the file, without its mark.
        encoding: A wide one.
    """
    errors = "surrogatepass" if encoding.width is _utf16_width else "replace"
    decoder = codecs.getincrementaldecoder(encoding.name)(errors)
    for chunk in chunks:
        yield decoder.decode(chunk).encode("utf-8", "surrogatepass")
    rest, _ = decoder.getstate()
    if rest:
        yield b"\x80"
