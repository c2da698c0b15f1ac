"""From a piece of a document to paragraphs of prose, with the reason for each that is none.

Paragraphs are separated by blank lines. The lines between are one paragraph where they are
hard-wrapped, as in Project Gutenberg's texts, and a paragraph each where they are not, as in
WikiExtractor's output.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from pipelines.corpus.cleaning import prose
from pipelines.corpus.cleaning.rules import unescape

WIDEST = 120
"""Characters; lines that are longer were not wrapped by hand."""
_WRAPPED_SHARE = 0.8
_ENDED_SHARE = 0.5
_SENTENCE_ENDS = (".", "!", "?", ":", "\u3002")
_HEADING_WORDS = 5
_LONGEST_HEADING = 80
_LONGEST_BOILERPLATE = 400
_MIN_LETTERS = 0.6
_MIN_WORDS = 3
_LOOKED_AT = 200

_BLANK_LINE = re.compile(r"\n[ ]*\n\s*")
_WORD = re.compile(r"[^\W\d_]+")
# ASCII, with a blank for all that is in no word: split, that is several times as fast.
_ONLY_LETTERS = bytes(byte if chr(byte) in string.ascii_letters else 0x20 for byte in range(256))
_NUMBERED = re.compile(
    r"(chapter|book|part|act|scene|canto|volume|section|appendix|letter|stave)\b"
    r"[\s.:]*([ivxlcdm]+|\d+|one|two|three|four|five|six|seven|eight|nine|ten|the \w+)\b",
    re.IGNORECASE,
)
_MARKUP = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|^[|!]|\|-|\|\||__[A-Z]{3,}__|\b(style|colspan|rowspan)\s*="
)
_BOILERPLATE = re.compile(
    r"project gutenberg(™|-tm|'s| ebook| e-?text| license| literary)|\be-?text prepared by"
    r"|transcriber.?s? note|all rights reserved|copyright (©|\(c\)|\d{4})|©\s*\d{4}"
    r"|terms of (use|service)|privacy policy|(accept|consent|use).{0,40}\bcookies\b"
    r"|\bcookies?\b.{0,40}\b(accept|consent|policy|browser)|click here"
    r"|subscribe (to our|now)|sign up (for our|now)|^(jump|skip) to (content|navigation|main)"
    r"|^retrieved from|^category:|^page \d+( of \d+)?\.?$"
    r"|^advertisement\.?$|^(the )?end\.?$|^finis\.?$"
)
# A text without any of these cannot match; looking for them is much cheaper.
_BOILERPLATE_SIGNS = (
    "gutenberg", "text prepared", "transcriber", "rights reserved", "copyright", "©", "terms of",
    "privacy policy", "cookie", "click here", "subscribe", "sign up", " to content",
    " to navigation", " to main", "retrieved from", "category:", "page ", "advertisement", "end",
    "finis",
)  # fmt: skip
_SIGNS = "[(<&*_\\>\uff08"
_MARKUP_SIGNS = "{}[]|!_="
# None of these looks past the next mark of its kind: a line may be megabytes of them.
_REFERENCE = re.compile(r"<ref\b[^<>]*?(/>|>[^<]*</ref>)", re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z][\w-]*(\s[^<>]*)?/?>|<!--[^<]*?-->")
_WIKI_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
_EMPTY_BRACKETS = re.compile(r"[(\uff08\[][\s,;:\u2013-]*[)\uff09\]]")
_EMPHASIS = re.compile(r"(?<![\w*_])(\*{1,3}|_{1,3})(?=\S)([^*_\n]+?)(?<=\S)\1(?![\w*_])")
_LINK = re.compile(r"!?\[([^\[\]\n]*)\]\([^()\s]*(?: \"[^\"]*\")?\)")
_ESCAPED = re.compile(r"\\([\\`*_{}\[\]()#+\-.!>~|])")


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph.

    Attributes:
        text: On one line.
        reason: The rule of :data:`PARAGRAPH_RULES` that drops it, or None.
    """

    text: str
    reason: str | None


def split_paragraphs(piece: str, title: str | None = None) -> Iterator[Paragraph]:
    """The paragraphs of a piece of a document, in order.

    Args:
        piece: Lines as written, cleaned by :func:`~pipelines.corpus.cleaning.rules.clean_lines`.
        title: The title of the document, which is no prose where it stands in the text.
    """
    for block in _BLANK_LINE.split(piece.strip("\n")):
        lines = [line for line in block.split("\n") if line.strip()]
        for paragraph in _join_lines(lines):
            if title is not None and paragraph == title:
                yield Paragraph(paragraph, TITLE_LINE)
                continue
            text = plain(paragraph) if _has_any(paragraph, _SIGNS) else paragraph
            reason = next((name for name, rule in _RULES if rule(text)), None)
            yield Paragraph(text, reason)


