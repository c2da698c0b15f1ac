"""Filters of questions: what each drops, and what it lets pass."""

from __future__ import annotations

import pytest

from pipelines.questions.filters import REASONS, Asked, Filters, plain_form
from pipelines.settings import QuestionSettings

DOCUMENT = (
    "A lane is a shard of the corpus. All lanes are equally long, so that workers never wait for "
    "one another at the end of an epoch."
)
TITLE = "Lanes of a corpus"


def reason(question, prompt="question", title=TITLE, document=DOCUMENT, knows=False, **settings):
    filters = Filters(QuestionSettings(**settings), knows)
    return filters.reason(Asked(question, prompt, document, title))


@pytest.mark.parametrize(
    ("question", "dropped"),
    [
        ("Why are all shards of the same size?", None),
        ("Lane?", "too short"),
        ("Why is " + "very " * 60 + "long?", "too long"),
        ("What does the text say about lanes?", "about the document"),
        ("According to the author, what is a lane?", "about the document"),
        ("Which of the following is a shard?", "about the document"),
        ("How do these findings help?", "about the document"),
        ("What is a text encoder?", None),
        ("LANES of a corpus?", "copy of the title"),
        ("Where do the lanes of a corpus begin?", None),
        (
            "All lanes are equally long, so that workers never wait",
            "copy of the document",
        ),
        ("Are all lanes equally long for workers to wait?", None),
        ("A worker waits for another one.", "answer"),
        ("Ein Arbeiter wartet\u3002", "answer"),
    ],
)
def test_each_filter_drops_its_kind_of_question(question, dropped):
    assert reason(question) == dropped
    assert dropped is None or dropped in REASONS


def test_statements_are_answers_only_where_questions_were_asked_for():
    statement = "A worker waits for another one."
    assert reason(statement, prompt="claim") is None
    assert reason(statement, prompt="support") is None


def test_filters_can_be_set_and_switched_off():
    assert reason("Lane?", min_characters=3) is None
    assert reason("Why is a lane long?", max_characters=10) == "too long"
    assert reason("According to the author, what?", meta_phrases=()) is None
    assert reason("Was sagt der Text?", meta_phrases=(r"\bder text\b",)) == "about the document"
    assert reason("Lanes of a corpus?", title_overlap=None) is None
    assert reason("Lanes of a corpus?", title=None) is None
    assert reason("The corpus of long lanes?", title_overlap=0.5) == "copy of the title"
    copied = "All lanes are equally long, so that workers never wait"
    assert reason(copied, copied_words=None) is None


def test_a_question_in_another_language_is_dropped_where_both_are_identified():
    german = "Warum sind eigentlich alle Teile des Korpus gleich lang?"
    assert reason(german, knows=True) == "another language"
    assert reason(german) is None
    assert reason(german, knows=True, same_language=False) is None
    assert reason(german, knows=True, language="de") is None
    assert reason("Why are all shards of the same size?", knows=True, language="de") is not None
    assert reason("Why are all shards of the same size?", knows=True) is None
    # Nobody can tell the language of a code.
    assert reason("XK-4711 / B2?", knows=True) is None


@pytest.mark.parametrize("other", ["what is a LANE", "What is a lane?", "what  is a lane!"])
def test_questions_that_differ_in_case_and_signs_are_one(other):
    assert plain_form(other) == plain_form("What is a lane?")
    assert plain_form("What is a row?") != plain_form(other)
    assert plain_form("???") == "???"
