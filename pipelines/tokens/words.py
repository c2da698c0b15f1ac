"""Counts the words of a corpus on the executors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from pipelines.spark.frames import Scratch
from pipelines.spark.parquet_parts import Part, frame_from_parts, read_part
from pipelines.tokens.chunks import plain_word, slices, split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TEXT_COLUMNS = ("anchor", "positive", "negatives")
"""`negatives` holds lists of texts."""

MAX_WORDS = 1_000_000
"""Distinct words, most frequent first, that a vocabulary is learnt from on the driver."""
LONGEST_WORD = 100
"""Characters; WordPiece makes [UNK] of longer words, so nothing is learnt from them."""
MAX_CHUNKS = 500_000
"""Distinct chunks that a task counts before it hands on what it has."""


def count_words(
    session: SparkSession, parts: Sequence[Part], scratch: Scratch, *, lowercase: bool
) -> dict[str, int]:
    """Counts words as BERT's pre-tokenizer sees them.

    Args:
        parts: Have the columns `anchor` and `positive` of strings, and `negatives` of lists of
            them, or some of these.
        scratch: For the counts of all words, which need not fit into the driver's memory.
        lowercase: Whether upper and lower case are one.

    Returns:
        Word to count, by falling count, then by code points: all words that occur as often as
        the rarest of them, and not more than :data:`MAX_WORDS`.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    work = partial(words_of_parts, lowercase=lowercase)
    words = frame_from_parts(session, parts, work, "word string, count long")
    counted = scratch.keep(words.groupBy("word").agg(F.sum("count").alias("count")))
    least = _least_count(counted)
    rows = counted.where(F.col("count") >= least).collect()
    counts = {row["word"]: row["count"] for row in rows}
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _least_count(counted: DataFrame) -> int:
    """The smallest count that not more than :data:`MAX_WORDS` words reach; never above all."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = counted.groupBy("count").agg(F.count("*").alias("words")).collect()
    least, reached = 0, 0
    for count, words in sorted(rows, reverse=True):
        reached += words
        if least and reached > MAX_WORDS:
            break
        least = count
    return least


def words_of_parts(parts: Iterator[Part], *, lowercase: bool) -> Iterator[pa.RecordBatch]:
    """Words of the text columns, with their counts. Runs on an executor.

    Yields:
        Columns `word` and `count`; a word may come again when there are very many.
    """
    batches = (batch for part in parts for batch in read_part(part, TEXT_COLUMNS))
    columns = (
        column.flatten() if pa.types.is_list(column.type) else column
        for batch in batches
        for column in batch.columns
    )
    yield from words_of_columns(columns, lowercase=lowercase)


def words_of_columns(
    columns: Iterator[pa.StringArray], *, lowercase: bool
) -> Iterator[pa.RecordBatch]:
    """Words of columns of text, with their counts; see :func:`words_of_parts`."""
    counts: Counter[bytes] = Counter()
    for column in columns:
        for texts in slices(column):
            chunks = split(texts, lowercase=lowercase)
            numbers = np.bincount(chunks.numbers, minlength=len(chunks.distinct))
            for chunk, count in zip(chunks.distinct.to_pylist(), numbers.tolist(), strict=True):
                counts[chunk] += count
            if len(counts) > MAX_CHUNKS:
                yield _words_of_chunks(counts, lowercase=lowercase)
                counts.clear()
    if counts:
        yield _words_of_chunks(counts, lowercase=lowercase)


def _words_of_chunks(chunks: Mapping[bytes, int], *, lowercase: bool) -> pa.RecordBatch:
    normalise = BertNormalizer(lowercase=lowercase).normalize_str
    split_words = BertPreTokenizer().pre_tokenize_str
    counts: Counter[str] = Counter()
    for chunk, count in chunks.items():
        plain = plain_word(chunk)
        words = [plain] if plain else [word for word, _ in split_words(normalise(chunk.decode()))]
        for word in words:
            if len(word) <= LONGEST_WORD:
                counts[word] += count
    return pa.RecordBatch.from_pydict(
        {
            "word": pa.array(counts.keys(), pa.string()),
            "count": pa.array(counts.values(), pa.int64()),
        }
    )
