"""The tokens stage: from pairs of text to token ids, Arrow in and Arrow out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipelines import storage
from pipelines.errors import InputError
from pipelines.frames import read_path, write_path
from pipelines.settings import Config
from pipelines.tokens.vocabulary import load_tokenizer, vocabulary_size, write_tokenizer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tokenizers import Tokenizer

EXAMPLES = (
    "id long, group long, length int, left binary, right binary, score float, tokens long, cut int"
)


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


def prepare_tokens(session: SparkSession, config: Config) -> TokenSummary:
    """Tokenises ``<prepared.folder>/corpus`` into ``<prepared.folder>/tokens``.

    ``examples.parquet`` has a row per pair: `id`, `group`, `length` (tokens of the longer side),
    `left` and `right` (little-endian int32 ids, [CLS] and [SEP] included, not padded; `right` is
    null for single texts), `score`. ``tokenizer/`` is the tokenizer.

    Raises:
        InputError: There is no corpus, or no tokenizer where the settings say.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    prepared = Path(config.prepared.folder).absolute()
    source = prepared / "corpus" / "pairs.parquet"
    if not source.is_dir():
        raise InputError(
            "prepared.folder",
            f"there is no corpus in {prepared}",
            "run `sentence-pipelines prepare` with the same settings first",
        )
    pairs = session.read.parquet(read_path(source))
    if pairs.isEmpty():
        raise InputError(
            "prepared.folder",
            f"the corpus in {prepared} is empty",
            "run `sentence-pipelines prepare` with other corpus settings",
        )
    with storage.new_folder(prepared / "tokens") as folder:
        tokenizer_folder = folder / "tokenizer"
        tokenizer_folder.mkdir()
        write_tokenizer(tokenizer_folder, config, pairs)
        tokenise = partial(
            tokenise_pairs,
            tokenizer_folder=str(tokenizer_folder),
            max_length=config.tokens.max_length,
        )
        examples = folder / "examples.parquet"
        columns = pairs.select("id", "group", "left", "right", "score")
        columns.mapInArrow(tokenise, EXAMPLES).write.parquet(
            write_path(examples), compression="zstd"
        )
        totals = (
            session.read.parquet(read_path(examples))
            .agg(F.count("*").alias("examples"), F.sum("tokens").alias("tokens"), F.sum("cut"))
            .collect()[0]
        )
        summary = TokenSummary(
            examples=totals["examples"],
            tokens=totals["tokens"] or 0,
            cut=totals["sum(cut)"] or 0,
            vocabulary=vocabulary_size(tokenizer_folder),
        )
        storage.write_json(folder / "manifest.json", vars(summary))
    return summary


def tokenise_pairs(
    batches: Iterator[pa.RecordBatch], *, tokenizer_folder: str, max_length: int
) -> Iterator[pa.RecordBatch]:
    """Turns text columns into columns of token ids. Runs on an executor."""
    # One task has one core; the library would start a thread for every core of the machine.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = load_tokenizer(Path(tokenizer_folder))
    for batch in batches:
        left, left_lengths, left_cut = token_column(batch.column("left"), tokenizer, max_length)
        right, right_lengths, right_cut = token_column(batch.column("right"), tokenizer, max_length)
        yield pa.RecordBatch.from_pydict(
            {
                "id": batch.column("id"),
                "group": batch.column("group"),
                "length": np.maximum(left_lengths, right_lengths),
                "left": left,
                "right": right,
                "score": batch.column("score"),
                "tokens": (left_lengths + right_lengths).astype(np.int64),
                "cut": left_cut.astype(np.int32) + right_cut,
            }
        )


def token_column(
    texts: pa.Array, tokenizer: Tokenizer, max_length: int
) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """Tokenises a column.

    Args:
        texts: Strings and nulls.
        tokenizer: Without cutting and padding.
        max_length: Ids to keep of a text; the last one kept is the text's own last one, [SEP].

    Returns:
        Ids as a binary column, int32 [rows] with the number of ids, and bool [rows] with whether
        the text was cut. For nulls: null, zero and false.
    """
    present = texts.is_valid().to_numpy(zero_copy_only=False)
    rows = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts.drop_null().to_pylist())]
    row_lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    ids = np.fromiter(chain.from_iterable(rows), "<i4", int(row_lengths.sum()))
    lengths = np.zeros(len(texts), np.int32)
    lengths[present] = row_lengths
    cut = lengths > max_length
    if cut.any():
        ids, lengths = _cut(ids, lengths, max_length)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64) * 4]).astype(np.int32)
    validity = np.packbits(present, bitorder="little")
    buffers = [pa.py_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(ids)]
    return pa.Array.from_buffers(pa.binary(), len(texts), buffers), lengths, cut


def _cut(ids: np.ndarray, lengths: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Keeps the first ``most - 1`` ids of a longer row, and its last one."""
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    place = np.arange(len(ids)) - starts
    from_end = np.repeat(lengths, lengths) - place
    kept = (place < most - 1) | (from_end == 1)
    return ids[kept], np.minimum(lengths, most)
