"""BM25: rank documents by the words they share with a query, without any model.

The score of a document is the sum, over the distinct words of the query, of the word's weight times
its saturated count in the document:

    ln(1 + (N - n + 0.5) / (n + 0.5)) * f (k1 + 1) / (f + k1 (1 - b + b * length / mean length))

`N` is the number of documents, `n` of those with the word, `f` the word's count in the document.
Sources: Robertson and Zaragoza, "The probabilistic relevance framework: BM25 and beyond",
Foundations and Trends in Information Retrieval 3(4), 2009; the weight, which is never negative, is
Lucene's: Kamphuis, de Vries, Boytsov and Lin, "Which BM25 do you mean?", ECIR 2020.

Nothing is indexed. The words of all queries are known beforehand, so one pass over the documents
counts them (:class:`WordStatistics`), and a second one scores. Parts of a corpus are counted and
scored apart, with the same result: libraries with weights from one index cannot do this. Memory
does not grow with the documents.
"""

from __future__ import annotations

import math
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import pairwise

import numpy as np

from pipelines.vectors.nearest import (
    BLOCK_CELLS,
    SCORE_DECIMALS,
    Neighbours,
    best_of,
    best_of_block,
    joined,
    merged,
    ranks,
)

_WITHOUT_BLANKS = (
    "\u0e00-\u0e7f"  # Thai
    "\u0e80-\u0eff"  # Lao
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"  # Myanmar
    "\u1780-\u17ff"  # Khmer
    "\u3040-\u30ff\u31f0-\u31ff"  # Hiragana and Katakana
    "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"  # Han
    "\u3100-\u312f\u31a0-\u31bf"  # Bopomofo
    "\u1100-\u11ff\u3130-\u318f\uac00-\ud7ff"  # Hangul
)
_PARTS = re.compile(f"([{_WITHOUT_BLANKS}]+)|[^{_WITHOUT_BLANKS}]+")
_ASCII_RUN = re.compile("[A-Za-z0-9]+")
_LEAST_PLURAL = 4
"""Least characters of a word that loses its s: `is`, `as` and `gas` are no plurals."""


def words_of(text: str) -> list[str]:
    """Return the words of a text, in any language, in their order and with repetitions.

    In scripts with blanks between words, a word is a run of letters, digits and their marks, in
    Unicode's form for comparing (NFKC, then case folded). A final s is dropped: this joins plurals
    of English, French and Spanish with their singulars. Other endings stay, since the language is
    unknown. There is no stop list: BM25's weight makes frequent words count little.

    In scripts without blanks, and in Korean with its particles attached to words, the characters
    and their overlapping pairs stand for words: segmenting would need a dictionary for each
    language. Pairs distinguish words; single characters find words of one character. Sources: Nie,
    Gao, Zhang and Zhou, "On the use of words and n-grams for Chinese information retrieval", IRAL
    2000; McNamee and Mayfield, "Character n-gram tokenization for European language text
    retrieval", Information Retrieval 7, 2004; for Chinese, Japanese and Korean, Lucene's
    ``CJKBigramFilter``.
    """
    # Names of variables are words with underscores between them.
    if text.isascii():
        return [_singular(run) for run in _ASCII_RUN.findall(text.lower())]
    folded = unicodedata.normalize("NFKC", text).casefold().replace("_", " ")
    return [word for run in _run().findall(folded) for word in _words_of_run(run)]


def _words_of_run(run: str) -> Iterator[str]:
    """Yield the words of an unbroken run of letters, digits and marks."""
    for found in _PARTS.finditer(run):
        part = found[0]
        if found[1] is None:
            yield _singular(part)
        else:
            yield from part
            yield from map("".join, pairwise(part))


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) >= _LEAST_PLURAL else word


@cache
def _run() -> re.Pattern[str]:
    r"""Match letters, digits and marks: ``\w`` alone would cut words of Hindi at their vowels."""
    marks = [
        character
        for character in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(character).startswith("M")
    ]
    return re.compile(rf"[\w{''.join(marks)}]+")


WORD_WEIGHT = 0.1
"""Weight of a query's best BM25 beside a cosine. Of 0.05, 0.1, 0.15 and more, the largest without a
loss on any of six collections; see `docs/measurements/search.md`."""
FUSED_RANKS = 100
"""Least number of ranks of each ranking that count; documents below gain nothing from it."""


