"""Cleaning of texts, and the named rules that drop one.

The cleaning is Arrow compute over whole batches; the rules are Spark SQL columns.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.settings import CorpusSettings

if TYPE_CHECKING:
    from pyspark.sql import Column

# Control characters but for the white ones, the byte order mark and the soft hyphen. The other
# format characters stay: emoji and several scripts need them.
_INVISIBLE = r"[\x00-\x08\x0E-\x1F\x7F-\x84\x86-\x9F\x{AD}\x{FEFF}]+"
_WHITE = r"[\s\x0B\x{85}\p{Z}]+"
_LINE_END = r"\r\n?|[\x0B\x0C\x{85}\x{2028}\x{2029}]"


def remove_invisible(texts: pa.Array) -> pa.Array:
    """Takes control characters out, the white ones excepted."""
    return pc.replace_substring_regex(texts, _INVISIBLE, "")


def compose(texts: pa.Array) -> pa.Array:
    """Unicode normal form C: an accent and its letter become one character.

    Arrow's own `utf8_normalize` decomposes whatever form it is asked for (apache/arrow#51225), so
    the texts that are not ASCII go through Python's.
    """
    other = pc.fill_null(pc.invert(pc.string_is_ascii(texts)), False)
    if not pc.any(other).as_py():
        return texts
    composed = [unicodedata.normalize("NFC", text) for text in texts.filter(other).to_pylist()]
    return pc.replace_with_mask(texts, other, pa.array(composed, texts.type))


def single_spaces(texts: pa.Array) -> pa.Array:
    """Any run of white space, line ends included, becomes one space; none at the ends."""
    return pc.utf8_trim(pc.replace_substring_regex(texts, _WHITE, " "), characters=" ")


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


def _missing(text: Column, settings: CorpusSettings) -> Column:
    return text.isNull()


def _empty(text: Column, settings: CorpusSettings) -> Column:
    return text == ""


def _broken(text: Column, settings: CorpusSettings) -> Column:
    return text.contains("\ufffd")


def _no_letters(text: Column, settings: CorpusSettings) -> Column:
    return ~text.rlike(r"\p{L}")


def _too_short(text: Column, settings: CorpusSettings) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    return F.length(text) < settings.min_characters


def _too_long(text: Column, settings: CorpusSettings) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.length(text) > settings.max_characters


def text_key(text: Column) -> Column:
    """What two texts share that count as the same: their letters and digits, in lower case.

    A text without any is its own key. The key is an `xxhash64`; null gives null.
    """
    from pyspark.sql import functions as F  # noqa: N812

    letters = F.regexp_replace(F.lower(text), r"[^\p{L}\p{N}]", "")
    key = F.xxhash64(F.when(letters == "", text).otherwise(letters))
    return F.when(text.isNotNull(), key)


TEXT_RULES: Mapping[str, Callable[[Column, CorpusSettings], Column]] = {
    "no text": _missing,
    "empty text": _empty,
    "not UTF-8": _broken,
    "no letter in it": _no_letters,
    "too short": _too_short,
    "too long": _too_long,
}
"""Reason, as the funnel has it, to the condition under which a cleaned text is dropped."""


def text_reason(reason: Column, sides: Sequence[Column], settings: CorpusSettings) -> Column:
    """The first rule that drops a row, or null.

    Args:
        reason: The reason so far; it stays where there is one.
        sides: The cleaned texts of the row.
        settings: Holds the limits.
    """
    from pyspark.sql import functions as F  # noqa: N812

    rules = [
        F.when(condition(side, settings), name)
        for name, condition in TEXT_RULES.items()
        for side in sides
    ]
    return F.coalesce(reason, *rules)
