"""BM25: documents by the words that they share with a query, whatever a model makes of them.

The score of a document is the sum, over the different words of the query, of the word's weight
times its saturated count in the document:

    ln(1 + (N - n + 0.5) / (n + 0.5)) * f (k1 + 1) / (f + k1 (1 - b + b * length / mean length))

where `N` documents are there, `n` of them have the word, and `f` times the document has it.
Sources: Robertson and Zaragoza, "The probabilistic relevance framework: BM25 and beyond",
Foundations and Trends in Information Retrieval 3(4), 2009; the weight, which is never negative, is
Lucene's: Kamphuis, de Vries, Boytsov and Lin, "Which BM25 do you mean?", ECIR 2020.

Nothing is indexed: the words of all queries are known before documents are read, so one pass over
the documents counts these (:class:`WordStatistics`), and a second one scores. Parts of a corpus are
counted and scored apart and give what the whole would, which libraries that build an index, and
weigh by it alone, cannot do. Memory does not grow with the documents.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from pipelines.evaluation.nearest import (
    BLOCK_CELLS,
    SCORE_DECIMALS,
    Neighbours,
    best_of_block,
    merged,
)
from pipelines.lexical.words import words_of

K1 = 1.2
"""How soon more of the same word stops to count: the default of Lucene."""
B = 0.75
"""How much long documents are discounted, from 0 to 1: the same."""

TextBlock = tuple[Sequence[str], np.ndarray]
"""Texts of documents, and their ids (int64)."""


@dataclass(frozen=True)
class WordQueries:
    """Queries as BM25 asks them; small, and sent to executors as it is.

    Attributes:
        count: How many there are, those without any word included.
        terms: Number of each word that is in any of them, from 0.
        asking: By the number of a word the queries that have it, ascending.
    """

    count: int
    terms: Mapping[str, int]
    asking: Sequence[np.ndarray]

    @classmethod
    def of(cls, texts: Sequence[str]) -> WordQueries:
        """Of the texts of queries."""
        asking: dict[str, list[int]] = {}
        for number, text in enumerate(texts):
            for word in dict.fromkeys(words_of(text)):
                asking.setdefault(word, []).append(number)
        terms = {word: number for number, word in enumerate(asking)}
        return cls(len(texts), terms, [np.array(some, np.int64) for some in asking.values()])


@dataclass(frozen=True)
class WordStatistics:
    """What the weights of words follow from; those of parts of a corpus add up to its own.

    Attributes:
        documents: How many there are.
        words: Of all documents.
        having: int64 [terms]: how many documents have a word of the queries.
    """

    documents: int
    words: int
    having: np.ndarray

    def __add__(self, other: WordStatistics) -> WordStatistics:
        return WordStatistics(
            self.documents + other.documents,
            self.words + other.words,
            self.having + other.having,
        )


def word_statistics(queries: WordQueries, texts: Iterable[str]) -> WordStatistics:
    """Counts the words of queries in documents.

    Args:
        queries: Whose words count.
        texts: Of documents; one without any word is a document too.
    """
    documents = words = 0
    having = np.zeros(len(queries.terms), np.int64)
    for text in texts:
        found = words_of(text)
        documents += 1
        words += len(found)
        known = {queries.terms[word] for word in found if word in queries.terms}
        having[list(known)] += 1
    return WordStatistics(documents, words, having)


def best_by_words(
    queries: WordQueries, statistics: WordStatistics, blocks: Iterable[TextBlock], k: int
) -> Neighbours:
    """The k documents of highest BM25 for each query; of equal ones the lower id wins.

    Args:
        queries: What is asked.
        statistics: Of all documents, also of those that others score.
        blocks: The documents to score.
        k: Documents of a query; fewer where fewer share a word with it.
    """
    found = Neighbours.none()
    rows = max(1, BLOCK_CELLS // max(queries.count, 1))
    for texts, ids in blocks:
        for start in range(0, len(texts), rows):
            some = slice(start, start + rows)
            scores = _scores(queries, statistics, texts[some])
            found = merged(found, best_of_block(scores, 0, ids[some], k), k)
    return found


def _scores(queries: WordQueries, statistics: WordStatistics, texts: Sequence[str]) -> np.ndarray:
    """[queries, documents]; minus infinity where they share no word."""
    scores = np.zeros((queries.count, len(texts)))
    mean = statistics.words / max(statistics.documents, 1)
    # Always in the order of the terms, so that equal documents of two blocks have equal scores.
    for term, documents, counts, lengths in _by_term(queries, texts):
        having = int(statistics.having[term])
        weight = math.log(1 + (statistics.documents - having + 0.5) / (having + 0.5))
        norms = K1 * (1 - B + B * lengths / mean)
        scores[np.ix_(queries.asking[term], documents)] += (
            weight * counts * (K1 + 1) / (counts + norms)
        )
    scores = np.round(scores, SCORE_DECIMALS)
    scores[scores <= 0] = -np.inf
    return scores


def _by_term(
    queries: WordQueries, texts: Sequence[str]
) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """For each term that any of some documents has: these, and their counts and lengths."""
    triples: list[tuple[int, int, int]] = []
    lengths = np.zeros(len(texts))
    for row, text in enumerate(texts):
        words = words_of(text)
        lengths[row] = len(words)
        counts = Counter(queries.terms[word] for word in words if word in queries.terms)
        triples += ((term, row, count) for term, count in counts.items())
    found = np.array(sorted(triples), np.int64).reshape(-1, 3)
    terms, starts = np.unique(found[:, 0], return_index=True)
    for term, some in zip(terms.tolist(), np.split(found, starts[1:]), strict=False):
        documents = some[:, 1]
        yield term, documents, some[:, 2].astype(float), lengths[documents]


def total(parts: Iterable[WordStatistics], queries: WordQueries) -> WordStatistics:
    """The statistics of a corpus of those of its parts, also of none."""
    return reduce(WordStatistics.__add__, parts, word_statistics(queries, ()))
