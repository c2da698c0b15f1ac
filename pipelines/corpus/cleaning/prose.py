"""Prose in texts, and the reason why any other part is none.

:func:`split_paragraphs` cuts a piece of a document, Markdown or a wiki's text, into paragraphs at
blank lines. Hard-wrapped lines between them are one paragraph, as in Project Gutenberg's texts.
Other lines are a paragraph each, as in WikiExtractor's output.

:func:`summary_pair` finds the first sentence of a text, such as a docstring, and the prose after
it. It cuts the text into blocks at blank lines, and before each list, field or piece of code. It
ends at the first section of parameters, results or examples.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from pipelines.corpus.cleaning.rules import segment, unescape

NO_PROSE = "no prose"
NOTHING_AFTER = "nothing after the first sentence"
TITLE_LINE = "title line"

_MIN_WORDS = 3
_WORD = re.compile(r"[^\W\d_]+")

# Only abbreviations differ between sentencex's languages; `en` cuts the others well enough.
_LANGUAGE = "en"
_MIN_LETTERS_OF_BLOCK = 0.7
# fmt: off
_SECTIONS = frozenset(
    {
        "args", "arguments", "attribute", "attributes", "call arguments",
        "constructor arguments", "environment variables", "example", "example usage", "examples",
        "fields", "input", "input shape", "inputs", "keyword args",
        "keyword arguments", "kwargs", "members", "methods", "options",
        "other parameters", "output", "output shape", "outputs", "parameter",
        "parameters", "params", "properties", "raise", "raises",
        "receives", "reference", "references", "return", "return value",
        "returns", "see also", "shape", "standalone usage", "todo",
        "type parameters", "usage", "usage example", "usage examples", "warns",
        "yield", "yields",
    }
)
# fmt: on
_UNDERLINE = re.compile(r"([=\-~^\"'#*+])\1{2,}\s*")
_BULLET = re.compile(r"([-*+•]|\d+[.)]|\(?[a-z\d]\))\s+\S")
_FIELD = re.compile(
    r"[:@](param|type|rtype|return|returns|raise|raises|var|ivar|cvar|yield|yields|keyword|kwarg"
    r"|arg|since|meta)\w*\b|[*`]*[\w.]+[*`]* ?(\(.*\))? ?: ?(\w|\(|`|\{|$)"
)
_HEADING = re.compile(r"#{1,6}\s|=+ .* =+$")
_TABLE = re.compile(r"\|.*\||\+[-=+]{3,}|[=-]{3,}\s+[=-]{3,}|[┌├└│╞]")
_CODE = re.compile(
    r"[\w.]+\(.*\)\s*(->.*)?$|(from \S+ )?import \w|(def|class|if|for|while|with|elif) .*:$"
    r"|return \S+$|[\w.\[\], ]+ [-+*/|&]?= \S|@\w|\$ |% |<\/?\w[^>]*>$|[{}\[\]();]+$|.*[;{]$"
)
_LINK = re.compile(r"(see |cf\.? |from )?<?\w+://\S+$", re.IGNORECASE)
_FENCE = re.compile(r"(```|~~~)")
_LIST_START = re.compile(r">>> ?|\.\. |:\w[^:`]*:(?!`)|@\w+ ")

# A role (`:class:`) is read once, from the start of its run of letters and colons; the replacement
# puts the part of the run before it back.
_ROLE = r"(?<![\w:+-])([\w+-]*+):[\w:+-]{2,}+(?<=:)"
_INLINE_MARKUP: Sequence[tuple[re.Pattern[str], str]] = (
    # :class:`Title <target>` and `Title <target>`_, then :meth:`~a.b.c`, then ``code``.
    (re.compile(rf"(?:{_ROLE})?`([^`<>]*[^`<>\s])\s*<[^`<>]+>`_{{0,2}}"), r"\1\2"),
    (re.compile(rf"{_ROLE}`~(?:[\w.]*\.)?(\w+)`"), r"\1\2"),
    (re.compile(rf"{_ROLE}`!?([^`]*)`"), r"\1\2"),
    (re.compile(r"``?([^`]+)``?_{0,2}"), r"\1"),
    # ![picture](target) and [title](target).
    (re.compile(r"!?\[([^\[\]]+)\]\([^()\s]*\)"), r"\1"),
    # Emphasis: **word**, *word*.
    (re.compile(r"(?<![\w*])(\*{1,2})(?=\S)([^*]+?)(?<=\S)\1(?![\w*])"), r"\2"),
    # Footnote references: [1]_.
    (re.compile(r"(?<!\s)\s*\[#?\w+\]_"), ""),
)

# For paragraphs.
_WIDEST = 120  # characters; longer lines were not wrapped by hand
_WRAPPED_SHARE = 0.8
_ENDED_SHARE = 0.5
_SENTENCE_ENDS = (".", "!", "?", ":", "\u3002")
_HEADING_WORDS = 5
_LONGEST_HEADING = 80
_LONGEST_BOILERPLATE = 400
_MIN_LETTERS_OF_PARAGRAPH = 0.6
_LOOKED_AT = 200

_BLANK_LINE = re.compile(r"\n[ ]*\n\s*")
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
_MARKDOWN_LINK = re.compile(r"!?\[([^\[\]\n]*)\]\([^()\s]*(?: \"[^\"]*\")?\)")
_ESCAPED = re.compile(r"\\([\\`*_{}\[\]()#+\-.!>~|])")


Block = Sequence[str]
"""Lines as they were written, one at least."""


def _begins(pattern: str) -> Callable[[Block], bool]:
    match = re.compile(pattern).match
    return lambda lines: match(lines[0].lstrip()) is not None


def _is_field(lines: Block) -> bool:
    # `Note: this is prose` begins with a capital; `axis : int` is followed by indented text.
    first = lines[0].lstrip()
    return _FIELD.match(first) is not None and (
        first[0] in ":@" or any(line.startswith("  ") for line in lines[1:])
    )


def _is_heading(lines: Block) -> bool:
    return (
        _HEADING.match(lines[0]) is not None
        or _UNDERLINE.fullmatch(lines[0]) is not None
        or (len(lines) > 1 and _UNDERLINE.fullmatch(lines[1].strip()) is not None)
    )


def _is_table(lines: Block) -> bool:
    return any(_TABLE.match(line.lstrip()) for line in lines)


def _is_code(lines: Block) -> bool:
    if _FENCE.match(lines[0].lstrip()):
        return True
    return _CODE.match(lines[0].strip()) is not None and _CODE.match(lines[-1].strip()) is not None


def _is_link(lines: Block) -> bool:
    return _LINK.match(" ".join(lines).strip()) is not None


def _has_few_words(lines: Block) -> bool:
    text = "".join(lines)
    letters = sum(map(len, _WORD.findall(text)))
    visible = len("".join(text.split()))
    return letters < _MIN_LETTERS_OF_BLOCK * visible or not _is_wordy(" ".join(lines))


def _is_wordy(text: str) -> bool:
    words = _WORD.findall(text)
    # Scripts without spaces give few, long words.
    return len(words) >= _MIN_WORDS or any(ord(word[0]) > 0x2E7F for word in words)


_is_list = _begins(_BULLET.pattern)
NOT_PROSE: Mapping[str, Callable[[Block], bool]] = {
    "doctest": _begins(r">>>|\.\.\. |In \["),
    "indented": lambda lines: lines[0].startswith("  "),
    "directive": _begins(r"\.\.(\s|$)|:\w+:($|\s)|!!! |#[!:]|<!--|\{%"),
    "heading": _is_heading,
    "list": _is_list,
    "field": _is_field,
    "table": _is_table,
    "code": _is_code,
    "link": _is_link,
    "few words": _has_few_words,
}
"""The rules that find a block to be no prose, by name."""


def not_prose(block: Block) -> str | None:
    """Return the first rule of :data:`NOT_PROSE` that a block breaks, or None."""
    return next((name for name, rule in NOT_PROSE.items() if rule(block)), None)


def summary_pair(text: str) -> tuple[str | None, str | None, str | None]:
    """Return the first sentence and the rest of its block, or else the next prose; or a reason.

    The third value is None, or the reason for no pair; the others are then None. `text` has its
    lines as written, cleaned by :func:`.rules.clean_lines`.
    """
    sentence: str | None = None
    for block in blocks(text):
        first = block[0].strip().strip("*#:= ").lower()
        if first in _SECTIONS and (
            len(block) == 1 or block[0].rstrip().endswith((":", "**")) or _is_heading(block)
        ):
            break
        if not_prose(block):
            continue
        sentences = _sentences(plain_markup(" ".join(line.strip() for line in block)))
        if sentence is None:
            if not sentences or not _is_wordy(sentences[0]):
                continue
            sentence, *sentences = sentences
        following = " ".join(sentences)
        if _is_wordy(following):
            return sentence, following, None
    return None, None, NO_PROSE if sentence is None else NOTHING_AFTER


def blocks(text: str) -> Iterator[Block]:
    """Yield blocks of lines; one ends at a blank line, or before a list, field or code."""
    block: list[str] = []
    fenced = False
    lines = text.split("\n")
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        fence = _FENCE.match(line.lstrip()) is not None
        starts = fence or (not fenced and (not line.strip() or _starts_block(line, following)))
        if starts and block and not (fenced and fence):
            yield block
            block = []
        if line.strip():
            block.append(line)
        if fence and fenced:
            yield block
            block = []
        fenced = fenced != fence
    if block:
        yield block


def plain_markup(text: str) -> str:
    """Resolve the inline markup of reStructuredText and Markdown to its words."""
    for pattern, replacement in _INLINE_MARKUP:
        text = pattern.sub(replacement, text)
    return text


def _starts_block(line: str, following: str) -> bool:
    stripped = line.lstrip()
    if _UNDERLINE.fullmatch(following.strip()) and not _UNDERLINE.fullmatch(stripped):
        return True
    if _LIST_START.match(stripped) or _BULLET.match(stripped) or _HEADING.match(stripped):
        return True
    name = stripped.rstrip().strip("*")
    return name.endswith(":") and name.rstrip(": ").lower() in _SECTIONS


def _sentences(text: str) -> list[str]:
    """Return the sentences, without a last one that only introduces a list or code."""
    found: list[list[str]] = []
    inside_name = False
    for piece in segment(_LANGUAGE, text):
        # No sentence ends at the full stop of `nn.Module`, which no space follows.
        if inside_name:
            found[-1].append(piece)
        else:
            found.append([piece])
        inside_name = piece.endswith((".", "!", "?"))
    sentences = [sentence for parts in found if (sentence := "".join(parts).strip())]
    while sentences and sentences[-1].endswith(":"):
        sentences.pop()
    return sentences


def split_paragraphs(piece: str, title: str | None = None) -> Iterator[tuple[str, str | None]]:
    """Yield the paragraphs of a piece of a document in order, each on one line.

    With each comes the rule of :data:`PARAGRAPH_RULES` that drops it, or None. The lines of
    `piece` come from :func:`.rules.clean_lines`; the title in the text is no prose.
    """
    for block in _BLANK_LINE.split(piece.strip("\n")):
        lines = [line for line in block.split("\n") if line.strip()]
        stripped = [line.strip() for line in lines]
        for paragraph in [" ".join(stripped)] if is_hard_wrapped(lines) else stripped:
            if title is not None and paragraph == title:
                yield paragraph, TITLE_LINE
                continue
            text = plain(paragraph) if _has_any(paragraph, _SIGNS) else paragraph
            yield text, next((name for name, rule in _RULES if rule(text)), None)


def is_hard_wrapped(lines: list[str]) -> bool:
    """Return whether lines were broken for their width alone.

    They were if most of them could not have taken the first word of the next line without
    getting longer than the longest, and do not end like a sentence.
    """
    if len(lines) < 2:
        return False
    width = max(map(len, lines))
    if width > _WIDEST:
        return False
    full = ended = 0
    for line, following in pairwise(lines):
        word = following.split(None, 1)[0]
        full += len(line.rstrip()) + 1 + len(word) > width
        ended += line.rstrip().endswith(_SENTENCE_ENDS)
    breaks = len(lines) - 1
    return full >= _WRAPPED_SHARE * breaks and ended <= _ENDED_SHARE * breaks


def plain(paragraph: str) -> str:
    """Return a text without the simple mark-up of HTML, wikis and Markdown.

    It resolves entities, tags, references, links, emphasis, and brackets without content.
    """
    if "&" in paragraph:
        paragraph = unescape(paragraph)
    if "<" in paragraph:
        paragraph = _TAG.sub(" ", _REFERENCE.sub("", paragraph))
    if "[" in paragraph or "(" in paragraph or "\uff08" in paragraph:
        paragraph = _WIKI_LINK.sub(r"\1", _MARKDOWN_LINK.sub(r"\1", paragraph))
        paragraph = _EMPTY_BRACKETS.sub("", paragraph)
    if "*" in paragraph or "_" in paragraph:
        paragraph = _EMPHASIS.sub(r"\2", paragraph)
    if "\\" in paragraph:
        paragraph = _ESCAPED.sub(r"\1", paragraph)
    return " ".join(paragraph.split()).removeprefix("> ")


def _has_any(text: str, parts: Iterable[str]) -> bool:
    # Much faster than a class of a regular expression, since each search is one of bytes. A
    # generator for `any` would take longer than the searches.
    for part in parts:  # noqa: SIM110
        if part in text:
            return True
    return False


def _is_heading_line(paragraph: str) -> bool:
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


def _is_boilerplate(paragraph: str) -> bool:
    # Long prose may well speak of cookies.
    if len(paragraph) > _LONGEST_BOILERPLATE:
        return False
    text = paragraph.lower()
    return _has_any(text, _BOILERPLATE_SIGNS) and _BOILERPLATE.search(text) is not None


def _has_few_words_in_line(paragraph: str) -> bool:
    paragraph = paragraph[:_LOOKED_AT]
    if paragraph.isascii():
        spaced = paragraph.encode().translate(_ONLY_LETTERS)
        letters, words = len(spaced) - spaced.count(b" "), len(spaced.split())
    else:
        found = _WORD.findall(paragraph)
        letters, words = sum(map(len, found)), len(found)
    if letters < _MIN_LETTERS_OF_PARAGRAPH * (len(paragraph) - paragraph.count(" ")):
        return True
    # Scripts without spaces give few, long words.
    return words < _MIN_WORDS and (paragraph.isascii() or letters < 2 * _MIN_WORDS)


PARAGRAPH_RULES: Mapping[str, Callable[[str], bool]] = {
    "line of symbols": lambda text: not text[:1].isalnum() and not any(map(str.isalnum, text)),
    "heading": _is_heading_line,
    "list item": lambda text: len(text) <= _LONGEST_HEADING and _is_list([text]),
    "table": lambda text: _is_table([text]),
    "markup": lambda text: _has_any(text, _MARKUP_SIGNS) and _MARKUP.search(text) is not None,
    "boilerplate": _is_boilerplate,
    "link": lambda text: _is_link([text]),
    "few words": _has_few_words_in_line,
}
"""The rules that drop a paragraph, by their reasons in the funnel; the first one counts."""
_RULES = tuple(PARAGRAPH_RULES.items())
