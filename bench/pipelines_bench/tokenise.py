"""Measures tokenising: the library alone, `datasets.map`, and the tokens stage in Spark.

All three give the ids of the same texts with the same tokenizer, and the time is CPU time of all
their processes: wall clock would praise what merely keeps more cores busy. Texts are cut at
:data:`MAX_LENGTH`, which few reach, so that hardly any work is thrown away. Each figure favours
the peers where there is a choice: the library's time is that of ``encode_batch_fast`` alone,
without reading, writing or turning ids into arrays; the time of `datasets.map` is that of the
call, without imports. The stage is counted from its call to its end, from files to files.
"""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.table import Table

from pipelines.errors import InputError
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.jobs.prepare import tokenise
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.settings import Config
from pipelines.spark.parquet_parts import Part, find_parts, read_part
from pipelines.spark.session import executor_count
from pipelines.tokens.vocabulary import load_tokenizer
from pipelines_bench.cpu import CpuMeter, local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_LENGTH = 512
DATASETS_TEXTS = 200_000
"""`datasets.map` gets so many of the texts: a rate needs no more, and it takes the longest."""
PATTERNS = (("enwiki-*.txt*", "books-*.md*"), ("*.txt", "*.txt.gz", "*.md", "*.md.gz"))
"""Files of a data folder: the English ones where they are told apart, otherwise all."""
EXECUTOR_SECONDS = 60
CLOCK_TICK = 0.01
"""Seconds; the system's measure of CPU time."""

_SIDES = ("anchor", "positive")


@dataclass(frozen=True)
class Cost:
    """What it took to make some tokens.

    Attributes:
        tokens: Ids, special tokens included.
        cpu_seconds: User and system time of all processes.
        seconds: Wall clock.
    """

    tokens: int
    cpu_seconds: float
    seconds: float

    @property
    def rate(self) -> float:
        """Million tokens per CPU second."""
        return self.tokens / max(self.cpu_seconds, CLOCK_TICK) / 1e6


def measure(config: Config, data: str | None) -> dict[str, Any]:
    """Runs the comparison.

    Args:
        config: Its prepared folder and maximum length are replaced.
        data: Folder of text files, a text in each line; None for the embedded docstrings.

    Returns:
        ``spark_mtok_per_cpu_s`` (the stage) and ``spark_with_start_mtok_per_cpu_s`` (with the
        start of the session), ``library_mtok_per_cpu_s``, ``datasets_mtok_per_cpu_s`` (None where
        the package is not installed), ``differing_sentences``: texts whose ids in the stage's
        files are not those of the library; and the numbers of tokens and texts.

    Raises:
        InputError: The folder holds no text, or executors run on other machines.
    """
    # One thread each: what a library does on several is no less CPU time, but more.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    files = None if data is None else _text_files(Path(data))
    with tempfile.TemporaryDirectory() as temporary, CpuMeter() as meter:
        folder = Path(temporary)
        config = _for_folder(config, folder)
        session, start = _started(config, meter)
        if files is None:
            _prepare_docstrings(session, config)
        else:
            write_texts(files, PreparedFolder(folder).corpus.pairs)
        next_part("the stage")
        stage = _stage(session, config, meter)
        parts = find_parts(PreparedFolder(folder).corpus.pairs)
        next_part("the library")
        library, texts, differing = _library(folder, parts)
        next_part("datasets.map")
        datasets = _datasets(folder, parts)
    with_start = Cost(
        stage.tokens, stage.cpu_seconds + start.cpu_seconds, stage.seconds + start.seconds
    )
    _print(
        {
            "library, one thread": library,
            "datasets.map": datasets,
            "Spark stage": stage,
            "Spark stage and start of the session": with_start,
        }
    )
    return {
        "spark_mtok_per_cpu_s": round(stage.rate, 3),
        "spark_with_start_mtok_per_cpu_s": round(with_start.rate, 3),
        "library_mtok_per_cpu_s": round(library.rate, 3),
        "datasets_mtok_per_cpu_s": datasets and round(datasets.rate, 3),
        "differing_sentences": differing,
        "sentences": texts,
        "tokens": stage.tokens,
    }


def _text_files(folder: Path) -> list[Path]:
    for patterns in PATTERNS:
        files = sorted(path for pattern in patterns for path in folder.glob(pattern))
        if files:
            return files
    raise InputError(
        "--data",
        f"{folder} holds no text files",
        "Name a folder of .txt or .md files, packed by gzip or not",
    )


def _for_folder(config: Config, folder: Path) -> Config:
    changes = {
        "prepared": config.prepared.model_copy(update={"folder": str(folder)}),
        "tokens": config.tokens.model_copy(update={"max_length": MAX_LENGTH}),
    }
    return config.model_copy(update=changes)


def _started(config: Config, meter: CpuMeter) -> tuple[SparkSession, Cost]:
    """The session once its executors are there, and what that took."""
    before, began = meter.seconds(), time.monotonic()
    session = local_session(config)
    while executor_count(session) < 1 and time.monotonic() - began < EXECUTOR_SECONDS:
        time.sleep(0.1)
    return session, Cost(0, meter.seconds() - before, time.monotonic() - began)


