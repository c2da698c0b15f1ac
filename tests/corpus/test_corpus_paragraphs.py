"""Paragraphs of documents, and the named rules that drop one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus.cleaning.paragraphs import (
    PARAGRAPH_RULES,
    TITLE_LINE,
    is_hard_wrapped,
    plain,
    split_paragraphs,
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


def reasons(text, title=None):
    return [(paragraph.text, paragraph.reason) for paragraph in split_paragraphs(text, title)]


def test_hard_wrapped_lines_are_joined():
    texts = [paragraph.text for paragraph in split_paragraphs(GUTENBERG)]
    assert len(texts) == 2
    assert "age of wisdom, it was" in texts[0]
    assert texts[1].endswith("on the throne of England.")


def test_lines_that_are_paragraphs_stay_apart():
    assert reasons(WIKIPEDIA, "Ada Lovelace") == [
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
def test_named_rules(text, reason):
    assert reasons(text)[0][1] == reason


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
    for paragraph in split_paragraphs(text, title):
        assert paragraph.reason in {None, TITLE_LINE, *PARAGRAPH_RULES}
        assert "\n" not in paragraph.text
        assert paragraph.reason is not None or any(map(str.isalnum, paragraph.text))


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
    (found, *_) = split_paragraphs(part * 60_000 + "end of it all")
    assert found.text.endswith("end of it all")
