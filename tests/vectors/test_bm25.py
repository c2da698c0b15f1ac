"""Words, BM25 against a direct reading of its formula, and its fusion with vectors, by hand."""

import math
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipelines.vectors.bm25 as module
from pipelines.vectors.bm25 import (
    WORD_WEIGHT,
    WordQueries,
    best_by_words,
    ranks_of,
    total,
    weighted_fusion,
    word_statistics,
    words_of,
)
from pipelines.vectors.nearest import Neighbours, best_of

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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("  ... --- ", []),
        ("The cats' Cat, in 1,024 bytes.", ["the", "cat", "cat", "in", "1", "024", "byte"]),
        ("this is gas", ["thi", "is", "gas"]),
        ("snake_case __init__ kebab-case", ["snake", "case", "init", "kebab", "case"]),
        ("Straße \uff21\uff22\uff23 \ufb01les", ["strasse", "abc", "file"]),
        ("Les années d'été", ["les", "année", "d", "été"]),
        ("हिन्दी की किताबें", ["हिन्दी", "की", "किताबें"]),
        ("東京タワー", ["東", "京", "タ", "ワ", "ー", "東京", "京タ", "タワ", "ワー"]),
        ("ﾄｳｷｮｳ", ["ト", "ウ", "キ", "ョ", "ウ", "トウ", "ウキ", "キョ", "ョウ"]),
        ("猫。犬", ["猫", "犬"]),
        ("iPhone用", ["iphone", "用"]),
        ("서울", ["서", "울", "서울"]),
        ("ไทย", ["ไ", "ท", "ย", "ไท", "ทย"]),
    ],
)
def test_the_words_of_a_text(text, words) -> None:
    assert words_of(text) == words


def test_letters_with_marks_are_the_same_however_they_are_written() -> None:
    for text in ("été", "がぎぐ", "서울"):
        assert words_of(unicodedata.normalize("NFD", text)) == words_of(text)


@given(st.text(), st.text())
def test_texts_that_are_apart_have_the_words_of_both(left, right) -> None:
    assert words_of(f"{left}\n{right}") == words_of(left) + words_of(right)


@given(st.text())
def test_a_word_is_never_blank_and_is_found_by_itself(text) -> None:
    for word in words_of(text):
        assert word.strip()
        assert "_" not in word


def ranking(*found: tuple[int, int, float]) -> Neighbours:
    """Of queries, documents and scores, the best first."""
    columns = list(zip(*found, strict=True)) or [(), (), ()]
    queries, documents = (np.array(one, np.int64) for one in columns[:2])
    return Neighbours(queries, documents, np.array(columns[2], np.float64))


def fused(by_vectors: Neighbours, by_words: Neighbours, k: int) -> list[tuple[int, int, float]]:
    found = weighted_fusion(by_vectors, by_words, k)
    scores = found.scores.round(12).tolist()
    return list(zip(found.queries.tolist(), found.documents.tolist(), scores, strict=True))


def test_words_add_a_tenth_at_most() -> None:
    by_vectors = ranking((3, 10, 0.8), (3, 20, 0.75), (3, 30, 0.6))
    by_words = ranking((3, 30, 8.0), (3, 40, 6.0), (3, 20, 4.0))
    assert WORD_WEIGHT == 0.1
    assert fused(by_vectors, by_words, 9) == [
        # Of equal sums the lower id wins.
        (3, 10, 0.8),
        (3, 20, 0.8),
        (3, 30, 0.7),
        # Its cosine is at most the lowest that is known.
        (3, 40, 0.675),
    ]
    assert [document for _, document, _ in fused(by_vectors, by_words, 2)] == [10, 20]


def test_queries_are_ranked_apart_and_may_be_missing_in_a_ranking() -> None:
    by_vectors = ranking((-5, 1, 0.5), (-5, 2, 0.4), (8, 2, -0.2))
    by_words = ranking((8, 1, 5.0), (9, 7, 90.0))
    assert fused(by_vectors, by_words, 5) == [
        (-5, 1, 0.5),
        (-5, 2, 0.4),
        (8, 1, -0.1),
        (8, 2, -0.2),
        (9, 7, 0.1),
    ]
    assert ranks_of(by_vectors).tolist() == [1, 2, 1]


def test_what_only_one_ranking_has_keeps_its_order() -> None:
    nothing = Neighbours.none()
    found = ranking((0, 5, 0.9), (0, 3, 0.8), (0, 4, 0.7))
    assert [document for _, document, _ in fused(found, nothing, 3)] == [5, 3, 4]
    assert [document for _, document, _ in fused(nothing, found, 2)] == [5, 3]
    assert fused(nothing, nothing, 3) == []


scored = st.dictionaries(
    st.tuples(st.integers(-3, 3), st.integers(0, 12)), st.floats(0.125, 1.0), max_size=30
)


@given(by_vectors=scored, by_words=scored)
def test_each_document_is_found_once_with_a_sum_within_its_bounds(by_vectors, by_words) -> None:
    vectors, words = (
        best_of(ranking(*((*key, score) for key, score in one.items())), 99)
        for one in (by_vectors, by_words)
    )
    found = {(query, document): score for query, document, score in fused(vectors, words, 99)}
    assert found.keys() == by_vectors.keys() | by_words.keys()
    for key, score in found.items():
        most = max((one for other, one in by_words.items() if other[0] == key[0]), default=1.0)
        known = [one for other, one in by_vectors.items() if other[0] == key[0]]
        cosine = by_vectors.get(key, min(known, default=0.0))
        expected = cosine + WORD_WEIGHT * by_words.get(key, 0.0) / most
        assert score == pytest.approx(expected, abs=1e-9)
