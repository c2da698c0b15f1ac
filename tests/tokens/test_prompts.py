"""Prompts by name, from a folder and from settings."""

import json
from pathlib import Path

import pytest

from pipelines.errors import InputError
from pipelines.settings.load import parse
from pipelines.tokens.start import (
    NO_PROMPTS,
    Prompts,
    configured_prompts,
    read_prompts,
    training_prompts,
)

E5 = {"query": "query: ", "passage": "passage: "}


def prompts_of(texts: dict[str, str], default: str | None = None) -> Prompts:
    return Prompts.from_json({"prompts": texts, "default_prompt_name": default})


def write(folder: Path, **values) -> Path:
    (folder / "config_sentence_transformers.json").write_text(json.dumps(values))
    (folder / "config.json").write_text('{"max_position_embeddings": 512}')
    return folder


@pytest.mark.parametrize(
    ("texts", "default", "plain", "query", "document"),
    [
        ({}, None, "", "", ""),
        (E5, None, "", "query: ", "passage: "),
        ({**E5, "document": "doc: "}, "query", "query: ", "query: ", "doc: "),
        # The library writes what it does not have as an empty text.
        ({"query": "", "document": "", "corpus": "c: "}, None, "", "", "c: "),
        ({"topic": "topic: "}, "topic", "topic: ", "", ""),
    ],
)
def test_who_has_which_prompt(texts, default, plain, query, document) -> None:
    prompts = prompts_of(texts, default)
    assert [prompts.before(name) for name in (None, "query", "document")] == [
        plain,
        query,
        document,
    ]
    again = Prompts.from_json(prompts.to_json())
    assert [again.before(name) for name in (None, *texts)] == [
        prompts.before(name) for name in (None, *texts)
    ]
    # Under the name by which the library finds it.
    assert prompts.to_json()["prompts"].get("document", "") == document


def test_queries_are_told_from_documents_only_by_a_model_that_does() -> None:
    assert prompts_of(E5).sides == ("query", "document")
    assert prompts_of({"topic": "topic: "}, "topic").sides == (None, None)
    found = {name: prompts_of(E5).asking(name) for name in (None, "document", "passage", "query")}
    assert found == {None: "query", "document": "query", "passage": "query", "query": "query"}
    assert prompts_of({"topic": "topic: "}).asking("topic") == "topic"


def test_a_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match=r"no prompt `ask`\. Choose one of query, document"):
        prompts_of(E5).before("ask")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"prompts": ["query: "]}, "`prompts` is not a mapping"),
        ({"prompts": {"query": 3}}, "the prompt `query` is not a string"),
        ({"prompts": E5, "default_prompt_name": "x"}, "no text for the default prompt `x`"),
    ],
)
def test_what_a_folder_cannot_mean_is_refused(tmp_path, values, problem) -> None:
    with pytest.raises(InputError, match=f"^encoder.start: .*{problem}"):
        read_prompts(write(tmp_path, **values))


def test_a_folder_without_them_has_none(tmp_path) -> None:
    assert read_prompts(tmp_path) == NO_PROMPTS
    assert read_prompts(write(tmp_path, __version__={})) == NO_PROMPTS


def test_settings_add_to_those_of_the_start(tmp_path) -> None:
    start = str(write(tmp_path, prompts=E5, default_prompt_name="query"))
    encoder = {"start": start, "prompts": {"passage": "text: ", "topic": "topic: "}}
    found = configured_prompts(parse({"encoder": encoder}))
    assert dict(found.texts) == {"query": "query: ", "passage": "text: ", "topic": "topic: "}
    assert found.default == "query"
    named = encoder | {"default_prompt_name": "topic"}
    assert configured_prompts(parse({"encoder": named})).default == "topic"
    unknown = {"start": "random", "default_prompt_name": "topic"}
    with pytest.raises(InputError, match=r"^encoder.default_prompt_name: there is no prompt `t"):
        configured_prompts(parse({"encoder": unknown}))


def test_sides_that_are_alike_have_the_default_prompt() -> None:
    encoder = {
        "start": "random",
        "prompts": {**E5, "topic": "topic: "},
        "default_prompt_name": "topic",
    }
    alike = {"anchor": "topic: ", "positive": "topic: ", "negatives": "topic: "}
    cases = [
        ({}, {"anchor": "query: ", "positive": "passage: ", "negatives": "passage: "}),
        ({"corpus": {"pairs": "columns", "score_column": "score"}}, alike),
        (
            {
                "corpus": {"pairs": "single"},
                "objective": {"name": "simcse"},
                "training": {"dropout": 0.1},
            },
            alike,
        ),
    ]
    for tree, expected in cases:
        assert training_prompts(parse({"encoder": encoder, **tree})) == expected
