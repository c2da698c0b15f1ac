"""First sentences and what follows them; paragraphs of documents, and the rules that drop one."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus.cleaning.prose import (
    NO_PROSE,
    NOTHING_AFTER,
    PARAGRAPH_RULES,
    TITLE_LINE,
    blocks,
    is_hard_wrapped,
    not_prose,
    plain,
    plain_markup,
    split_paragraphs,
    summary_pair,
)

GUTENBERG = """It was the best of times, it was the worst of times, it was the age of
wisdom, it was the age of foolishness, it was the epoch of belief, it
was the epoch of incredulity, it was the season of Light.

There were a king with a large jaw and a queen with a plain face, on the
throne of England.
"""
WIKIPEDIA = """Ada Lovelace

Ada Lovelace () was an English mathematician and writer, known for her work on a machine.
Early life and education.
Lovelace was often ill, beginning in early childhood, and could not walk for a year.
"""


def test_the_rest_of_the_first_paragraph_follows():
    text = "Counts the\nopen files. It asks the system, e.g. Linux,\nfor them.\n\nMore."
    following = "It asks the system, e.g. Linux, for them."
    assert summary_pair(text) == ("Counts the open files.", following, None)


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
    following = "The operating system is asked for its table of open files."
    assert summary_pair(text) == ("Count the open files.", following, None)


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
    assert summary_pair(f"Count the open files.\n\n{section}")[2] == NOTHING_AFTER
    assert summary_pair(f"Count the open files.\n{section}")[2] == NOTHING_AFTER


def test_a_signature_or_heading_before_the_first_sentence_is_passed_over():
    for first in ("add(x1, x2, /, out=None)", "# Adding", "Adding\n======"):
        pair = summary_pair(f"{first}\n\nAdd the arguments. They are broadcast first.")
        assert pair == ("Add the arguments.", "They are broadcast first.", None)


def test_a_full_stop_inside_a_name_ends_no_sentence():
    pair = summary_pair("Whether a given ``nn.Module`` is a leaf. Leaves are not traced.")
    assert pair[0] == "Whether a given nn.Module is a leaf."


def test_a_sentence_that_introduces_code_is_left_out():
    pair = summary_pair("Add two numbers. They are whole. For example in this way:\n\n    1 + 1")
    assert pair[1] == "They are whole."


def test_scripts_without_spaces():
    assert summary_pair("你好世界。今天天气很好。") == ("你好世界。", "今天天气很好。", None)


@pytest.mark.parametrize("text", ["---", ">>> 1 + 1\n2", "x : int\n    A number.", "1 2 3 4 5"])
def test_texts_without_prose(text):
    assert summary_pair(text)[2] == NO_PROSE


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
        ("see :class:`Module` here", "see Module here"),
        ("see :py:class:`~torch.nn.Module` and (:meth:`run`)", "see Module and (run)"),
        ("a:func:`b` and x:y:z:`t`", "ab and xt"),
        ("the `Title here <target>`_ and :doc:`Other  <o>`", "the Title here and Other"),
        ("as follows::`x` and `y`", "as follows::x and y"),
        ("said  [1]_ and [#note]_ done", "said and done"),
    ],
)
def test_markup(marked, plain):
    assert plain_markup(marked) == plain


@given(st.lists(st.sampled_from(["Some words here.", "", "```", "- item", ">>> x", "    y"])))
def test_blocks_lose_no_line(lines):
    kept = [line for paragraph in blocks("\n".join(lines)) for line in paragraph]
    assert kept == [line for line in lines if line.strip()]


@given(st.text())
def test_any_text_gives_a_pair_or_a_reason(text):
    sentence, following, reason = summary_pair(text)
    assert (reason is None) == bool(sentence and following)


def test_hard_wrapped_lines_are_joined():
    texts = [text for text, _ in split_paragraphs(GUTENBERG)]
    assert len(texts) == 2
    assert "age of wisdom, it was" in texts[0]
    assert texts[1].endswith("on the throne of England.")


def test_lines_that_are_paragraphs_stay_apart():
    assert list(split_paragraphs(WIKIPEDIA, "Ada Lovelace")) == [
        ("Ada Lovelace", TITLE_LINE),
        (
            "Ada Lovelace was an English mathematician and writer, known for her work on a "
            "machine.",
            None,
        ),
        ("Early life and education.", "heading"),
        (
            "Lovelace was often ill, beginning in early childhood, and could not walk for a year.",
            None,
        ),
    ]


def test_one_sentence_a_line_is_not_hard_wrapped():
    lines = ["A short one.", "This line is a good deal longer than the others are.", "Short again."]
    assert not is_hard_wrapped(lines)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("# A heading of Markdown", "heading"),
        ("== Geschichte ==", "heading"),
        ("CHAPTER XII. THE TRIAL", "heading"),
        ("Chapter 12", "heading"),
        ("* * *", "line of symbols"),
        ("- bread and butter", "list item"),
        ("|-", "line of symbols"),
        ("{{Infobox person}} and what is left of it in the middle of a line", "markup"),
        ("! colspan=6 | Southland Conference Schedule of the year", "markup"),
        ("Retrieved from https://example.org/a/page on the first of May", "boilerplate"),
        ("We use cookies; please accept all cookies to go on reading here.", "boilerplate"),
        ("The cook made cookies for all of the children in the village.", None),
        ("https://example.org/a/very/long/path", "link"),
        ("12 34 56 78 90 a b", "few words"),
        ("He said that the trial was over, and went home.", None),
        ("지미 카터는 조지아주 섬터 카운티 플레인스 마을에서 태어났다.", None),
        ("吾輩は猫である。名前はまだ無い。", None),
        ("생애.", "few words"),
    ],
)
def test_named_rules_of_paragraphs(text, reason):
    assert next(split_paragraphs(text))[1] == reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Seoul (, ; ) is large", "Seoul is large"),
        ("a &lt;br&gt; b &amp; c", "a b & c"),
        ("said.<ref name=x>Smith 2008</ref> Then", "said. Then"),
        ("the [[Seoul|capital]] and [[Busan]]", "the capital and Busan"),
        ('a [link](http://x.org "t") and **bold** _it_', "a link and bold it"),
        ("2 * 3 * 4 and snake_case_name", "2 * 3 * 4 and snake_case_name"),
        (r"540\. Write", "540. Write"),
        ("> quoted", "quoted"),
    ],
)
def test_markup_is_resolved(text, expected):
    assert plain(text) == expected


@given(st.text(max_size=400), st.none() | st.text(max_size=10))
def test_any_text_gives_paragraphs_with_known_reasons(text, title):
    for found, reason in split_paragraphs(text, title):
        assert reason in {None, TITLE_LINE, *PARAGRAPH_RULES}
        assert "\n" not in found
        assert reason is not None or any(map(str.isalnum, found))


@given(st.text(st.characters(categories=["L"]), min_size=1, max_size=12), st.integers(1, 30))
def test_words_wrapped_at_a_width_are_one_paragraph(word, count):
    words = [word] * count + ["last"]
    lines, line = [], ""
    for following in words:
        if line and len(line) + 1 + len(following) > 60:
            lines.append(line)
            line = following
        else:
            line = f"{line} {following}".strip()
    lines.append(line)
    assert len(list(split_paragraphs("\n".join(lines)))) == 1


@pytest.mark.parametrize("part", ["(      ", "<ref> x ", "<!-- x ", "[a](", "**a ", "\t\t", "[[a|"])
def test_a_line_of_unfinished_markup_is_read_once(part):
    # A pattern that starts over at each mark takes minutes for what takes a fraction of a second.
    found, _ = next(split_paragraphs(part * 60_000 + "end of it all"))
    assert found.endswith("end of it all")