def _prepare_docstrings(session: SparkSession, config: Config) -> None:
    from pipelines.corpus.stage import prepare_corpus

    prepare_corpus(session, config)


def write_texts(files: Sequence[Path], folder: Location) -> None:
    """Writes a corpus of single texts, one Parquet file for each text file.

    Args:
        files: Text files; each line is a text, blank lines and WikiExtractor's tags are left out.
        folder: Must not exist.
    """
    folder.mkdir(parents=True)
    first = 0
    for number, file in enumerate(files):
        texts = pa.array(list(_lines(file)), pa.string())
        ids = np.arange(first, first + len(texts))
        columns = {
            "id": ids,
            "group": ids,
            "anchor": texts,
            "positive": pa.nulls(len(texts), pa.string()),
            "negatives": pa.nulls(len(texts), pa.list_(pa.string())),
            "score": pa.nulls(len(texts), pa.float32()),
            "candidate_scores": pa.nulls(len(texts), pa.list_(pa.float32())),
        }
        table = pa.table(columns)
        pq.write_table(table, folder / f"part-{number:05d}.parquet", row_group_size=2**17)
        first += len(texts)


def _lines(file: Path) -> Iterator[str]:
    with _open(file) as lines:
        for line in lines:
            text = line.rstrip("\n")
            if text.strip() and not text.startswith(("<doc", "</doc")):
                yield text


def _open(file: Path) -> TextIO:
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8", errors="replace")
    return file.open(encoding="utf-8", errors="replace")


def _stage(session: SparkSession, config: Config, meter: CpuMeter) -> Cost:
    before, began = meter.seconds(), time.monotonic()
    summary = tokenise(session, config)
    return Cost(summary.tokens, meter.seconds() - before, time.monotonic() - began)


def _library(folder: Path, parts: Sequence[Part]) -> tuple[Cost, int, int]:
    """The library's cost, the number of texts, and of those with other ids in the stage's files.

    One thread does the work, so its own clock counts all of it and nothing else.
    """
    tokenizer = load_tokenizer(PreparedFolder(folder).tokens.tokenizer)
    tokenizer.enable_truncation(MAX_LENGTH)
    tokens = texts_seen = differing = 0
    cpu = seconds = 0.0
    for part in parts:
        written = pq.read_table(PreparedFolder(folder).tokens.examples / f"{part.name}.parquet")
        first = 0
        for batch in read_part(part, _SIDES):
            for side in _SIDES:
                column = batch.column(side)
                texts = column.drop_null().to_pylist()
                thread, wall = time.thread_time(), time.monotonic()
                encodings = tokenizer.encode_batch_fast(texts)
                cpu += time.thread_time() - thread
                seconds += time.monotonic() - wall
                ids = [np.array(encoding.ids, "<i4").tobytes() for encoding in encodings]
                found = written.column(side).slice(first, len(column)).filter(column.is_valid())
                same = pc.equal(found.combine_chunks(), pa.array(ids, pa.binary()))
                differing += len(texts) - int(pc.sum(pc.fill_null(same, False)).as_py() or 0)
                tokens += sum(map(len, ids)) // 4
                texts_seen += len(texts)
            first += batch.num_rows
    return Cost(tokens, cpu, seconds), texts_seen, differing


def _datasets(folder: Path, parts: Sequence[Part]) -> Cost | None:
    """The cost of the customary ``Dataset.map``, or None where there is no such package."""
    if importlib.util.find_spec("datasets") is None:
        Screen().print("datasets.map is left out: the package `datasets` is not installed")
        return None
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    datasets = importlib.import_module("datasets")
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(str(PreparedFolder(folder).tokens.tokenizer))
    dataset = datasets.Dataset.from_dict({"text": list(islice(_texts(parts), DATASETS_TEXTS))})

    def tokenise(rows: dict[str, list[str]]) -> Any:
        return tokenizer(rows["text"], truncation=True, max_length=MAX_LENGTH)

    cpu, began = time.process_time(), time.monotonic()
    tokenised = dataset.map(
        tokenise,
        batched=True,
        remove_columns=["text"],
        cache_file_name=str(folder / "datasets.arrow"),
    )
    cpu, seconds = time.process_time() - cpu, time.monotonic() - began
    lengths = pc.list_value_length(tokenised.data.column("input_ids"))
    return Cost(pc.sum(lengths).as_py(), cpu, seconds)


def _texts(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        for batch in read_part(part, _SIDES):
            for column in batch.columns:
                yield from column.drop_null().to_pylist()


def _print(costs: dict[str, Cost | None]) -> None:
    table = Table("", "M tokens", "CPU s", "wall s", "M tokens / CPU s")
    for name, cost in costs.items():
        if cost is not None:
            table.add_row(
                name,
                f"{cost.tokens / 1e6:.2f}",
                f"{cost.cpu_seconds:.1f}",
                f"{cost.seconds:.1f}",
                f"{cost.rate:.2f}",
            )
    Screen().print(table)
