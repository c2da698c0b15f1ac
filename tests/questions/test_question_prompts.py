"""Prompts: those of the package, those of users, and examples in them."""

from __future__ import annotations

import pytest

from pipelines.errors import InputError
from pipelines.questions.prompts import (
    Asking,
    Prompt,
    read_examples,
    read_prompts,
    shortened,
)
from pipelines.settings import QuestionSettings, StorageSettings
from pipelines.settings.questions import PACKAGED_PROMPTS

STORES = StorageSettings()


@pytest.mark.parametrize("name", PACKAGED_PROMPTS)
def test_a_prompt_of_the_package_has_all_that_a_document_needs(name):
    (prompt,) = read_prompts(QuestionSettings(prompts=(name,)), STORES)
    document = "It costs $5, ${or} more.\nNo template."
    text = prompt.text(document, count=3, language="Danish", examples=("how much is it",))
    assert text.rstrip().endswith(document)
    assert "3 different" in text
    assert "Write in Danish." in text
    assert "- how much is it\n" in text
    without = prompt.text(document, count=3, language="Danish", examples=())
    assert "examples" not in without


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("Ask about it.", "has no $document"),
        ("Ask about $document for $5.", "has a single $ sign"),
        ("Ask about $document in $tongue.", r"has $tongue. Use $count, $document"),
    ],
)
def test_a_file_that_is_no_prompt_is_refused(tmp_path, template, problem):
    path = tmp_path / "own.txt"
    path.write_text(template)
    with pytest.raises(InputError) as refused:
        read_prompts(QuestionSettings(prompts=(str(path),)), STORES)
    assert refused.value.key == "questions.prompts"
    assert problem in str(refused.value)


def test_prompts_of_ones_own_have_the_name_of_their_file(tmp_path):
    path = tmp_path / "support.txt"
    path.write_text("A ticket about $document, for $$5")
    (prompt,) = read_prompts(QuestionSettings(prompts=(str(path),)), STORES)
    assert prompt.name == "support"
    text = prompt.text("a lane", count=1, language="en", examples=())
    assert text == "A ticket about a lane, for $5"
    other = tmp_path / "other"
    other.mkdir()
    (other / "support.txt").write_text("$document")
    names = (str(path), str(other / "support.txt"))
    with pytest.raises(InputError, match="two prompts have the name support"):
        read_prompts(QuestionSettings(prompts=names), STORES)
    with pytest.raises(InputError, match=r"missing\.txt cannot be read .* or one of question,"):
        read_prompts(QuestionSettings(prompts=(str(tmp_path / "missing.txt"),)), STORES)


def test_examples_that_no_prompt_shows_are_refused(tmp_path):
    path = tmp_path / "support.txt"
    path.write_text("A ticket about $document")
    settings = QuestionSettings(prompts=("question", str(path)), examples="queries.txt")
    with pytest.raises(InputError) as refused:
        read_prompts(settings, STORES)
    assert str(refused.value).startswith(
        "questions.examples: the prompt support has no $examples. Add it to the prompt"
    )


def test_examples_are_the_lines_of_a_file(tmp_path):
    path = tmp_path / "queries.txt"
    path.write_text("one\n\n two \none\n")
    assert read_examples(QuestionSettings(examples=str(path)), STORES) == ("one", "two")
    path.write_text("\n")
    with pytest.raises(InputError, match=r"^questions\.examples: .* is empty\. Write a query"):
        read_examples(QuestionSettings(examples=str(path)), STORES)


def asking(**changed) -> Asking:
    known = {
        "prompts": (Prompt("one", "$language $count $examples $document"),),
        "examples": tuple(f"query {number}" for number in range(20)),
        "shown": 3,
        "count": 2,
        "language": None,
        "characters": 40,
        "seed": 1,
    }
    return Asking(**known | changed)


def test_a_request_depends_on_the_document_and_the_seed_alone():
    ((name, text, seed),) = asking().requests("A document about lanes", " Lanes ")
    assert name == "one"
    assert text.startswith("the language of the document 2 ")
    assert text.endswith("Lanes\n\nA document about lanes")
    assert text.count("query ") == 3
    assert [(name, text, seed)] == list(asking().requests("A document about lanes", "Lanes"))
    ((_, other, _),) = asking(seed=2).requests("A document about lanes", "Lanes")
    assert other != text
    ((_, other, _),) = asking(language="da").requests("A document", None)
    assert other.startswith("the language with the ISO 639 code `da`")
    assert 0 <= seed < 2**31


def test_the_identity_tells_what_has_changed():
    changes = {
        "questions.prompts": [
            {"prompts": (Prompt("one", "$document"),)},
            {"prompts": (Prompt("two", asking().prompts[0].template),)},
        ],
        "questions.examples": [{"examples": ("query 1",)}],
        "questions.examples_shown": [{"shown": 5}],
        "questions.per_prompt": [{"count": 5}],
        "questions.document_characters": [{"characters": 5}],
        "questions.seed": [{"seed": 5}],
        "questions.language": [{"language": "da"}],
    }
    known = asking().identity
    assert {*known} == {*changes}
    for key, changed in changes.items():
        for change in changed:
            other = asking(**change).identity
            assert {name for name in known if known[name] != other[name]} == {key}


def test_a_long_document_ends_with_a_word():
    assert shortened("one two three", 8) == "one two"
    assert shortened("one two three", 13) == "one two three"
    assert shortened("x" * 50, 8) == "x" * 8
    assert shortened("a " + "x" * 50, 8) == "a " + "x" * 6
