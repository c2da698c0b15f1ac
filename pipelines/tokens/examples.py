"""The rows of examples: token ids as binary columns, and the counts of words and lengths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from pipelines.arrow_columns import list_lengths, with_values
from pipelines.spark.frames import Scratch
from pipelines.spark.parquet_parts import Part, frame_from_parts, read_part
from pipelines.tokens.encoding import TextEncoder, plain_word, shortened, slices, split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


TEXT_COLUMNS = ("anchor", "positive", "negatives")
"""`negatives` holds lists of texts."""

MAX_WORDS = 1_000_000
"""Most distinct words from which the driver learns a vocabulary, the most frequent first."""
LONGEST_WORD = 100
"""In characters; WordPiece makes [UNK] of longer words, so nothing is learnt from them."""
MAX_CHUNKS = 500_000
"""Most distinct chunks in a task's counts before it hands them on."""


def count_words(
    session: SparkSession, parts: Sequence[Part], scratch: Scratch, *, lowercase: bool
) -> dict[str, int]:
    """Count words as BERT's pre-tokenizer sees them.

    Args:
        parts: Have some of the columns `anchor` and `positive` (strings) and `negatives` (lists of
            strings).
        scratch: For the counts of all words, which need not fit into the driver's memory.

    Returns:
        Word to count, by falling count, then by code point. Words of equal count are kept or
        dropped together; at most :data:`MAX_WORDS` are kept.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    work = partial(words_of_parts, lowercase=lowercase)
    words = frame_from_parts(session, parts, work, "word string, count long")
    counted = scratch.keep(words.groupBy("word").agg(F.sum("count").alias("count")))
    least = _least_count(counted)
    rows = counted.where(F.col("count") >= least).collect()
    counts = {row["word"]: row["count"] for row in rows}
    # Spark collects rows in any order; the vocabulary must not depend on it.
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _least_count(counted: DataFrame) -> int:
    """Return the smallest count such that at most :data:`MAX_WORDS` words reach it."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = counted.groupBy("count").agg(F.count("*").alias("words")).collect()
    least, reached = 0, 0
    for count, words in sorted(rows, reverse=True):
        reached += words
        # Words of the highest count are kept, however many they are.
        if least and reached > MAX_WORDS:
            break
        least = count
    return least


def words_of_parts(parts: Iterator[Part], *, lowercase: bool) -> Iterator[pa.RecordBatch]:
    """Yield words of the text columns with their counts. Runs on an executor.

    A word may be repeated when there are very many.
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
    """Yield words of columns of text with their counts; see :func:`words_of_parts`."""
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


SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "group": pa.int64(),
        "length": pa.int32(),
        "anchor": pa.binary(),
        "positive": pa.binary(),
        "negatives": pa.list_(pa.binary()),
        "score": pa.float32(),
        "candidate_scores": pa.list_(pa.float32()),
        "tokens": pa.int64(),
        "cut": pa.int32(),
    }
)
"""The columns of ``examples.parquet``; see :func:`pipelines.tokens.stage.prepare_tokens`."""

SOURCE = "source"
"""The number of an example's source; absent where there is one source."""
OPTIONAL = ("positive", "negatives", "score", "candidate_scores")
"""Columns that have a value in all rows or in none."""
_CARRIED = ("id", "group", "score", "candidate_scores")
CORPUS_COLUMNS = (*TEXT_COLUMNS, *_CARRIED)
"""The corpus columns of an example; :data:`SOURCE` may stand beside them."""


def example_schema(columns: Collection[str]) -> pa.Schema:
    """Return the schema of examples with these columns, with `source` if it is among them."""
    return SCHEMA.append(pa.field(SOURCE, pa.int32())) if SOURCE in columns else SCHEMA


@dataclass(frozen=True)
class TaskSums:
    """The lengths of a task's rows, before truncation.

    Attributes:
        longest: int64 [lengths]; rows by the length of their longest text, from 0 on.
        texts: int64 [lengths]; texts of any side by length; nulls do not count.
        negatives: int64 [hard negatives]; rows by their number of negatives, from 0 on.
        columns: Optional columns in which some rows have values.
        source: Number of the rows' source.
    """

    longest: np.ndarray
    texts: np.ndarray
    negatives: np.ndarray
    columns: frozenset[str] = frozenset()
    source: int = 0

    @classmethod
    def none(cls, source: int = 0) -> TaskSums:
        """Return the sums of no rows."""
        longest, texts, negatives = np.zeros((3, 1), np.int64)
        return cls(longest, texts, negatives, source=source)

    def __add__(self, other: TaskSums) -> TaskSums:
        return TaskSums(
            _summed(self.longest, other.longest),
            _summed(self.texts, other.texts),
            _summed(self.negatives, other.negatives),
            self.columns | other.columns,
            self.source,
        )


