"""Measures the English of pages, and of docstrings.

    python tools/prose.py                       a line for README.md and each folder of docs
    python tools/prose.py PATH...               a line for each page, or for each package of Python
    python tools/prose.py --worst 20 PATH...    the sentences to rewrite first

It counts sentences of running text: no code, tables, headings or addresses. The figures are rough.
They show the habit of a page, not the fault of a single sentence.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONG = 30

_BREAK = re.compile(r"(?<=[.!?:])\s+(?=[A-Z\"'(])")
_RELATIVE = re.compile(r"\b(?:that|which|whose|those|what|where|whatever|whoever)\b", re.IGNORECASE)
_IRREGULAR = (
    r"begun|built|cut|drawn|found|given|held|kept|known|left|made|put|read|seen|taken|told|written"
)
_PASSIVE = re.compile(
    rf"\b(?:am|are|be|been|being|is|was|were)\s+(?:\w+ly\s+)?(?:\w+ed|{_IRREGULAR})\b"
)
_ADDRESS = re.compile(r"\byour?s?\b", re.IGNORECASE)
_IMPERATIVE = re.compile(
    r"(?:Add|Ask|Avoid|Call|Check|Choose|Compare|Copy|Create|Delete|Do|Embed|Export|Fix|Give|Import"
    r"|Include|Install|Keep|Leave|Let|List|Load|Look|Lower|Make|Measure|Mount|Move|Name|Note|Open"
    r"|Pack|Pass|Pick|Point|Prefer|Prepare|Put|Raise|Read|Remove|Replace|Run|Save|See|Set|Start"
    r"|Submit|Take|To|Train|Try|Upload|Use|Write)\b"
)
_CODE, _LINK = re.compile(r"(`+).+?\1"), re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_BLOCKS = re.compile(r"^( *)```.*?^\1```|<!--.*?-->", re.DOTALL | re.MULTILINE)
_ITEM = re.compile(r"\s*(?:[-*+]|\d+\.)\s+")
_NOT_TEXT = ("|", "#", "!", ">>>")
_SECTIONS = re.compile(r"^\s*(?:Args|Attributes|Raises|Returns|Yields):\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Figures:
    """Means and shares over sentences.

    Attributes:
        words: In a sentence.
        long: Share of the sentences over 30 words.
        commas: In a sentence.
        relative: Words like "that" and "which" in a sentence.
        passive: Share of the sentences with a passive.
        address: Share of those with "you".
        imperative: Share of those that begin with an imperative.
    """

    words: float
    long: float
    commas: float
    relative: float
    passive: float
    address: float
    imperative: float

    def __str__(self) -> str:
        return "  ".join(f"{one.name} {getattr(self, one.name):.2f}" for one in fields(self))


def figures(sentences: Sequence[str]) -> Figures:
    """Measure sentences, of which there is at least one."""
    lengths = [len(sentence.split()) for sentence in sentences]

    def mean(counts: Iterator[int]) -> float:
        return sum(counts) / len(sentences)

    return Figures(
        words=mean(iter(lengths)),
        long=mean(length > LONG for length in lengths),
        commas=mean(sentence.count(",") for sentence in sentences),
        relative=mean(len(_RELATIVE.findall(sentence)) for sentence in sentences),
        passive=mean(_PASSIVE.search(sentence) is not None for sentence in sentences),
        address=mean(_ADDRESS.search(sentence) is not None for sentence in sentences),
        imperative=mean(_IMPERATIVE.match(sentence) is not None for sentence in sentences),
    )


def sentences(markdown: str) -> list[str]:
    """Return the sentences of running text, with CODE in place of code."""
    found = []
    for paragraph in _paragraphs(_BLOCKS.sub("", markdown)):
        text = _LINK.sub(r"\1", _CODE.sub("CODE", paragraph)).replace("**", "")
        found += [one for one in _BREAK.split(text) if len(one.split()) > 2]
    return found


def _paragraphs(markdown: str) -> Iterator[str]:
    """Yield paragraphs and items of lists, each as one line."""
    lines: list[str] = []
    for line in [*markdown.splitlines(), ""]:
        item = _ITEM.match(line)
        text = line[item.end() :] if item else line.strip().removeprefix("> ")
        is_code = line.startswith("    ") and not item and not lines
        ends = not text or text.startswith(_NOT_TEXT) or is_code
        if lines and (ends or item):
            yield " ".join(lines)
            lines = []
        if not ends:
            lines.append(text)


def docstrings(source: str) -> list[str]:
    """Return the sentences of a module's docstrings."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))
    texts = (ast.get_docstring(node) or "" for node in nodes)
    return [one for text in texts for one in sentences(_SECTIONS.sub("", text))]


def worst(sentences: Sequence[str], number: int) -> list[str]:
    """Return the sentences that a rewrite improves the most."""

    def weight(sentence: str) -> float:
        relative, passive = len(_RELATIVE.findall(sentence)), _PASSIVE.search(sentence) is not None
        return len(sentence.split()) / 15 + sentence.count(",") / 2 + 2 * relative + passive

    return sorted(sentences, key=weight, reverse=True)[:number]


def kinds() -> dict[str, list[Path]]:
    """Return the pages by kind: README.md, and each folder of docs."""
    docs = ROOT / "docs"
    folders = sorted(path for path in docs.iterdir() if path.is_dir())
    pages = {folder.name: sorted(folder.glob("*.md")) for folder in folders}
    return {"front": [ROOT / "README.md", *sorted(docs.glob("*.md"))]} | pages


def _read(path: Path) -> dict[str, list[str]]:
    if path.is_dir():
        found: dict[str, list[str]] = {}
        for module in sorted(path.rglob("*.py")):
            found.setdefault(str(module.parent), []).extend(docstrings(module.read_text("utf-8")))
        return found
    read = docstrings if path.suffix == ".py" else sentences
    return {str(path): read(path.read_text("utf-8"))}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print figures, or the worst sentences."""
    parser = argparse.ArgumentParser(description="Measures the English of pages and docstrings.")
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--worst", type=int, metavar="N", help="print N sentences instead")
    asked = parser.parse_args(arguments)
    if asked.paths:
        groups = {name: found for path in asked.paths for name, found in _read(path).items()}
    else:
        groups = {
            kind: [one for page in pages for one in sentences(page.read_text("utf-8"))]
            for kind, pages in kinds().items()
        }
    together = [one for found in groups.values() for one in found]
    if asked.worst:
        print(*(f"- {one}" for one in worst(together, asked.worst)), sep="\n")
        return 0
    groups = {name: found for name, found in groups.items() if found} | {"all": together}
    width = max(map(len, groups))
    for name, found in groups.items():
        print(f"{name.ljust(width)}  {len(found):6,} sentences  {figures(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
