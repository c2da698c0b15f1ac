"""Copies of a corpus that read like it and share no sentence with it.

To grow a corpus by copying it, the copies must not be duplicates of one another, and must not
differ in what costs time: the lengths of words and sentences, the punctuation, the mark-up, how
often words occur. So each copy has the words of the corpus permuted: a word gives way, wherever
it stands, to another of the same script, capitals and length that is about as frequent. What two
sentences have in common in the corpus, they have in common in every copy, and no two copies
replace a word by the same one.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO, Any, Literal, cast

import zstandard

WINDOW = 64
"""Words of about the same frequency that are exchanged for one another."""

_SEED = 29
# Thai to Lao, Burmese, Khmer, kana, Han: scripts without spaces, where each letter is a word.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_WORD = rf"[^\W_{_UNSPACED}]+|(?!\W)[{_UNSPACED}]"
_IS_WORD = re.compile(_WORD)
# Tags, entities and how addresses begin are pieces of their own and no words, so that they stay.
_PIECE = re.compile(rf"</?[a-zA-Z!][^<>]*>|&#?\w+;|\w+://|{_WORD}|[\W_]")
_TAG = re.compile(r'(<doc id=")([^"]*)(" url=")([^"]*)(" title=")(.*)(">\s*)')
_ENCODING: Mapping[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}

_PACKED: Mapping[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": zstandard.open,
}
# The levels that take the least time; zstandard's own is quick.
_FAST: Mapping[str, Mapping[str, int]] = {
    ".gz": {"compresslevel": 1},
    ".bz2": {"compresslevel": 1},
    ".xz": {"preset": 0},
}
Replacements = Mapping[str, str]


def count_words(path: Path) -> tuple[Counter[str], int]:
    """How often each word stands in a file, and the file's unpacked size in bytes."""
    pieces: Counter[str] = Counter()
    size = 0
    with _open(path, "rt") as lines:
        for line in lines:
            pieces.update(_PIECE.findall(line))
            size += _byte_size(line)
    return Counter({word: n for word, n in pieces.items() if _IS_WORD.fullmatch(word)}), size


def exchange_windows(words: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Words that may stand for one another, in an order by chance that is always the same.

    Args:
        words: How often each occurs.

    Returns:
        Windows of :data:`WINDOW` words, up to half more or less, of one script, form and length;
        fewer where there are no more of the kind.
    """
    shuffle = random.Random(_SEED).shuffle
    ordered = sorted(words, key=lambda word: (*_kind(word), -words[word], word))
    windows = []
    for _, members in groupby(ordered, key=_kind):
        alike = list(members)
        count = max(1, round(len(alike) / WINDOW))
        for place in range(count):
            window = alike[place * WINDOW : None if place == count - 1 else (place + 1) * WINDOW]
            shuffle(window)
            windows.append(tuple(window))
    return windows


def replacements(windows: Iterable[Sequence[str]], copy: int) -> dict[str, str]:
    """What a copy writes for each word: the one so many places further in its window.

    Two copies differ in every word whose window is longer than the larger number of the two.

    Args:
        windows: See :func:`exchange_windows`.
        copy: Number of the copy; 0 is the corpus itself.
    """
    return {
        word: window[(place + copy) % len(window)]
        for window in windows
        for place, word in enumerate(window)
    }


def salt_files(
    sources: Sequence[Path],
    targets: Sequence[Path],
    windows: Iterable[Sequence[str]],
    copy: int,
) -> int:
    """Writes the copies of files, packed as they are, and returns their unpacked size in bytes.

    The words are in memory, and of the files a line at a time.
    """
    words = replacements(windows, copy)
    size = 0
    for source, target in zip(sources, targets, strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _open(source, "rt") as lines, _open(target, "wt") as copied:
            for line in lines:
                salted = salt_line(line, words, copy)
                copied.write(salted)
                size += _byte_size(salted)
    return size


def copy_beginning(source: Path, target: Path, characters: int) -> int:
    """Writes a file's first lines, packed as it is, and returns their size in bytes.

    Args:
        characters: The lines have at least so many, if the file has.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with _open(source, "rt") as whole, _open(target, "wt") as kept:
        beginning = "".join(whole.readlines(characters))
        kept.write(beginning)
    return _byte_size(beginning)


def salt_line(line: str, words: Replacements, copy: int) -> str:
    """A line's copy; the tags of WikiExtractor stay tags and JSON stays JSON."""
    if line.startswith("<doc "):
        tag = _TAG.fullmatch(line)
        if tag is not None:
            before, name, url, address, middle, title, after = tag.groups()
            name, address = _name(name, copy), _address(address, copy)
            return f"{before}{name}{url}{address}{middle}{_salt(title, words)}{after}"
    if line.startswith("{"):
        try:
            value = json.loads(line)
        except ValueError:
            return _salt(line, words)
        end = line[len(line.rstrip()) :]
        # Half of a surrogate pair can be written as an escape alone.
        is_ascii = line.isascii() or "\\ud" in line
        return json.dumps(_salt_json(value, words, copy), ensure_ascii=is_ascii) + end
    return _salt(line, words)


def _salt(text: str, words: Replacements) -> str:
    pieces = _PIECE.findall(text)
    return "".join(map(words.get, pieces, pieces))


def _salt_json(value: Any, words: Replacements, copy: int, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _salt_json(inner, words, copy, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_salt_json(inner, words, copy, key) for inner in value]
    if not isinstance(value, str):
        return value
    rename = _NAMES.get(key)
    return rename(value, copy) if rename else _salt(value, words)


def _name(name: str, copy: int) -> str:
    """A document's number in a copy; no two documents of all copies share one."""
    return f"{copy}{name:0>10}"


def _address(address: str, copy: int) -> str:
    return f"{address}&copy={copy}"


_NAMES: Mapping[str, Callable[[str, int], str]] = {"id": _name, "url": _address}


def _kind(word: str) -> tuple[Any, ...]:
    """Script, form and length. The name of a letter begins with its script."""
    script = unicodedata.name(word[0], "").partition(" ")[0]
    form = (word.isascii(), word.isdigit(), word.islower(), word.isupper(), word.istitle())
    return (script, *form, len(word))


def _byte_size(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def _open(path: Path, mode: Literal["rt", "wt"]) -> IO[str]:
    suffix = path.suffix.lower()
    level = _FAST.get(suffix, {}) if mode == "wt" else {}
    # `open` knows no levels, and no other suffix has one.
    return cast(IO[str], _PACKED.get(suffix, open)(path, mode, **level, **_ENCODING))
