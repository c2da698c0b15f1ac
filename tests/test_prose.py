"""The pages and messages are in plain English, as `tools/prose.py` measures it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from prose import ROOT, docstrings, figures, kinds, sentences, worst

MOST = {"words": 14.0, "long": 0.05, "commas": 0.9, "relative": 0.3, "passive": 0.15}
LEAST_OF_GUIDES = {"address": 0.15, "imperative": 0.1}
SHOWN = 20

# To the left the words that a reader does not search for, to the right those of the field.
WORDS = {
    r"without a question of anybody": "without labelled queries",
    r"cannot be told(?! apart)": "not significant",
    r"written out again": "denoising (reconstruction) objectives",
    r"embeddings (?:that )?may be cut": "Matryoshka embeddings, truncatable",
    r"% of twice the examples": "scales with 87 % efficiency to two workers",
    r"attended without padding": "varlen (unpadded) attention",
    r"its makers left|makers (?:have )?left": "unmaintained since 2022",
    r"left of the start": "start weights kept",
    r"words beside an encoder": "lexical (LSA) features",
    r"prompts a machine needs|what a machine (?:needs|is given)": "machine requirements",
    r"stand in for questions": "a proxy for real queries",
    r"\bthe promise\b": "the guarantee",
}


def missed(
    found: Sequence[str], most: Mapping[str, float], least: Mapping[str, float] | None = None
) -> str:
    """The figures beyond their targets, and the sentences to rewrite first; empty without any."""
    measured = asdict(figures(found))
    lines = [
        f"{name} {measured[name]:.3f}, at most {bound}"
        for name, bound in most.items()
        if measured[name] > bound
    ]
    lines += [
        f"{name} {measured[name]:.3f}, at least {bound}"
        for name, bound in (least or {}).items()
        if measured[name] < bound
    ]
    return "\n".join([*lines, *(f"- {one}" for one in worst(found, SHOWN))] if lines else [])


def sentences_of(pages: Sequence[Path]) -> list[str]:
    return [one for page in pages for one in sentences(page.read_text(encoding="utf-8"))]


def test_pages_are_plain():
    pages = [page for some in kinds().values() for page in some]
    told = missed(sentences_of(pages), MOST)
    assert not told, told


def test_guides_speak_to_the_reader():
    told = missed(sentences_of(kinds()["guides"]), MOST, LEAST_OF_GUIDES)
    assert not told, told


def test_docstrings_are_plain():
    modules = sorted((ROOT / "pipelines").rglob("*.py"))
    told = missed(
        [one for module in modules for one in docstrings(module.read_text(encoding="utf-8"))],
        MOST,
    )
    assert not told, told


def read_texts() -> Iterator[tuple[Path, str]]:
    """Pages, and all that may say something to a user, each in one line."""
    for page in (page for some in kinds().values() for page in some):
        yield page, page.read_text(encoding="utf-8")
    yield ROOT / "CONTRIBUTING.md", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for folder, kind in (("pipelines", "*.py"), ("pipelines", "*.html"), ("pipelines", "*.js")):
        for path in sorted((ROOT / folder).rglob(kind)):
            # A text may go on in the next line.
            yield path, re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def texts() -> dict[Path, str]:
    return {path: " ".join(text.split()) for path, text in read_texts()}


@pytest.mark.parametrize("pattern", WORDS)
def test_the_words_of_the_field_are_used(pattern, texts):
    wrong = re.compile(pattern, re.IGNORECASE)
    places = [str(path.relative_to(ROOT)) for path, text in texts.items() if wrong.search(text)]
    assert places == [], f"say: {WORDS[pattern]}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One short sentence. It goes on\nin the next line.", 2),
        ("# A heading of words\n\n| a table | of words |\n|---|---|\n\n    code of words\n", 0),
        ("```bash\nsome code of words\n```\n\n![an image of words](a.svg)", 0),
        ("- Each item is one.\n- So is the second.\n    - And a nested one.", 3),
        ("Read `a. B. c` and [the page. Too](page.md#part) first.", 1),
    ],
)
def test_only_sentences_of_running_text_count(text, expected):
    assert len(sentences(text)) == expected


def test_habits_are_measured():
    found = figures(["Set it, and run it.", "What is read by Spark is yours."])
    assert asdict(found) == {
        "words": 6.0,
        "long": 0.0,
        "commas": 0.5,
        "relative": 0.5,
        "passive": 0.5,
        "address": 0.5,
        "imperative": 0.5,
    }
