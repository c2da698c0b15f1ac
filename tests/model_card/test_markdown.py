"""Text of any kind stays text."""

from __future__ import annotations

import ast

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markup_texts import TEXTS

from pipelines.model_card.card import code, literal, plain, table
from pipelines.report.comparison import shown

PARSER = MarkdownIt("commonmark").enable("table")


def written(markdown: str) -> str:
    """The text that a reader sees of the only paragraph."""
    blocks = [token for token in PARSER.parse(markdown) if token.type == "inline"]
    assert len(blocks) == 1
    children = blocks[0].children or []
    assert {child.type for child in children} <= {"text", "code_inline", "text_special"}
    return "".join(child.content for child in children)


@given(TEXTS)
def test_plain_text_is_read_as_it_is(text) -> None:
    expected = shown(text)
    if expected:
        assert written(plain(text)) == expected
        assert written(f"word {plain(text)} word") == f"word {expected} word"


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3))
def test_no_text_adds_a_cell_or_a_row(rows) -> None:
    lines = table(("a", "b", "c"), [(plain(one), plain(other), "1") for one, other in rows], 1)
    found = [token.content for token in PARSER.parse("\n".join(lines)) if token.type == "inline"]
    assert len(found) == 3 + 3 * len(rows)


@given(TEXTS)
def test_a_literal_is_that_text_in_python_and_in_a_line_of_code(text) -> None:
    source = literal(text)
    assert ast.literal_eval(source) == text
    assert "\n" not in source
    assert written(f"- {code(source)}") == source


def test_most_names_need_no_mark() -> None:
    assert plain("runs/first-run_2 (1.5 %), nDCG@10") == "runs/first-run_2 (1.5 %), nDCG@10"
    assert len(plain("x" * 300)) == 201
    assert len(plain("x" * 300, 400)) == 300
