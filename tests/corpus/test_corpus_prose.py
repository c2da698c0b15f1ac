"""First sentences and what follows them."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus.cleaning.prose import (
    NO_PROSE,
    NOTHING_AFTER,
    not_prose,
    paragraphs,
    plain_markup,
    summary_pair,
)


def test_the_rest_of_the_first_paragraph_follows():
    pair = summary_pair(
        "Counts the\nopen files. It asks the system, e.g. Linux,\nfor them.\n\nMore."
    )
    assert pair.sentence == "Counts the open files."
    assert pair.paragraph == "It asks the system, e.g. Linux, for them."


def test_the_next_prose_follows_a_single_sentence():
    text = inspect.cleandoc(
        """
        Count the open files.

        .. versionadded:: 1.2

        >>> count()
        3

        - not this one
        - nor this

        ```python
        count()

        print("it is not this block")
        ```

        The operating system is asked
        for its table of open files.

        Parameters
        ----------
        kind : str
            This text describes a parameter. It is not wanted.
        """
    )
    pair = summary_pair(text)
    assert pair.sentence == "Count the open files."
    assert pair.paragraph == "The operating system is asked for its table of open files."


@pytest.mark.parametrize(
    "section",
    [
        "Args:\n    x: This is a value. It is not prose.",
        "Parameters\n----------\nx : int\n    Some value of it.",
        "**Example:**\n\nThis is an example of the use.",
        "Returns:\n\nThis sentence is about the result.",
    ],
)
def test_the_reading_ends_at_a_section(section):
    assert summary_pair(f"Count the open files.\n\n{section}").reason == NOTHING_AFTER
    assert summary_pair(f"Count the open files.\n{section}").reason == NOTHING_AFTER


def test_a_signature_or_heading_before_the_first_sentence_is_passed_over():
    for first in ("add(x1, x2, /, out=None)", "# Adding", "Adding\n======"):
        pair = summary_pair(f"{first}\n\nAdd the arguments. They are broadcast first.")
        assert (pair.sentence, pair.paragraph) == (
            "Add the arguments.",
            "They are broadcast first.",
        )


def test_a_full_stop_inside_a_name_ends_no_sentence():
    pair = summary_pair("Whether a given ``nn.Module`` is a leaf. Leaves are not traced.")
    assert pair.sentence == "Whether a given nn.Module is a leaf."


def test_a_sentence_that_introduces_code_is_left_out():
    pair = summary_pair("Add two numbers. They are whole. For example in this way:\n\n    1 + 1")
    assert pair.paragraph == "They are whole."


def test_scripts_without_spaces():
    pair = summary_pair("你好世界。今天天气很好。")
    assert (pair.sentence, pair.paragraph) == ("你好世界。", "今天天气很好。")


@pytest.mark.parametrize("text", ["---", ">>> 1 + 1\n2", "x : int\n    A number.", "1 2 3 4 5"])
def test_texts_without_prose(text):
    assert summary_pair(text).reason == NO_PROSE


@pytest.mark.parametrize(
    ("paragraph", "rule"),
    [
        (">>> count()", "doctest"),
        ("    x = the number of things", "indented"),
        (".. note:: this is a note", "directive"),
        ("## A heading of words", "heading"),
        ("1. a list of things", "list"),
        (":param count: how many there are", "field"),
        ("count : int\n    How many there are", "field"),
        ("| left | right | middle |", "table"),
        ("import numpy as np", "code"),
        ("total = first + second + third", "code"),
        ("See https://example.org/a/page", "link"),
        ("x + y = 12 (3, 4)", "few words"),
        ("Note: this is a sentence of prose.", None),
        ("Return the (x, y) position of the mouse.", None),
    ],
)
def test_named_rules(paragraph, rule):
    assert not_prose(paragraph.split("\n")) == rule


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        ("A :class:`~torch.nn.Module` and :func:`abs`", "A Module and abs"),
        ("See :ref:`User Guide <omp>`.", "See User Guide."),
        ("``code`` and `name`_ and **bold** *words*", "code and name and bold words"),
        ("A [title](https://example.org) here [1]_.", "A title here."),
        ("2 * 3 * 4 and **kwargs", "2 * 3 * 4 and **kwargs"),
    ],
)
def test_markup(marked, plain):
    assert plain_markup(marked) == plain


@given(st.lists(st.sampled_from(["Some words here.", "", "```", "- item", ">>> x", "    y"])))
def test_paragraphs_lose_no_line(lines):
    kept = [line for paragraph in paragraphs("\n".join(lines)) for line in paragraph]
    assert kept == [line for line in lines if line.strip()]


@given(st.text())
def test_any_text_gives_a_pair_or_a_reason(text):
    pair = summary_pair(text)
    assert (pair.reason is None) == bool(pair.sentence and pair.paragraph)