def weighted_fusion(by_vectors: Neighbours, by_words: Neighbours, k: int) -> Neighbours:
    """Return the k best of both rankings for each query, by cosine + 0.1 BM25 / best BM25.

    Source: Bruch, Gai and Ingber, "An analysis of fusion functions for hybrid retrieval", ACM
    Transactions on Information Systems 42(1), 2023. They find such sums better than fusion by
    ranks, in which words have half of the weight however little they find.

    A document found only by words gets the lowest known cosine of its query, an upper bound of its
    true one. One found only by vectors gets a BM25 of zero. Ties go to the lower id. The scores of
    ``by_words`` are above zero; a query without a shared word has none. A query has fewer than k
    documents if both rankings together have fewer.
    """
    if not len(by_words.queries):
        return best_of(by_vectors, k)
    queries, number = np.unique(
        np.concatenate([by_vectors.queries, by_words.queries]), return_inverse=True
    )
    of_vectors, of_words = np.split(number, [len(by_vectors.queries)])
    lowest, highest = np.full(len(queries), np.inf), np.zeros(len(queries))
    np.minimum.at(lowest, of_vectors, by_vectors.scores)
    np.maximum.at(highest, of_words, by_words.scores)
    lowest[np.isinf(lowest)] = 0.0

    found = joined([by_vectors, by_words])
    above = by_vectors.scores - lowest[of_vectors]
    parts = [above, WORD_WEIGHT * by_words.scores / highest[of_words]]
    pairs = np.stack([found.queries, found.documents], axis=1)
    different, places = np.unique(pairs, axis=0, return_inverse=True)
    sums = np.bincount(places.reshape(-1), np.concatenate(parts), len(different))
    sums += lowest[np.searchsorted(queries, different[:, 0])]
    return best_of(Neighbours(different[:, 0], different[:, 1], sums), k)


def ranks_of(ranking: Neighbours) -> np.ndarray:
    """Return each rank within its query, from 1 for the best: int64 [neighbours]."""
    return ranks(ranking.queries) + 1


K1 = 1.2
"""How soon repetitions of a word stop counting: Lucene's default."""
B = 0.75
"""Discount of long documents, from 0 to 1: Lucene's default."""

TextBlock = tuple[Sequence[str], np.ndarray]
"""Texts of documents, and their ids (int64)."""


@dataclass(frozen=True)
class WordQueries:
    """The queries of a BM25 search; small, and sent to executors whole.

    Attributes:
        count: Number of queries, including those without any word.
        terms: Number of each word of any query, from 0.
        asking: The queries with a word, ascending, by the number of the word.
    """

    count: int
    terms: Mapping[str, int]
    asking: Sequence[np.ndarray]

    @classmethod
    def of(cls, texts: Sequence[str]) -> WordQueries:
        """Return the queries of some texts."""
        asking: dict[str, list[int]] = {}
        for number, text in enumerate(texts):
            for word in dict.fromkeys(words_of(text)):
                asking.setdefault(word, []).append(number)
        terms = {word: number for number, word in enumerate(asking)}
        return cls(len(texts), terms, [np.array(rows, np.int64) for rows in asking.values()])


@dataclass(frozen=True)
class WordStatistics:
    """The counts behind the weights of words; those of parts of a corpus add up.

    ``words`` counts those of all documents, ``having`` (int64 [terms]) documents with each word of
    the queries.
    """

    documents: int
    words: int
    having: np.ndarray

    def __add__(self, other: WordStatistics) -> WordStatistics:
        documents, words = self.documents + other.documents, self.words + other.words
        return WordStatistics(documents, words, self.having + other.having)


def word_statistics(queries: WordQueries, texts: Iterable[str]) -> WordStatistics:
    """Count the words of queries in the texts of documents; texts without a word count too."""
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
    """Find the k documents of highest BM25 for each query; ties go to the lower id.

    ``statistics`` are of all documents, ``blocks`` only of the documents to score. A query has
    fewer than k if fewer share a word with it.
    """
    found = Neighbours.none()
    rows = max(1, BLOCK_CELLS // max(queries.count, 1))
    for texts, ids in blocks:
        for start in range(0, len(texts), rows):
            block = slice(start, start + rows)
            scores = _scores(queries, statistics, texts[block])
            found = merged(found, best_of_block(scores, 0, ids[block], k), k)
    return found


def _scores(queries: WordQueries, statistics: WordStatistics, texts: Sequence[str]) -> np.ndarray:
    """Return scores [queries, documents]; minus infinity without a shared word."""
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
    """Yield each occurring term with its documents, their counts of it, and their lengths."""
    triples: list[tuple[int, int, int]] = []
    lengths = np.zeros(len(texts))
    for row, text in enumerate(texts):
        words = words_of(text)
        lengths[row] = len(words)
        counts = Counter(queries.terms[word] for word in words if word in queries.terms)
        triples += ((term, row, count) for term, count in counts.items())
    found = np.array(sorted(triples), np.int64).reshape(-1, 3)
    terms, starts = np.unique(found[:, 0], return_index=True)
    # Without any term, the split still returns one empty block.
    for term, rows in zip(terms.tolist(), np.split(found, starts[1:]), strict=False):
        documents = rows[:, 1]
        yield term, documents, rows[:, 2].astype(float), lengths[documents]


def total(parts: Iterable[WordStatistics], queries: WordQueries) -> WordStatistics:
    """Add up the statistics of the parts of a corpus; there may be none."""
    return reduce(WordStatistics.__add__, parts, word_statistics(queries, ()))
