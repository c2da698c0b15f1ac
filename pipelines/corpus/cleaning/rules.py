"""Cleaning of texts, and the named rules that drop one.

Both are Arrow compute over whole batches, and run on the executors.
"""

from __future__ import annotations

import html
import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.corpus.cleaning.languages import UNKNOWN, identify
from pipelines.corpus.cleaning.text_bytes import counts_before, table_of, text_bytes
from pipelines.settings import CorpusSettings

# Control characters but for the white ones, the byte order mark and the soft hyphen. The other
# format characters stay: emoji and several scripts need them.
_INVISIBLE = r"[\x00-\x08\x0E-\x1F\x7F-\x84\x86-\x9F\x{AD}\x{FEFF}]+"
_WHITE = r"[\s\x0B\x{85}\p{Z}]+"
# What _WHITE changes: any white space but a single blank. To find that none does takes a fraction
# of the time in which every blank is replaced by itself.
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
_IS_SYMBOL = ~table_of((string.ascii_letters + string.digits + "\t\n\f\r ").encode())
_REPLACEMENT = "\ufffd"
_LINE_END = r"\r\n?|[\x0B\x0C\x{85}\x{2028}\x{2029}]"


def unescape(text: str) -> str:
    """As :func:`html.unescape` has it, and U+FFFD for a number of a thousand digits."""
    return html.unescape(_NO_CHARACTER.sub(_REPLACEMENT, text))


def remove_invisible(texts: pa.Array) -> pa.Array:
    """Takes control characters out, the white ones excepted."""
    return pc.replace_substring_regex(texts, _INVISIBLE, "")


def compose(texts: pa.Array) -> pa.Array:
    """Unicode normal form C: an accent and its letter become one character.

    Arrow's own `utf8_normalize` decomposes whatever form it is asked for (apache/arrow#51225), so
    the texts that are not ASCII go through Python's. A text with more than 30 marks on one letter
    stays as it is.
    """
    other = pc.fill_null(pc.invert(pc.string_is_ascii(texts)), False)
    return _replaced(texts, other, _composed)


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
    """The texts, those of the mask changed."""
    if not pc.any(mask).as_py():
        return texts
    return pc.replace_with_mask(texts, mask, change(texts.filter(mask)))


def single_spaces(texts: pa.Array) -> pa.Array:
    """Any run of white space, line ends included, becomes one space; none at the ends."""
    is_uneven = pc.fill_null(pc.match_substring_regex(texts, _UNEVEN), False)
    return pc.utf8_trim(_replaced(texts, is_uneven, _with_single_blanks), characters=" ")


def _with_single_blanks(texts: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(texts, _WHITE, " ")


def unix_lines(texts: pa.Array) -> pa.Array:
    """Every kind of line end becomes a line feed, a tab four spaces; the rest stays."""
    lines = pc.replace_substring_regex(texts, _LINE_END, "\n")
    return pc.replace_substring(lines, "\t", "    ")


def clean(texts: pa.Array) -> pa.Array:
    """A text for the encoder: composed, nothing invisible, single spaces. Null stays null."""
    return single_spaces(compose(remove_invisible(texts)))


def clean_lines(texts: pa.Array) -> pa.Array:
    """A text whose lines and indentation still matter. Null stays null."""
    return unix_lines(compose(remove_invisible(texts)))


def clean_batches(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Cleans the named columns. Runs on an executor."""
    for batch in batches:
        arrays = [
            clean(array) if name in columns else array
            for name, array in zip(batch.schema.names, batch.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _missing(texts: pa.Array, settings: CorpusSettings) -> pa.Array:
    return pc.is_null(texts)


def _empty(texts: pa.Array, settings: CorpusSettings) -> pa.Array:
    return pc.equal(texts, "")


def _broken(texts: pa.Array, settings: CorpusSettings) -> pa.Array:
    return pc.match_substring(texts, "\ufffd")


def _no_letters(texts: pa.Array, settings: CorpusSettings) -> pa.Array:
    return pc.invert(pc.match_substring_regex(texts, r"\p{L}"))


def _too_short(texts: pa.Array, settings: CorpusSettings) -> pa.Array:
    return pc.less(pc.utf8_length(texts), settings.min_characters)


def _too_long(texts: pa.Array, settings: CorpusSettings) -> pa.Array:
    return pc.greater(pc.utf8_length(texts), settings.max_characters)


def _symbols(texts: pa.Array, settings: CorpusSettings) -> pa.Array:
    others = np.diff(counts_before(*text_bytes(texts), _IS_SYMBOL)).astype(np.int32)
    is_other = pc.fill_null(pc.invert(pc.string_is_ascii(texts)), False)
    counted = _replaced(pa.array(others), is_other, lambda _: _symbols_of(texts.filter(is_other)))
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
    """Share of the words that stand in a three-word sequence which the text has before.

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
    "no text": _missing,
    "empty text": _empty,
    "not UTF-8": _broken,
    "no letter in it": _no_letters,
    TOO_SHORT: _too_short,
    "too long": _too_long,
    "too many symbols": _symbols,
    "repeats itself": _repeated,
    OTHER_LANGUAGE: _other_language,
}
"""Reason, as the funnel has it, to the rule that drops a cleaned text."""


def text_reasons(
    reasons: pa.Array,
    sides: Sequence[pa.Array],
    settings: CorpusSettings,
    rules: Mapping[str, TextRule] = TEXT_RULES,
) -> pa.Array:
    """The first rule that drops each row, or null. Runs on an executor.

    Args:
        reasons: The reasons so far; one stays where there is one.
        sides: The cleaned texts of the rows, a column each.
        rules: What is asked.
    """
    for name, rule in rules.items():
        for side in sides:
            broken = pc.and_(pc.fill_null(rule(side, settings), False), pc.is_null(reasons))
            reasons = pc.if_else(broken, name, reasons)
    return reasons
