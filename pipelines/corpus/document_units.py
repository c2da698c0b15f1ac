"""Units that are whole documents: a title with its text, or a piece of a text with the rest of it.

Nobody has asked a question about them yet. A title is the nearest thing to one; where there is
none, words from anywhere in the text stand for it, without which the text has to be recognised
(the inverse cloze task: Lee, Chang and Toutanova, "Latent retrieval for weakly supervised open
domain question answering", ACL 2019). Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from pipelines.corpus.cleaning.rules import clean, clean_lines, single_spaces
from pipelines.corpus.row_units import two_sided_batch
from pipelines.corpus.unit_schema import SCHEMA, hash_of
from pipelines.settings import CorpusSettings

SHORTEST_PIECE, LONGEST_PIECE = 4, 40
"""Words of a piece; it is half of a short text at most."""
_SHORTEST_TEXT = 2 * SHORTEST_PIECE
_TITLED = SCHEMA.get_field_index("titled")
_CHARACTERS = 3
"""That stand for a word where a text has hardly any blanks."""
TOO_FEW_WORDS = "no title and too few words"

Pair = tuple[str | None, str | None, str | None]
"""Anchor, positive, and the reason why a document gives none."""


def document_units(batch: pa.RecordBatch, settings: CorpusSettings) -> Iterator[pa.RecordBatch]:
    """A document's title and its text, or a piece of its text and what is around it."""
    texts = single_spaces(clean_lines(batch["text_0"])).to_pylist()
    # A title stands for the beginning of a document, of which a row may be a later part.
    places = batch["place"].to_pylist()
    of_rows = zip(clean(batch["title"]).to_pylist(), places, strict=True)
    titles = [None if place else title for title, place in of_rows]
    pairs = [
        _pair(title, text, settings.max_characters)
        for title, text in zip(titles, texts, strict=True)
    ]
    units = two_sided_batch(batch, pairs, settings)
    # A document counts once, by its beginning.
    signs = [
        None if place else 1 if title else -1 for title, place in zip(titles, places, strict=True)
    ]
    kept = pa.compute.is_null(units["reason"])
    titled = pa.compute.if_else(kept, pa.array(signs, pa.int64()), None)
    yield units.set_column(_TITLED, SCHEMA.field(_TITLED), titled)


def _pair(title: str | None, text: str | None, most: int) -> Pair:
    if not text or not text.strip():
        return title, text, None
    text = shortened(text, most)
    return (title, text, None) if title else cut_piece(text)


def shortened(text: str, most: int) -> str:
    """The beginning of a text, of no more characters, to the end of a word if there is one."""
    if len(text) <= most:
        return text
    return text[: most + 1].rpartition(" ")[0] or text[:most]


def cut_piece(text: str) -> Pair:
    """A piece of a text and the rest of it, the same whenever it is asked for.

    Args:
        text: With single blanks.
    """
    separator, units = " ", text.split(" ")
    if len(units) < _SHORTEST_TEXT:
        separator = ""
        units = [text[at : at + _CHARACTERS] for at in range(0, len(text), _CHARACTERS)]
    if len(units) < _SHORTEST_TEXT:
        return None, text, TOO_FEW_WORDS
    chance = hash_of(text) & (1 << 62) - 1
    longest = min(LONGEST_PIECE, len(units) // 2)
    chance, length = divmod(chance, longest - SHORTEST_PIECE + 1)
    length += SHORTEST_PIECE
    first = chance % (len(units) - length + 1)
    rest = units[:first] + units[first + length :]
    return separator.join(units[first : first + length]), separator.join(rest), None
