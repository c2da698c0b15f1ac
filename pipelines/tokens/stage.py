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
from pipelines.tokens.encoding import PromptedEncoder, TextEncoder, open_encoder
from pipelines.tokens.examples import (
    CORPUS_COLUMNS,
    OPTIONAL,
    SCHEMA,
    TaskSums,
    shorten_batch,
    tokenise_batch,
)
from pipelines.tokens.lengths import model_length, reading_limit, told_cuts, training_length
from pipelines.tokens.prompts import training_prompts
from pipelines.tokens.special_tokens import special_ends
from pipelines.tokens.vocabulary import load_tokenizer, vocabulary_size, write_tokenizer
from pipelines.tokens.words import TEXT_COLUMNS, count_words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        negatives: Hard negatives of each example.
        columns: Names of the optional columns that examples have.
        prompts: What stands before the texts of a side, by its name.
    """

    examples: int
    texts: int
    tokens: int
    max_length: int
    cut: int
    dropped: int
    vocabulary: int
    negatives: int
    columns: tuple[str, ...]
    prompts: Mapping[str, str]

    def __str__(self) -> str:
        prompts = "".join(f", `{text}` before {side}" for side, text in self.prompts.items())
        return (
            f"{self.examples} examples of {self.tokens} tokens{prompts},"
            f" {told_cuts(asdict(self))}, vocabulary of {self.vocabulary}"
        )


def prepare_tokens(session: SparkSession, config: Config) -> TokenSummary:
    """Tokenises ``<prepared.folder>/corpus`` into ``<prepared.folder>/tokens``.

    In that folder, which is replaced as a whole or left as it was:

    - `examples.parquet/` has a row per example: `id` and `group` (int64), `length` (int32; tokens
      of the longest text), `anchor` and `positive` (binary: little-endian int32 ids, special
      ones too, not padded), `negatives` (lists of such; `positive` and `negatives` are null
      where there are none), `score` (float32), `candidate_scores` (lists of float32), `tokens`
      (int64; of all texts), `cut` (int32; texts that were longer);
    - `tokenizer/` is the tokenizer;
    - `lengths.json` says how many examples have each length, `manifest.json` is the summary.

    A text has the prompt of its side before it. It is cut after ``tokens.max_length`` ids, or,
    where that is not set, after as many as :func:`~pipelines.tokens.lengths.training_length` says.

    The same corpus files and settings give the same bytes.

    Raises:
        InputError: There is no corpus, or no tokenizer where the settings say; or not all examples
            have the same number of hard negatives.
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
        negatives = _hard_negatives(sums.negatives)
        max_length = limit
        if config.tokens.max_length is None:
            max_length = training_length(sums.longest, limit, config.lanes.bucket)
            _shorten_examples(session, folder, sums, max_length)
        vocabulary = vocabulary_size(tokenizer_folder)
        summary = _summary(sums, max_length, vocabulary, negatives, prompts)
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
    if not {"max_length", "columns"} <= manifest.keys():
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
    names = pq.read_schema(arrow_source(parts[0].path)).names
    if not {*CORPUS_COLUMNS} <= {*names}:
        raise InputError("prepared.folder", f"{source} has another format", _AGAIN)
    return parts


def _hard_negatives(counts: np.ndarray) -> int:
    """How many hard negatives each example has.

    Args:
        counts: Rows by how many they have.

    Raises:
        InputError: Some have more than others, and a granule could not be computed as one.
    """
    found = np.flatnonzero(counts)
    if len(found) > 1:
        rows = counts.sum()
        raise InputError(
            "corpus.triplet_columns",
            f"{rows - counts[-1]} of {rows} examples have fewer than {found[-1]} hard negatives",
            "give all of them as many, or leave the others out of the corpus",
        )
    return int(found[0])


def _summary(
    sums: TaskSums, max_length: int, vocabulary: int, negatives: int, prompts: Mapping[str, str]
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
        negatives=negatives,
        columns=tuple(name for name in OPTIONAL if name in sums.columns),
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
    sums = TaskSums(*np.zeros((3, 1), np.int64))
    for part in parts:
        target = TokensFolder(folder).examples / f"{part.name}.parquet"
        with _writer(target, folder) as writer:
            for batch in read_part(part, CORPUS_COLUMNS):
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


def _clipped(counts: np.ndarray, most: int) -> np.ndarray:
    """Counts by length, of which what is longer counts as the longest."""
    clipped = counts[: most + 1].copy()
    clipped[-1] += counts[most + 1 :].sum()
    return clipped
