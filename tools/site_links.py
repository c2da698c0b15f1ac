"""Hooks of the site (see mkdocs.yml): a page reads there as it does on GitHub.

A page may link to a file of the repository that is no page, such as a lock. The site lacks these
files, so the hook keeps the link's text alone. Python-Markdown and GitHub differ in two rules of
lists; the hook warns of both, and a warning ends the build.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

# Warnings of MkDocs' own loggers end a strict build.
logger = logging.getLogger("mkdocs.hooks")

_UPWARDS = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)[^)]*\)")
_FENCE = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
# Below an item of a list, Python-Markdown wants four spaces; GitHub also takes two or three.
_SHORT = re.compile(r"(?:(?<=\n\n) {1,3}\S|^ {1,3}(?:[-*+]|\d+\.) ).*", re.MULTILINE)
# GitHub begins a list in the middle of a paragraph, Python-Markdown only behind an empty line.
_LOST = re.compile(r"<(p|li)>(?:(?!</\1>|<[uo]l>).)*?\n *(?:[-*+]|1\.) (.{1,40})", re.DOTALL)


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Return the page without links to files outside the pages, and warn of missing files."""
    source, name = Path(page.file.abs_src_path), page.file.src_path
    pages = Path(str(source).removesuffix(name))
    for short in _SHORT.finditer(_FENCE.sub("", markdown)):
        logger.warning("%s: indent by four spaces: %s", name, short[0].strip()[:40])

    def kept(link: re.Match[str]) -> str:
        target = (source.parent / link[2]).resolve()
        if target.is_relative_to(pages):
            return link[0]
        if not target.exists():
            logger.warning("%s links to %s, which does not exist", name, link[2])
        return link[1]

    return _UPWARDS.sub(kept, markdown)


def on_page_content(html: str, page: Any, **_: object) -> None:
    """Warn of lists that the site shows as running text."""
    for lost in _LOST.finditer(html):
        logger.warning("%s: no empty line before the list: %s", page.file.src_path, lost[2])
