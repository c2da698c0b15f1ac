"""The rows of examples: token ids as binary columns, and what is counted of them."""

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
"""Of ``examples.parquet``; see :func:`pipelines.tokens.stage.prepare_tokens`."""

SOURCE = "source"
"""Of several sources, the number of the one that an example is of; not there where there is one."""
OPTIONAL = ("positive", "negatives", "score", "candidate_scores")
"""Columns that all rows have values in, or none."""
_CARRIED = ("id", "group", "score", "candidate_scores")
CORPUS_COLUMNS = (*TEXT_COLUMNS, *_CARRIED)
"""Of the corpus, that examples are made of; beside them there may be :data:`SOURCE`."""


def example_schema(columns: Collection[str]) -> pa.Schema:
    """The schema of examples that are made of such columns: those of several sources name theirs.

    Args:
        columns: Of the corpus, or of examples.
    """
    return SCHEMA.append(pa.field(SOURCE, pa.int32())) if SOURCE in columns else SCHEMA


@dataclass(frozen=True)
class TaskSums:
    """The lengths of what a task wrote, before anything was cut.

    Attributes:
        longest: int64 [lengths]; how many rows have a longest text of each length, from 0 on.
        texts: int64 [lengths]; how many texts of any side have each length; nulls are none.
        negatives: int64 [hard negatives]; how many rows have so many, from 0 on.
        columns: Names of the optional columns that some rows have values in.
        source: Number of the source that the rows are of.
    """

    longest: np.ndarray
    texts: np.ndarray
    negatives: np.ndarray
    columns: frozenset[str] = frozenset()
    source: int = 0

    @classmethod
    def none(cls, source: int = 0) -> TaskSums:
        """Of no rows of a source."""
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
    """Rows of :data:`SCHEMA` for rows of the corpus, and their lengths.

    Args:
        batch: Of the corpus.
        encoders: By text column.
    """
    texts = {name: _Texts.of(batch.column(name)) for name in encoders}
    schema = example_schema(batch.schema.names)
    encoded = {name: encoders[name].encode(one.values) for name, one in texts.items()}
    rows = _Rows.of([*texts.values()])
    whole = np.concatenate([side.whole for side in encoded.values()])
    lengths = np.concatenate([side.lengths for side in encoded.values()])
    columns = {
        **{name: batch.column(name).cast(schema.field(name).type) for name in _carried(schema)},
        **rows.columns(lengths, lengths < whole),
        **{name: one.holding(encoded[name].ids) for name, one in texts.items()},
    }
    is_text = np.concatenate([side.ids.is_valid() for side in encoded.values()])
    examples = pa.RecordBatch.from_pydict(columns, schema=schema)
    sums = TaskSums(
        np.bincount(rows.most(whole)),
        np.bincount(whole[is_text]),
        np.bincount(list_lengths(examples["negatives"])),
        frozenset(name for name in OPTIONAL if examples[name].null_count < examples.num_rows),
    )
    return examples, sums


def shorten_batch(batch: pa.RecordBatch, max_length: int, behind: int) -> pa.RecordBatch:
    """Rows of :data:`SCHEMA` that were cut at a greater length, or not at all, cut at this one."""
    texts = {name: _Texts.of(batch.column(name)) for name in TEXT_COLUMNS}
    cut = {name: shortened(one.values, max_length, behind) for name, one in texts.items()}
    rows = _Rows.of([*texts.values()])
    before = np.concatenate([lengths for _, lengths in cut.values()])
    columns = {
        **{name: batch.column(name) for name in _carried(batch.schema)},
        **rows.columns(np.minimum(before, max_length), before > max_length),
        **{name: one.holding(cut[name][0]) for name, one in texts.items()},
    }
    return pa.RecordBatch.from_pydict(columns, schema=batch.schema)


def rows_by_source(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each source in a batch of the corpus, with its number."""
    if SOURCE not in batch.schema.names:
        yield 0, batch
        return
    sources = batch.column(SOURCE).to_numpy()
    for source in np.unique(sources).tolist():
        yield source, batch.filter(pa.array(sources == source))


def _carried(schema: pa.Schema) -> tuple[str, ...]:
    """Columns of the corpus that examples have as they are."""
    return (*_CARRIED, SOURCE) if SOURCE in schema.names else _CARRIED


def _summed(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The sum of two counts by length, of which one may go further."""
    total = np.zeros(max(len(one), len(other)), np.int64)
    for counts in (one, other):
        total[: len(counts)] += counts
    return total


@dataclass(frozen=True)
class _Texts:
    """The texts of a column of strings or ids, or of lists of them, one below the other.

    Attributes:
        column: The column.
        values: The texts; null where a row of strings has none.
        rows: The row of each text.
    """

    column: pa.Array
    values: pa.Array
    rows: np.ndarray

    @classmethod
    def of(cls, column: pa.Array) -> _Texts:
        """The texts of a column."""
        rows = np.arange(len(column))
        if pa.types.is_list(column.type):
            return cls(column, column.flatten(), np.repeat(rows, list_lengths(column)))
        return cls(column, column, rows)

    def holding(self, values: pa.Array) -> pa.Array:
        """A column like this one, of other values."""
        if pa.types.is_list(self.column.type):
            return with_values(self.column, values)
        return values


@dataclass(frozen=True)
class _Rows:
    """Sums texts up by their rows.

    Attributes:
        rows: The row of each text.
        count: Rows.
    """

    rows: np.ndarray
    count: int

    @classmethod
    def of(cls, texts: Sequence[_Texts]) -> _Rows:
        """The rows of the texts of some columns, one column after the other."""
        return cls(np.concatenate([one.rows for one in texts]), len(texts[0].column))

    def most(self, values: np.ndarray) -> np.ndarray:
        """The largest value of each row."""
        found = np.zeros(self.count, np.int32)
        np.maximum.at(found, self.rows, values)
        return found

    def sums(self, values: np.ndarray) -> np.ndarray:
        """The sum of each row, int64: exact below 2^53."""
        return np.bincount(self.rows, values, self.count).astype(np.int64)

    def columns(self, lengths: np.ndarray, cut: np.ndarray) -> dict[str, np.ndarray]:
        """The columns `length`, `tokens` and `cut`, of the tokens of texts and which were cut."""
        return {
            "length": self.most(lengths),
            "tokens": self.sums(lengths),
            "cut": self.sums(cut).astype(np.int32),
        }
