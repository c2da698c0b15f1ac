"""The tokens stage: from pairs of text to token ids, files in and files out.

Executors read the parts of the corpus and write the files of token ids themselves; Spark hands
out the parts and collects the sums. Where no length is set, the lengths of all texts decide it, and
files with longer ones are then written once more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache, partial, reduce
from operator import add
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.files.locations import Location, arrow_source
from pipelines.files.prepared_folder import PreparedFolder, TokensFolder
from pipelines.progress import next_part
from pipelines.settings import Config
from pipelines.spark.frames import Scratch
from pipelines.spark.parquet_parts import (
    Part,
    collect_from_parts,
    find_files,
    find_parts,
    read_part,
    read_table,
)
from pipelines.tokens.encoding import (
    Encoded,
    PromptedEncoder,
    TextEncoder,
    open_encoder,
    shortened,
)
from pipelines.tokens.lengths import model_length, reading_limit, told_cuts, training_length
from pipelines.tokens.prompts import training_prompts
from pipelines.tokens.special_tokens import special_ends
from pipelines.tokens.vocabulary import load_tokenizer, vocabulary_size, write_tokenizer
from pipelines.tokens.words import TEXT_COLUMNS, count_words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "group": pa.int64(),
        "length": pa.int32(),
        "anchor": pa.binary(),
        "positive": pa.binary(),
        "negative": pa.binary(),
        "score": pa.float32(),
        "tokens": pa.int64(),
        "cut": pa.int32(),
    }
)
"""Of ``examples.parquet``; see :func:`prepare_tokens`."""

_COLUMNS = ("id", "group", *TEXT_COLUMNS, "score")
_AGAIN = "run `sentence-pipelines prepare` with the same settings first"


@dataclass(frozen=True)
class TokenSummary:
    """What the tokens stage wrote.

    Attributes:
        examples: Rows.
        texts: Texts of all sides.
        tokens: Token ids of all texts.
        max_length: Tokens after which a text is cut.
        cut: Texts that were longer.
        dropped: Tokens that they had more.
        vocabulary: Rows of a word embedding for these ids.
        prompts: What stands before the texts of a side, by its name.
    """

    examples: int
    texts: int
    tokens: int
    max_length: int
    cut: int
    dropped: int
    vocabulary: int
    prompts: Mapping[str, str]

    def __str__(self) -> str:
        prompts = "".join(f", `{text}` before {side}" for side, text in self.prompts.items())
        return (
            f"{self.examples} examples of {self.tokens} tokens{prompts},"
            f" {told_cuts(asdict(self))}, vocabulary of {self.vocabulary}"
        )


@dataclass(frozen=True)
class TaskSums:
    """The lengths of what a task wrote, before anything was cut.

    Attributes:
        longest: int64 [lengths]; how many rows have a longest text of each length, from 0 on.
        texts: int64 [lengths]; how many texts of any side have each length; nulls are none.
    """

    longest: np.ndarray
    texts: np.ndarray

    def __add__(self, other: TaskSums) -> TaskSums:
        return TaskSums(
            _summed(self.longest, other.longest),
            _summed(self.texts, other.texts),
        )


def prepare_tokens(session: SparkSession, config: Config) -> TokenSummary:
    """Tokenises ``<prepared.folder>/corpus`` into ``<prepared.folder>/tokens``.

    In that folder, which is replaced as a whole or left as it was:

    - `examples.parquet/` has a row per example: `id` and `group` (int64), `length` (int32; tokens
      of the longest side), `anchor`, `positive` and `negative` (binary: little-endian int32 ids,
      special ones too, not padded; the last two are null where there is no such side), `score`
      (float32), `tokens` (int64; of all sides), `cut` (int32; sides that were longer);
    - `tokenizer/` is the tokenizer;
    - `lengths.json` says how many examples have each length, `manifest.json` is the summary.

    A text has the prompt of its side before it. It is cut after ``tokens.max_length`` ids, or,
    where that is not set, after as many as :func:`~pipelines.tokens.lengths.training_length` says.

    The same corpus files and settings give the same bytes.

    Raises:
        InputError: There is no corpus, or no tokenizer where the settings say.
    """
    prepared = PreparedFolder.of(config)
    parts, prompts = _corpus_parts(prepared), training_prompts(config)
    limit = reading_limit(config)
    with storage.new_folder(prepared.tokens.path) as folder:
        tokenizer_folder = TokensFolder(folder).tokenizer
        next_part("the tokenizer")
        with (
            Scratch(folder / "scratch") as scratch,
            storage.inner_folder(tokenizer_folder) as made,
        ):
            count = partial(count_words, session, parts, scratch, lowercase=config.tokens.lowercase)
            write_tokenizer(made, config, count, limit)
        next_part("token ids")
        sums = _write_examples(session, parts, folder, prompts, limit)
        max_length = limit
        if config.tokens.max_length is None:
            max_length = training_length(sums.longest, limit, config.lanes.bucket)
            _shorten_examples(session, folder, sums, max_length)
        summary = _summary(sums, max_length, vocabulary_size(tokenizer_folder), prompts)
        lengths = _clipped(sums.longest, max_length)
        found = [[length, int(lengths[length])] for length in np.flatnonzero(lengths).tolist()]
        storage.write_json(TokensFolder(folder).lengths, {"lengths": found})
        storage.write_json(TokensFolder(folder).manifest, asdict(summary))
    return summary


def check_tokens(folder: Location, config: Config) -> None:
    """Makes sure that tokens were prepared for the model that a configuration asks for.

    Args:
        folder: Of :func:`prepare_tokens`.
        config: Of a training.

    Raises:
        InputError: They are longer than the model reads, have other prompts before them, or were
            written by an earlier release.
    """
    manifest = storage.read_json(TokensFolder(folder).manifest)
    length, prompts = model_length(config), training_prompts(config)
    if "max_length" not in manifest:
        raise InputError("prepared.folder", f"{folder} has another format", _AGAIN)
    if manifest["max_length"] > length:
        raise InputError(
            "prepared.folder",
            f"its texts have up to {manifest['max_length']} tokens, and the model reads {length}",
            _AGAIN,
        )
    if manifest["prompts"] != prompts:
        raise InputError(
            "prepared.folder",
            f"it was prepared with the prompts {manifest['prompts']}, and not {prompts}",
            _AGAIN,
        )


def _corpus_parts(prepared: PreparedFolder) -> list[Part]:
    source = prepared.corpus.pairs
    if not source.is_dir():
        raise InputError("prepared.folder", f"there is no corpus in {prepared.path}", _AGAIN)
    parts = find_parts(source)
    if not parts:
        raise InputError(
            "prepared.folder",
            f"the corpus in {prepared.path} is empty",
            "run `sentence-pipelines prepare` with other corpus settings",
        )
    if TEXT_COLUMNS[0] not in pq.read_schema(arrow_source(parts[0].path)).names:
        raise InputError("prepared.folder", f"{source} has another format", _AGAIN)
    return parts


def _summary(
    sums: TaskSums, max_length: int, vocabulary: int, prompts: Mapping[str, str]
) -> TokenSummary:
    lengths = np.arange(len(sums.texts))
    kept = int(sums.texts @ np.minimum(lengths, max_length))
    return TokenSummary(
        examples=int(sums.longest.sum()),
        texts=int(sums.texts.sum()),
        tokens=kept,
        max_length=max_length,
        cut=int(sums.texts[lengths > max_length].sum()),
        dropped=int(sums.texts @ lengths) - kept,
        vocabulary=vocabulary,
        prompts=prompts,
    )


def _write_examples(
    session: SparkSession,
    parts: Sequence[Part],
    folder: Location,
    prompts: Mapping[str, str],
    max_length: int,
) -> TaskSums:
    """Has the parts tokenised; returns the sums of all tasks."""
    TokensFolder(folder).examples.mkdir()
    work = partial(tokenise_parts, folder=folder, prompts=prompts, max_length=max_length)
    with _attempts(folder):
        return reduce(add, collect_from_parts(session, parts, work))


def _shorten_examples(
    session: SparkSession, folder: Location, sums: TaskSums, max_length: int
) -> None:
    """Has the files written once more that hold longer texts, if there are any."""
    if len(sums.longest) - 1 <= max_length:
        return
    work = partial(shorten_parts, folder=folder, max_length=max_length)
    with _attempts(folder):
        collect_from_parts(session, find_files(TokensFolder(folder).examples), work)


@contextmanager
def _attempts(folder: Location) -> Iterator[None]:
    """A folder for the files of attempts; those of attempts that were killed go with it."""
    with Scratch(folder / "attempts"):
        (folder / "attempts").mkdir()
        yield


def tokenise_parts(
    parts: Iterator[Part], *, folder: Location, prompts: Mapping[str, str], max_length: int
) -> Iterator[TaskSums]:
    """Writes a file of token ids for each part. Runs on an executor.

    A file is written under a name of this attempt and then gets its own, so that an attempt may
    fail, or run twice at a time.

    Args:
        parts: Of the corpus.
        folder: Has the folders `tokenizer`, `attempts` and `examples.parquet`.
        prompts: What stands before the texts of a side.
        max_length: Ids to keep of a text.

    Yields:
        The sums of all parts, once.
    """
    encoder = _open_encoder(TokensFolder(folder).tokenizer, max_length)
    encoders = {name: PromptedEncoder(encoder, prompts.get(name, "")) for name in TEXT_COLUMNS}
    sums = TaskSums(np.zeros(1, np.int64), np.zeros(1, np.int64))
    for part in parts:
        target = TokensFolder(folder).examples / f"{part.name}.parquet"
        with _writer(target, folder) as writer:
            for batch in read_part(part, _COLUMNS):
                rows, some = tokenise_batch(batch, encoders)
                writer.write_batch(rows)
                sums += some
    yield sums


def shorten_parts(parts: Iterator[Part], *, folder: Location, max_length: int) -> Iterator[int]:
    """Cuts the texts of files of token ids. Runs on an executor.

    A file without longer texts stays what it is, so an attempt may run twice here too.

    Args:
        parts: Whole files of `examples.parquet`.
        folder: Has the folder `attempts`.
        max_length: Ids to keep of a text.

    Yields:
        How many files were written, once.
    """
    written, ends = 0, special_ends(load_tokenizer(TokensFolder(folder).tokenizer))
    for part in parts:
        lengths = read_table(part.path, ["length"]).column("length").to_numpy()
        if lengths.max(initial=0) <= max_length:
            continue
        with _writer(part.path, folder) as writer:
            for batch in read_part(part, SCHEMA.names):
                writer.write_batch(shorten_batch(batch, max_length, ends.behind))
        written += 1
    yield written


@contextmanager
def _writer(target: Location, folder: Location) -> Iterator[pq.ParquetWriter]:
    """Writes a file aside, in the folder `attempts`. Runs on an executor."""
    with (
        storage.built_file(target, aside_in=folder / "attempts") as attempt,
        pq.ParquetWriter(
            attempt, SCHEMA, compression="zstd", use_dictionary=False, write_statistics=False
        ) as writer,
    ):
        yield writer


@lru_cache(maxsize=1)
def _open_encoder(tokenizer_folder: Location, max_length: int) -> TextEncoder:
    """Kept between the tasks of a Python worker, with the words that it has seen."""
    # One task has one core; the library would start a thread for every core of the machine.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return open_encoder(load_tokenizer(tokenizer_folder), max_length)


def tokenise_batch(
    batch: pa.RecordBatch, encoders: Mapping[str, TextEncoder]
) -> tuple[pa.RecordBatch, TaskSums]:
    """Rows of :data:`SCHEMA` for rows of the corpus, and their lengths.

    Args:
        batch: A text column may be missing.
        encoders: By text column.
    """
    sides = {
        name: encoder.encode(batch.column(name))
        if name in batch.schema.names
        else _no_texts(batch.num_rows)
        for name, encoder in encoders.items()
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
    whole = np.stack([side.whole for side in sides.values()])
    is_text = np.stack([side.ids.is_valid() for side in sides.values()])
    sums = TaskSums(np.bincount(whole.max(axis=0)), np.bincount(whole[is_text]))
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA), sums


def shorten_batch(batch: pa.RecordBatch, max_length: int, behind: int) -> pa.RecordBatch:
    """Rows of :data:`SCHEMA` that were cut at a greater length, or not at all, cut at this one."""
    sides = {name: shortened(batch.column(name), max_length, behind) for name in TEXT_COLUMNS}
    before = np.stack([lengths for _, lengths in sides.values()])
    lengths = np.minimum(before, max_length)
    columns = {
        **{name: batch.column(name) for name in ("id", "group", "score")},
        "length": lengths.max(axis=0),
        "tokens": lengths.sum(axis=0, dtype=np.int64),
        "cut": (before > max_length).sum(axis=0, dtype=np.int32),
        **{name: ids for name, (ids, _) in sides.items()},
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def _no_texts(rows: int) -> Encoded:
    return Encoded(pa.nulls(rows, pa.binary()), np.zeros(rows, np.int32), np.zeros(rows, np.int32))


def _summed(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The sum of two counts by length, of which one may go further."""
    total = np.zeros(max(len(one), len(other)), np.int64)
    for counts in (one, other):
        total[: len(counts)] += counts
    return total


def _clipped(counts: np.ndarray, most: int) -> np.ndarray:
    """Counts by length, of which what is longer counts as the longest."""
    clipped = counts[: most + 1].copy()
    clipped[-1] += counts[most + 1 :].sum()
    return clipped
