"""The page of error messages quotes what the package says, word for word."""

from __future__ import annotations

import ast
import re

import pytest

from pipelines.reference import DOCS

SOURCE = DOCS.parent / "pipelines"
PAGE = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
OURS, _, _ = PAGE.partition("## What Spark says")
MESSAGES = re.findall(r"^\| `(.+?)` \|", OURS, re.MULTILINE)


@pytest.fixture(scope="module")
def source() -> str:
    """All text in the code, a line for each literal; what is filled in is an ellipsis."""
    lines = []
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = node.values
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                parts = [node]
            else:
                continue
            lines.append(
                "".join(
                    str(getattr(part, "value", "…")) if isinstance(part, ast.Constant) else "…"
                    for part in parts
                )
            )
    return "\n".join(line.replace("`", "") for line in lines)


def fragments(message: str) -> list[str]:
    """Of a quoted message the parts that are written in the code: key, problem and remedy."""
    message = re.sub(r"^engine (…|\w+)(, rank (…|\d+))?: ", "", message)
    key, colon, rest = message.partition(": ")
    parts = [
        key,
        *re.split(r"…|, (?=set |at most|one of|a multiple|name |mount |run |see |pip )", rest),
    ]
    if not colon:
        parts = re.split("…", message)
    return [part.strip(" ,()") for part in parts if part and len(part.strip(" ,()…")) > 1]


@pytest.mark.parametrize("message", MESSAGES)
def test_what_is_quoted_is_what_is_said(message, source):
    missing = [part for part in fragments(message) if part not in source]
    assert missing == []


def test_the_page_is_of_some_length():
    assert len(MESSAGES) >= 25
    assert len(set(MESSAGES)) == len(MESSAGES)
