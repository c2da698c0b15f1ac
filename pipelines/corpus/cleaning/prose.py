"""The first sentence of a text, and the prose that follows it.

A text is cut into paragraphs at blank lines, and wherever something that is not prose begins
(a list, a field, a code block). Named rules then say which paragraphs are no prose; the reading
ends at the first section of parameters, results or examples.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipelines.corpus.cleaning.rules import segment

NO_PROSE = "no prose"
NOTHING_AFTER = "nothing after the first sentence"

# Only abbreviations differ between sentencex's languages; `en` cuts the others well enough.
_LANGUAGE = "en"
_MIN_WORDS = 3
_MIN_LETTERS = 0.7
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
_DIRECTIVE = re.compile(r"\.\.(\s|$)|:\w+:($|\s)|!!! |#[!:]|<!--|\{%")
_HEADING = re.compile(r"#{1,6}\s|=+ .* =+$")
_TABLE = re.compile(r"\|.*\||\+[-=+]{3,}|[=-]{3,}\s+[=-]{3,}|[┌├└│╞]")
_CODE = re.compile(
    r"[\w.]+\(.*\)\s*(->.*)?$|(from \S+ )?import \w|(def|class|if|for|while|with|elif) .*:$"
    r"|return \S+$|[\w.\[\], ]+ [-+*/|&]?= \S|@\w|\$ |% |<\/?\w[^>]*>$|[{}\[\]();]+$|.*[;{]$"
)
_LINK = re.compile(r"(see |cf\.? |from )?<?\w+://\S+$", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+")
_FENCE = re.compile(r"(```|~~~)")
_LIST_START = re.compile(r">>> ?|\.\. |:\w[^:`]*:(?!`)|@\w+ ")


@dataclass(frozen=True)
class SummaryPair:
    """A sentence and what follows it, or the reason why there are none.

    Attributes:
        sentence: The first sentence of the text.
        paragraph: The prose after it.
        reason: Null where there are both.
    """

    sentence: str | None
    paragraph: str | None
    reason: str | None


Paragraph = Sequence[str]


def _is_doctest(lines: Paragraph) -> bool:
    return lines[0].lstrip().startswith((">>>", "... ", "In ["))


def _is_indented(lines: Paragraph) -> bool:
    return lines[0].startswith("  ")


def _is_directive(lines: Paragraph) -> bool:
    return _DIRECTIVE.match(lines[0].lstrip()) is not None


def _is_list(lines: Paragraph) -> bool:
    return _BULLET.match(lines[0].lstrip()) is not None


def _is_field(lines: Paragraph) -> bool:
    # `Note: this is prose` begins with a capital; `axis : int` is followed by indented text.
    matches = _FIELD.match(lines[0].lstrip()) is not None
    return matches and (lines[0].lstrip()[0] in ":@" or any(map(_is_deeper, lines[1:])))


def _is_deeper(line: str) -> bool:
    return line.startswith("  ")


def _is_heading(lines: Paragraph) -> bool:
    return (
        _HEADING.match(lines[0]) is not None
        or _UNDERLINE.fullmatch(lines[0]) is not None
        or (len(lines) > 1 and _UNDERLINE.fullmatch(lines[1].strip()) is not None)
    )


def _is_table(lines: Paragraph) -> bool:
    return any(_TABLE.match(line.lstrip()) for line in lines)


def _is_code(lines: Paragraph) -> bool:
    if _FENCE.match(lines[0].lstrip()):
        return True
    return _CODE.match(lines[0].strip()) is not None and _CODE.match(lines[-1].strip()) is not None


def _is_link(lines: Paragraph) -> bool:
    return _LINK.match(" ".join(lines).strip()) is not None


def _has_few_words(lines: Paragraph) -> bool:
    text = "".join(lines)
    letters = sum(map(len, _WORD.findall(text)))
    visible = len("".join(text.split()))
    return letters < _MIN_LETTERS * visible or not _is_wordy(" ".join(lines))


def _is_wordy(text: str) -> bool:
    words = _WORD.findall(text)
    # Scripts without spaces give few, long words.
    return len(words) >= _MIN_WORDS or any(ord(word[0]) > 0x2E7F for word in words)


NOT_PROSE: Mapping[str, Callable[[Paragraph], bool]] = {
    "doctest": _is_doctest,
    "indented": _is_indented,
    "directive": _is_directive,
    "heading": _is_heading,
    "list": _is_list,
    "field": _is_field,
    "table": _is_table,
    "code": _is_code,
    "link": _is_link,
    "few words": _has_few_words,
}
"""Name of a rule to whether it finds that a paragraph is no prose."""


def not_prose(paragraph: Paragraph) -> str | None:
    """The first rule of :data:`NOT_PROSE` that a paragraph breaks, or None."""
    return next((name for name, rule in NOT_PROSE.items() if rule(paragraph)), None)


def summary_pair(text: str) -> SummaryPair:
    """The first sentence, with the rest of its paragraph or else the next prose.

    Args:
        text: Lines as they were written, cleaned by
            :func:`~pipelines.corpus.cleaning.rules.clean_lines`.
    """
    sentence: str | None = None
    for paragraph in paragraphs(text):
        if _ends_reading(paragraph):
            break
        if not_prose(paragraph):
            continue
        sentences = _sentences(plain_markup(" ".join(line.strip() for line in paragraph)))
        if sentence is None:
            if not sentences or not _is_wordy(sentences[0]):
                continue
            sentence, *sentences = sentences
        following = " ".join(sentences)
        if _is_wordy(following):
            return SummaryPair(sentence, following, None)
    return SummaryPair(None, None, NO_PROSE if sentence is None else NOTHING_AFTER)


def paragraphs(text: str) -> Iterator[Paragraph]:
    """Blocks of lines; one ends at a blank line or where a list, field or code begins."""
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
    """Resolves the inline markup of reStructuredText and Markdown to the words in it."""
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return text


# A role (`:class:`) is read once, from where its run of letters and colons begins, and what stands
# in the run before it is put back.
_ROLE = r"(?<![\w:+-])([\w+-]*+):[\w:+-]{2,}+(?<=:)"
_MARKUP: Sequence[tuple[re.Pattern[str], str]] = (
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


def _ends_reading(paragraph: Paragraph) -> bool:
    first = paragraph[0].strip().strip("*#:= ").lower()
    alone = paragraph[0].rstrip().endswith((":", "**")) or _is_heading(paragraph)
    return first in _SECTIONS and (alone or len(paragraph) == 1)


def _starts_block(line: str, following: str) -> bool:
    stripped = line.lstrip()
    if _UNDERLINE.fullmatch(following.strip()) and not _UNDERLINE.fullmatch(stripped):
        return True
    if _LIST_START.match(stripped) or _BULLET.match(stripped) or _HEADING.match(stripped):
        return True
    name = stripped.rstrip().strip("*")
    return name.endswith(":") and name.rstrip(": ").lower() in _SECTIONS


def _sentences(text: str) -> list[str]:
    """Sentences, without a last one that only introduces what is not prose."""
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
