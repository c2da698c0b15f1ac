"""BM25 against a direct reading of its formula."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipelines.vectors.bm25 as module
from pipelines.vectors.bm25 import (
    WordQueries,
    best_by_words,
    total,
    word_statistics,
)

WORDS = ["cat", "dog", "fish", "bird", "猫", "and"]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join), max_size=12)


def direct(query: str, texts: list[str]) -> dict[int, float]:
    """The scores above 0, by number of the text: the formula as it is printed."""
    documents = [text.split() for text in texts]
    mean = sum(map(len, documents)) / max(len(documents), 1)
    scores = {}
    for number, document in enumerate(documents):
        score = 0.0
        for word in set(query.split()) & set(document):
            having = sum(word in other for other in documents)
            weight = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
            times = document.count(word)
            length = 1 - 0.75 + 0.75 * len(document) / mean
            score += weight * times * 2.2 / (times + 1.2 * length)
        if score:
            scores[number] = score
    return scores


def found(queries: list[str], blocks: list[list[str]], k: int) -> list[list[tuple[int, float]]]:
    """What is found in texts that are counted and scored block by block, by query."""
    asked = WordQueries.of(queries)
    statistics = total((word_statistics(asked, block) for block in blocks), asked)
    ends = np.cumsum([0, *map(len, blocks)])
    numbered = [
        (block, np.arange(start, start + len(block)))
        for block, start in zip(blocks, ends, strict=False)
    ]
    best = best_by_words(asked, statistics, numbered, k)
    rows: list[list[tuple[int, float]]] = [[] for _ in queries]
    for query, document, score in zip(best.queries, best.documents, best.scores, strict=True):
        rows[query].append((int(document), float(score)))
    return rows


@settings(deadline=None)
@given(st.lists(TEXTS.map(" ".join), min_size=1, max_size=4), TEXTS, st.integers(1, 14))
def test_equals_the_formula(queries, texts, k) -> None:
    for query, rows in zip(queries, found(queries, [texts], k), strict=True):
        scores = {one: round(score, 6) for one, score in direct(query, texts).items()}
        # Of equal ones the first; all that share a word where k is larger.
        best = sorted(scores, key=lambda one: (-scores[one], one))[:k]
        assert [score for _, score in rows] == pytest.approx(
            [scores[one] for one in best], abs=2e-6
        )
        assert {one for one, _ in rows} <= scores.keys()


@settings(deadline=None)
@given(TEXTS, TEXTS, st.data())
def test_is_the_same_however_the_texts_are_cut(queries, texts, data) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(texts)), max_size=4)))
    ends = zip([0, *cuts], [*cuts, len(texts)], strict=True)
    blocks = [texts[start:end] for start, end in ends]
    # To the last bit: which documents are found must not depend on how many tasks there are.
    assert found(queries, blocks, 3) == found(queries, [texts], 3)


def test_blocks_of_scores_change_nothing(monkeypatch) -> None:
    texts = ["cat dog", "dog", "cat cat fish", "bird", "fish dog", "dog dog"] * 5
    whole = found(["dog cat", "fish"], [texts], 7)
    monkeypatch.setattr(module, "BLOCK_CELLS", 4)
    assert found(["dog cat", "fish"], [texts], 7) == whole
    assert [one for one, _ in whole[1]] == [4, 10, 16, 22, 28, 2, 8]


def test_the_first_of_equal_documents_comes_first() -> None:
    ((*first, _), _) = found(["cat", "dog"], [["cat a", "a cat", "b b"], ["cat b"]], 3)
    assert [one for one, _ in first] == [0, 1]


def test_a_word_counts_once_in_a_query_and_more_the_rarer_it_is() -> None:
    texts = ["and cat", "and dog", "and bird"]
    once, often, both = found(["cat", "cat cat CATS", "and dog"], [texts], 3)
    assert once == often
    assert [one for one, _ in both] == [1, 0, 2]


@pytest.mark.parametrize("query", ["", "...", "whale"])
def test_a_query_without_a_word_of_the_documents_finds_nothing(query) -> None:
    assert found([query, "cat"], [["a cat", ""]], 5)[0] == []
    assert found([query], [[]], 5) == [[]]
    assert found([query], [["", ""]], 5) == [[]]
