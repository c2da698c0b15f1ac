"""The tokens stage: from pairs of text to token ids, files in and files out.

Executors read the parts of the corpus and write the files of token ids themselves; Spark hands
out the parts and collects the sums.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import storage
from pipelines.errors import InputError
from pipelines.frames import Scratch
from pipelines.settings import Config
from pipelines.tokens.encoding import Encoded, TextEncoder, open_encoder
from pipelines.tokens.parts import Part, collect_from_parts, find_parts, read_part
from pipelines.tokens.vocabulary import load_tokenizer, vocabulary_size, write_tokenizer
from pipelines.tokens.words import TEXT_COLUMNS, count_words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "group": pa.int64(),
        "length": pa.int32(),
        "left": pa.binary(),
        "right": pa.binary(),
        "negative": pa.binary(),
        "score": pa.float32(),
        "tokens": pa.int64(),
        "cut": pa.int32(),
    }
)
"""Of ``examples.parquet``; see :func:`prepare_tokens`."""

_COLUMNS = ("id", "group", *TEXT_COLUMNS, "score")


@dataclass(frozen=True)
class TokenSummary:
    """What the tokens stage wrote.

    Attributes:
        examples: Rows.
        tokens: Token ids of all texts.
        cut: Texts that were longer than ``tokens.max_length``.
        vocabulary: Rows of a word embedding for these ids.
    """

    examples: int
    tokens: int
    cut: int
    vocabulary: int

    def __str__(self) -> str:
        return (
            f"{self.examples} examples of {self.tokens} tokens, {self.cut} texts cut,"
            f" vocabulary of {self.vocabulary}"
        )


@dataclass(frozen=True)
class TaskSums:
    """What a task wrote.

    Attributes:
        examples: Rows.
        tokens: Token ids of all texts.
        cut: Texts that were cut.
        lengths: Number of rows of each length from 0 on.
    """

    examples: int
    tokens: int
    cut: int
    lengths: np.ndarray


def prepare_tokens(session: SparkSession, config: Config) -> TokenSummary:
    """Tokenises ``<prepared.folder>/corpus`` into ``<prepared.folder>/tokens``.

    In that folder, which is replaced as a whole or left as it was:

    - `examples.parquet/` has a row per example: `id` and `group` (int64), `length` (int32; tokens
      of the longest side), `left`, `right` and `negative` (binary: little-endian int32 ids, [CLS]
      and [SEP] included, not padded; `right` and `negative` are null where there is no such
      side), `score` (float32), `tokens` (int64; of all sides), `cut` (int32; sides that were
      longer);
    - `tokenizer/` is the tokenizer;
    - `lengths.json` says how many examples have each length, `manifest.json` is the summary.

    The same corpus files and settings give the same bytes.

    Raises:
        InputError: There is no corpus, or no tokenizer where the settings say.
    """
    prepared = Path(config.prepared.folder).absolute()
    parts = _corpus_parts(prepared)
    with storage.new_folder(prepared / "tokens") as folder:
        tokenizer_folder = folder / "tokenizer"
        tokenizer_folder.mkdir()
        with Scratch(folder / "scratch") as scratch:
            count = partial(count_words, session, parts, scratch, lowercase=config.tokens.lowercase)
            write_tokenizer(tokenizer_folder, config, count)
        sums = _write_examples(session, parts, folder, config.tokens.max_length)
        lengths = np.sum([task.lengths for task in sums], axis=0)
        summary = TokenSummary(
            examples=sum(task.examples for task in sums),
            tokens=sum(task.tokens for task in sums),
            cut=sum(task.cut for task in sums),
            vocabulary=vocabulary_size(tokenizer_folder),
        )
        found = [[length, int(lengths[length])] for length in np.flatnonzero(lengths).tolist()]
        storage.write_json(folder / "lengths.json", {"lengths": found})
        storage.write_json(folder / "manifest.json", vars(summary))
    return summary


def _corpus_parts(prepared: Path) -> list[Part]:
    source = prepared / "corpus" / "pairs.parquet"
    if not source.is_dir():
        raise InputError(
            "prepared.folder",
            f"there is no corpus in {prepared}",
            "run `sentence-pipelines prepare` with the same settings first",
        )
    parts = find_parts(source)
    if not parts:
        raise InputError(
            "prepared.folder",
            f"the corpus in {prepared} is empty",
            "run `sentence-pipelines prepare` with other corpus settings",
        )
    return parts


def _write_examples(
    session: SparkSession, parts: Sequence[Part], folder: Path, max_length: int
) -> list[TaskSums]:
    """Has the parts tokenised; returns the sums of each task."""
    # Files of attempts that were killed stay here, and go with it.
    with Scratch(folder / "attempts"):
        (folder / "attempts").mkdir()
        (folder / "examples.parquet").mkdir()
        work = partial(tokenise_parts, folder=str(folder), max_length=max_length)
        return collect_from_parts(session, parts, work)


def tokenise_parts(parts: Iterator[Part], *, folder: str, max_length: int) -> Iterator[TaskSums]:
    """Writes a file of token ids for each part. Runs on an executor.

    A file is written under a name of this attempt and then gets its own, so that an attempt may
    fail, or run twice at a time.

    Args:
        parts: Of the corpus.
        folder: Has the folders `tokenizer`, `attempts` and `examples.parquet`.
        max_length: Ids to keep of a text.

    Yields:
        The sums of all parts, once.
    """
    encoder = _open_encoder(f"{folder}/tokenizer", max_length)
    examples = tokens = cut = 0
    lengths = np.zeros(max_length + 1, np.int64)
    for part in parts:
        attempt = Path(folder) / "attempts" / f"{part.name}.{uuid.uuid4().hex}"
        with pq.ParquetWriter(
            attempt, SCHEMA, compression="zstd", use_dictionary=False, write_statistics=False
        ) as writer:
            for batch in read_part(part, _COLUMNS):
                rows = tokenise_batch(batch, encoder)
                writer.write_batch(rows)
                examples += rows.num_rows
                tokens += int(np.sum(rows.column("tokens").to_numpy()))
                cut += int(np.sum(rows.column("cut").to_numpy()))
                lengths += np.bincount(rows.column("length").to_numpy(), minlength=len(lengths))
        attempt.replace(Path(folder) / "examples.parquet" / f"{part.name}.parquet")
    yield TaskSums(examples, tokens, cut, lengths)


@lru_cache(maxsize=1)
def _open_encoder(tokenizer_folder: str, max_length: int) -> TextEncoder:
    """Kept between the tasks of a Python worker, with the words that it has seen."""
    # One task has one core; the library would start a thread for every core of the machine.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return open_encoder(load_tokenizer(Path(tokenizer_folder)), max_length)


def tokenise_batch(batch: pa.RecordBatch, encoder: TextEncoder) -> pa.RecordBatch:
    """Rows of :data:`SCHEMA` for rows of the corpus; a text column may be missing."""
    sides = {
        name: encoder.encode(batch.column(name))
        if name in batch.schema.names
        else _no_texts(batch.num_rows)
        for name in TEXT_COLUMNS
    }
    lengths = np.stack([side.lengths for side in sides.values()])
    columns: Mapping[str, object] = {
        **{name: batch.column(name) for name in ("id", "group")},
        "score": batch.column("score").cast(pa.float32()),
        "length": lengths.max(axis=0),
        "tokens": lengths.sum(axis=0, dtype=np.int64),
        "cut": np.sum([side.cut for side in sides.values()], axis=0, dtype=np.int32),
        **{name: side.ids for name, side in sides.items()},
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def _no_texts(rows: int) -> Encoded:
    return Encoded(pa.nulls(rows, pa.binary()), np.zeros(rows, np.int32), np.zeros(rows, np.bool_))
