"""The tokens stage: from pairs of text to token ids, files in and files out.

Spark hands out the parts of the corpus and collects the sums; executors read the parts and write
the files of token ids themselves. Where no length is set, the lengths of all texts decide it, and
files with longer texts are then rewritten.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache, partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.errors import InputError
from pipelines.files import records, storage
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
    SOURCE,
    TEXT_COLUMNS,
    TaskSums,
    count_words,
    example_schema,
    rows_by_source,
    shorten_batch,
    tokenise_batch,
)
from pipelines.tokens.start import training_prompts
from pipelines.tokens.summary import TokenSummary, lengths_json, summarise, training_length
from pipelines.tokens.vocabulary import (
    load_tokenizer,
    special_ends,
    vocabulary_size,
    write_tokenizer,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SIDES = ("anchor", "positive")
_LENGTH_TEXTS = 5_000
"""Texts in the sample of lengths."""


def sampled_pairs(prepared: PreparedFolder, most: int) -> Iterator[pa.RecordBatch]:
    """Yield texts of training pairs, in the columns :data:`SIDES`, without Spark.

    Takes the first rows of each file: `most` pairs of all files together, or a few more. Rows lie
    in the order of their hashes, so these are a random sample.
    """
    files = find_files(prepared.corpus.pairs)
    total = sum(file.rows for file in files)
    for file in files:
        # Rounded up, so a small file gives a row too.
        left = -(-file.rows * min(total, most) // total)
        for batch in read_part(file, SIDES):
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)
            if not left:
                break


def corpus_length(prepared: PreparedFolder, trained_length: int, most: int) -> int:
    """Return the text length, in tokens, for a model of a corpus.

    It is `most` if more than half of the documents are longer than `trained_length`, else
    `trained_length`. A document is a `positive` text of the corpus, or its only text.
    """
    encoder = open_encoder(load_tokenizer(prepared.tokens.tokenizer), trained_length)
    cut = [
        encoder.encode(pc.coalesce(*(batch[name] for name in reversed(batch.schema.names)))).cut
        for batch in sampled_pairs(prepared, _LENGTH_TEXTS)
    ]
    if cut and np.concatenate(cut).mean() > 0.5:
        return max(trained_length, most)
    return trained_length


_AGAIN = "Run `sentence-pipelines prepare` with the same settings first"


def prepare_tokens(session: SparkSession, config: Config, limit: int) -> TokenSummary:
    """Tokenise ``<prepared.folder>/corpus`` into ``<prepared.folder>/tokens``.

    The folder is replaced as a whole or left unchanged. It holds:

    - `examples.parquet/`, a row per example: `id` and `group` (int64), `length` (int32; tokens of
      the longest text), `anchor` and `positive` (binary: little-endian int32 ids with special ones,
      not padded), `negatives` (lists of such; `positive` and `negatives` may be null), `score`
      (float32), `candidate_scores` (lists of float32), `tokens` (int64; of all texts), `cut`
      (int32; truncated texts);
    - `tokenizer/`;
    - `lengths.json`, the number of examples of each length, and `manifest.json`, the summary.

    With several sources, `examples.parquet` also has `source` (int32; its number), and
    `lengths.json` the lengths of each.

    Each text follows the prompt of its side. It is truncated to ``tokens.max_length`` ids, or by
    default to :func:`.summary.training_length`. The same corpus files and settings give the same
    bytes.

    Args:
        limit: Most tokens of a text in training: see :func:`pipelines.models.start.reading_limit`.

    Raises:
        InputError: There is no corpus, no tokenizer where the settings say, or the examples differ
            in their number of hard negatives.
    """
    prepared = PreparedFolder.of(config)
    parts, prompts = _corpus_parts(prepared, config), _prompts(config)
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
        of_sources = _write_examples(session, parts, folder, prompts, limit)
        sums = reduce(add, of_sources)
        max_length = limit
        # Only the lengths of all texts decide it, so the files come first.
        if config.tokens.max_length is None:
            max_length = training_length(sums.longest, limit, config.lanes.bucket)
            _shorten_examples(session, folder, sums, max_length)
        vocabulary = vocabulary_size(tokenizer_folder)
        names = [source.name for source in config.corpus.sources]
        summary = summarise(of_sources, names, prompts, max_length, vocabulary)
        storage.write_json(
            TokensFolder(folder).lengths, lengths_json(of_sources, names, max_length)
        )
        storage.write_json(TokensFolder(folder).manifest, asdict(summary))
    return summary


def check_tokens(folder: Location, config: Config, length: int) -> None:
    """Refuse tokens unfit for the configured model; it reads `length` tokens.

    Raises:
        InputError: The texts are longer, have other prompts, or are of an earlier release.
    """
    path = TokensFolder(folder).manifest
    manifest = records.read(path, dict[str, Any])
    prompts = _prompts(config)
    if not {"max_length", "columns"} <= manifest.keys():
        raise InputError("prepared.folder", f"{folder} has another format", _AGAIN)
    # Raises if the file is damaged: from here on every field is needed.
    records.read(path, TokenSummary)
    if manifest["max_length"] > length:
        raise InputError(
            "prepared.folder",
            f"its texts have up to {manifest['max_length']} tokens, but the model reads {length}",
            _AGAIN,
        )
    known = manifest.get("sources", [])
    names = [source.name for source in config.corpus.sources]
    if [source["name"] for source in known] != names:
        sources = ", ".join(source["name"] for source in known) or "none"
        asked = ", ".join(names) or "none"
        raise InputError(
            "prepared.folder", f"it was prepared with the sources {sources}, not {asked}", _AGAIN
        )
    for source, expected in zip(known or [manifest], prompts, strict=True):
        if source["prompts"] != expected:
            raise InputError(
                "prepared.folder",
                f"it was prepared with the prompts {source['prompts']}, not {expected}",
                _AGAIN,
            )


def _prompts(config: Config) -> list[dict[str, str]]:
    """Return the prompt of each side, for each source; without named sources, a list of one."""
    return [training_prompts(source_config) for source_config in config.by_source()]


def _corpus_parts(prepared: PreparedFolder, config: Config) -> list[Part]:
    source = prepared.corpus.pairs
    if not source.is_dir():
        raise InputError("prepared.folder", f"there is no corpus in {prepared.path}", _AGAIN)
    parts = find_parts(source)
    if not parts:
        raise InputError(
            "prepared.folder",
            f"the corpus in {prepared.path} is empty",
            "Run `sentence-pipelines prepare` with other corpus settings",
        )
    names = pq.read_schema(arrow_source(parts[0].path)).names
    if not {*CORPUS_COLUMNS} <= {*names} or (SOURCE in names) != bool(config.corpus.sources):
        raise InputError("prepared.folder", f"{source} has another format", _AGAIN)
    return parts


def _write_examples(
    session: SparkSession,
    parts: Sequence[Part],
    folder: Location,
    prompts: Sequence[Mapping[str, str]],
    max_length: int,
) -> list[TaskSums]:
    """Tokenise the parts; return the sums of all tasks for each source."""
    TokensFolder(folder).examples.mkdir()
    work = partial(tokenise_parts, folder=folder, prompts=prompts, max_length=max_length)
    with _attempts(folder):
        found = collect_from_parts(session, parts, work)
    return [
        reduce(add, (sums for sums in found if sums.source == source))
        for source, _ in enumerate(prompts)
    ]


def _shorten_examples(
    session: SparkSession, folder: Location, sums: TaskSums, max_length: int
) -> None:
    if len(sums.longest) - 1 <= max_length:
        return
    work = partial(shorten_parts, folder=folder, max_length=max_length)
    with _attempts(folder):
        collect_from_parts(session, find_files(TokensFolder(folder).examples), work)


@contextmanager
def _attempts(folder: Location) -> Iterator[None]:
    """Make a folder for the files of attempts; remove it with those of killed attempts."""
    with Scratch(folder / "attempts"):
        (folder / "attempts").mkdir()
        yield


def tokenise_parts(
    parts: Iterator[Part],
    *,
    folder: Location,
    prompts: Sequence[Mapping[str, str]],
    max_length: int,
) -> Iterator[TaskSums]:
    """Write a file of token ids for each part, and yield the sums per source. Runs on an executor.

    Each attempt writes a file under its own name and then renames it, so attempts may fail, or run
    twice at a time. `folder` has the folders `tokenizer`, `attempts` and `examples.parquet`;
    `prompts` holds the prompt of each side, for each source.
    """
    encoder = _open_encoder(TokensFolder(folder).tokenizer, max_length)
    encoders = [
        {name: PromptedEncoder(encoder, before.get(name, "")) for name in TEXT_COLUMNS}
        for before in prompts
    ]
    sums = [TaskSums.none(source) for source, _ in enumerate(prompts)]
    for part in parts:
        target = TokensFolder(folder).examples / f"{part.name}.parquet"
        with _writer(target, folder, _schema(part)) as writer:
            for batch in read_part(part, (*CORPUS_COLUMNS, SOURCE)):
                for source, rows in rows_by_source(batch):
                    examples, batch_sums = tokenise_batch(rows, encoders[source])
                    writer.write_batch(examples)
                    sums[source] += batch_sums
    yield from sums


def shorten_parts(parts: Iterator[Part], *, folder: Location, max_length: int) -> Iterator[int]:
    """Truncate texts of `examples.parquet`; yield the number of new files. Runs on an executor.

    Files without longer texts stay unchanged, so attempts may run twice here too. `folder` has the
    folder `attempts`.
    """
    written, ends = 0, special_ends(load_tokenizer(TokensFolder(folder).tokenizer))
    for part in parts:
        lengths = read_table(part.path, ["length"]).column("length").to_numpy()
        if lengths.max(initial=0) <= max_length:
            continue
        schema = _schema(part)
        with _writer(part.path, folder, schema) as writer:
            for batch in read_part(part, schema.names):
                writer.write_batch(shorten_batch(batch, max_length, ends.behind))
        written += 1
    yield written


def _schema(part: Part) -> pa.Schema:
    return example_schema(pq.read_schema(arrow_source(part.path)).names)


@contextmanager
def _writer(target: Location, folder: Location, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """Write a file aside, in the folder `attempts`. Runs on an executor."""
    with (
        storage.built_file(target, aside_in=folder / "attempts") as attempt,
        pq.ParquetWriter(
            attempt, schema, compression="zstd", use_dictionary=False, write_statistics=False
        ) as writer,
    ):
        yield writer


@lru_cache(maxsize=1)
def _open_encoder(tokenizer_folder: Location, max_length: int) -> TextEncoder:
    """Open an encoder; a Python worker keeps it, with its known words, between tasks."""
    # One task has one core; the library would start a thread for every core of the machine.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return open_encoder(load_tokenizer(tokenizer_folder), max_length)