def is_hard_wrapped(lines: list[str]) -> bool:
    """Whether lines were broken for their width alone.

    They were if most of them could not have taken the first word of the next line without
    getting longer than the longest, and do not end like a sentence.
    """
    if len(lines) < 2:
        return False
    width = max(map(len, lines))
    if width > WIDEST:
        return False
    full = ended = 0
    for line, following in pairwise(lines):
        word = following.split(None, 1)[0]
        full += len(line.rstrip()) + 1 + len(word) > width
        ended += line.rstrip().endswith(_SENTENCE_ENDS)
    breaks = len(lines) - 1
    return full >= _WRAPPED_SHARE * breaks and ended <= _ENDED_SHARE * breaks


def plain(paragraph: str) -> str:
    """The text without the mark-up of HTML, wikis and Markdown that can be resolved.

    Entities, tags, references, links, emphasis, and brackets that lost what was in them.
    """
    if "&" in paragraph:
        paragraph = unescape(paragraph)
    if "<" in paragraph:
        paragraph = _TAG.sub(" ", _REFERENCE.sub("", paragraph))
    if "[" in paragraph or "(" in paragraph or "\uff08" in paragraph:
        paragraph = _WIKI_LINK.sub(r"\1", _LINK.sub(r"\1", paragraph))
        paragraph = _EMPTY_BRACKETS.sub("", paragraph)
    if "*" in paragraph or "_" in paragraph:
        paragraph = _EMPHASIS.sub(r"\2", paragraph)
    if "\\" in paragraph:
        paragraph = _ESCAPED.sub(r"\1", paragraph)
    return " ".join(paragraph.split()).removeprefix("> ")


def _has_any(text: str, characters: str) -> bool:
    # Much faster than a class of a regular expression, since each search is one of bytes.
    return any(character in text for character in characters)


def _join_lines(lines: list[str]) -> Iterator[str]:
    if is_hard_wrapped(lines):
        yield " ".join(line.strip() for line in lines)
    else:
        yield from map(str.strip, lines)


def _is_symbols(paragraph: str) -> bool:
    return not paragraph[:1].isalnum() and not any(map(str.isalnum, paragraph))


def _is_heading(paragraph: str) -> bool:
    if paragraph[0] == "#" or (paragraph[0] == "=" and paragraph[-1] == "="):
        return True
    if len(paragraph) > _LONGEST_HEADING:
        return False
    if _NUMBERED.match(paragraph):
        return True
    capitals = sum(map(str.isupper, paragraph))
    if 2 * capitals > len(paragraph) and not any(map(str.islower, paragraph)):
        return True
    # "Early life and education.": a heading as WikiExtractor leaves it, or without its full stop.
    return (
        paragraph.count(" ") < _HEADING_WORDS
        and paragraph[0].isupper()
        and paragraph[-1] not in "!?\"'\u201d\u2019\u00bb:;,"
        and "," not in paragraph
    )


def _is_short_list_item(paragraph: str) -> bool:
    return len(paragraph) <= _LONGEST_HEADING and prose.NOT_PROSE["list"]([paragraph])


def _is_markup(paragraph: str) -> bool:
    return _has_any(paragraph, _MARKUP_SIGNS) and _MARKUP.search(paragraph) is not None


def _is_boilerplate(paragraph: str) -> bool:
    # Long prose may well speak of cookies.
    if len(paragraph) > _LONGEST_BOILERPLATE:
        return False
    text = paragraph.lower()
    return any(sign in text for sign in _BOILERPLATE_SIGNS) and bool(_BOILERPLATE.search(text))


def _is_table(paragraph: str) -> bool:
    return prose.NOT_PROSE["table"]([paragraph])


def _is_link(paragraph: str) -> bool:
    return prose.NOT_PROSE["link"]([paragraph])


def _has_few_words(paragraph: str) -> bool:
    paragraph = paragraph[:_LOOKED_AT]
    if paragraph.isascii():
        spaced = paragraph.encode().translate(_ONLY_LETTERS)
        letters, words = len(spaced) - spaced.count(b" "), len(spaced.split())
    else:
        found = _WORD.findall(paragraph)
        letters, words = sum(map(len, found)), len(found)
    if letters < _MIN_LETTERS * (len(paragraph) - paragraph.count(" ")):
        return True
    # Scripts without spaces give few, long words.
    return words < _MIN_WORDS and (paragraph.isascii() or letters < 2 * _MIN_WORDS)


TITLE_LINE = "title line"

PARAGRAPH_RULES: Mapping[str, Callable[[str], bool]] = {
    "line of symbols": _is_symbols,
    "heading": _is_heading,
    "list item": _is_short_list_item,
    "table": _is_table,
    "markup": _is_markup,
    "boilerplate": _is_boilerplate,
    "link": _is_link,
    "few words": _has_few_words,
}
"""Reason, as the funnel has it, to whether it drops a paragraph; the first one counts."""
_RULES = tuple(PARAGRAPH_RULES.items())
