"""What stands on a page, for tests."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "br", "img", "input", "link", "hr", "wbr"}


class Reader(HTMLParser):
    """Collects text, headings and addresses, and checks that elements nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.words: list[str] = []
        self.headings: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name in ("src", "href", "xlink:href", "action"):
                self.addresses.append(value)
            if name == "id":
                self.ids.append(value)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if self.open and self.open[-1] == "h2" and data.strip():
            self.headings.append(data.strip())
        self.words.append(data.strip())


def read(path: Path) -> Reader:
    """All of a page, once it is seen that each element ends."""
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    assert reader.open == []
    return reader