def tokenise_batch(
    batch: pa.RecordBatch, encoders: Mapping[str, TextEncoder]
) -> tuple[pa.RecordBatch, TaskSums]:
    """Return rows of :data:`SCHEMA` for rows of the corpus, and their lengths."""
    texts = {name: _Texts.of(batch.column(name)) for name in encoders}
    encoded = {name: encoders[name].encode(side.values) for name, side in texts.items()}
    full_lengths = np.concatenate([side.full_lengths for side in encoded.values()])
    lengths = np.concatenate([side.lengths for side in encoded.values()])
    is_text = np.concatenate([side.ids.is_valid() for side in encoded.values()])
    ids = {name: side.holding(encoded[name].ids) for name, side in texts.items()}
    schema, rows = example_schema(batch.schema.names), _rows_of(texts)
    examples = _example_batch(batch, schema, ids, rows, lengths, lengths < full_lengths)
    sums = TaskSums(
        np.bincount(_most(rows, batch.num_rows, full_lengths)),
        np.bincount(full_lengths[is_text]),
        np.bincount(list_lengths(examples["negatives"])),
        frozenset(name for name in OPTIONAL if examples[name].null_count < examples.num_rows),
    )
    return examples, sums


def shorten_batch(batch: pa.RecordBatch, max_length: int, behind: int) -> pa.RecordBatch:
    """Truncate rows of :data:`SCHEMA`, perhaps truncated before at a greater length."""
    texts = {name: _Texts.of(batch.column(name)) for name in TEXT_COLUMNS}
    cut = {name: shortened(side.values, max_length, behind) for name, side in texts.items()}
    before = np.concatenate([lengths for _, lengths in cut.values()])
    ids = {name: side.holding(cut[name][0]) for name, side in texts.items()}
    lengths, is_cut = np.minimum(before, max_length), before > max_length
    return _example_batch(batch, batch.schema, ids, _rows_of(texts), lengths, is_cut)


def _example_batch(
    batch: pa.RecordBatch,
    schema: pa.Schema,
    ids: Mapping[str, pa.Array],
    rows: np.ndarray,
    lengths: np.ndarray,
    is_cut: np.ndarray,
) -> pa.RecordBatch:
    """Return rows of a schema: carried columns, ids of texts, and sums over the texts."""
    carried = (*_CARRIED, SOURCE) if SOURCE in schema.names else _CARRIED
    count = batch.num_rows
    columns = {
        **{name: batch.column(name).cast(schema.field(name).type) for name in carried},
        "length": _most(rows, count, lengths),
        # Exact below 2^53.
        "tokens": np.bincount(rows, lengths, count).astype(np.int64),
        "cut": np.bincount(rows, is_cut, count).astype(np.int32),
        **ids,
    }
    return pa.RecordBatch.from_pydict(columns, schema=schema)


def _rows_of(texts: Mapping[str, _Texts]) -> np.ndarray:
    return np.concatenate([side.rows for side in texts.values()])


def _most(rows: np.ndarray, count: int, values: np.ndarray) -> np.ndarray:
    """Return the largest value in each of `count` rows."""
    found = np.zeros(count, np.int32)
    np.maximum.at(found, rows, values)
    return found


def rows_by_source(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each source in a batch of the corpus, with its number."""
    if SOURCE not in batch.schema.names:
        yield 0, batch
        return
    sources = batch.column(SOURCE).to_numpy()
    for source in np.unique(sources).tolist():
        yield source, batch.filter(pa.array(sources == source))


def _summed(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the sum of two histograms of lengths, perhaps of different sizes."""
    total = np.zeros(max(len(left), len(right)), np.int64)
    for counts in (left, right):
        total[: len(counts)] += counts
    return total


@dataclass(frozen=True)
class _Texts:
    """The texts or ids of a column, with lists flattened, and the row of each.

    A text is null where a row of strings has none.
    """

    column: pa.Array
    values: pa.Array
    rows: np.ndarray

    @classmethod
    def of(cls, column: pa.Array) -> _Texts:
        rows = np.arange(len(column))
        if pa.types.is_list(column.type):
            return cls(column, column.flatten(), np.repeat(rows, list_lengths(column)))
        return cls(column, column, rows)

    def holding(self, values: pa.Array) -> pa.Array:
        """Return a column like this one, with other values."""
        if pa.types.is_list(self.column.type):
            return with_values(self.column, values)
        return values
