"""Measures an embedding: this package's job beside `SentenceTransformer.encode`.

The job computes in the precision of the settings and, where the processor and the model can, with
int8 matrix products too, calibrated on the first of the sentences. All embed the same real
sentences with the same model, on one thread each, in processes of their own. They take some
sentences in turn while the others wait, for several rounds, and each round gives its own ratio, of
which the median counts; so a machine that is slow for a while is slow for all. Time is CPU time of
the process. The job's process runs the function of its executors, from Parquet to Parquet; the
library's gets its texts as a list in memory.

Then Spark does the whole job on one executor of one core, and its CPU time, of all processes, the
JVMs too, is compared with what the same function took in the rounds, a plain loop over the same
parts. Both have loaded the model by a first small job, and the start of the session is not counted.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

from pipelines.corpus.readers.spark_reader import texts_of
from pipelines.errors import InputError
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.models.inference.backends import INT8
from pipelines.models.inference.processor import multiplies_in_int8
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.settings import Config
from pipelines.spark.frames import read_parquet
from pipelines.tokens.start import default_start
from pipelines.vectors.embed import embed_table
from pipelines.vectors.embedding import EmbeddingOptions, embedding_options, vectors_of
from pipelines.vectors.int8 import CALIBRATION_FILE, SAMPLE_TEXTS, Calibrated, calibrated
from pipelines_bench.cpu import CpuMeter, local_session
from pipelines_bench.ordered import OrderedProcess, ordered_process

SENTENCES = 20_000
ROUNDS = 5
WARM_UP = 256
HERE, HERE_INT8, LIBRARY = "here", "here-int8", "sentence-transformers"
"""The embedders. Both of this package are one function, with other options."""
TEXT_COLUMNS = ("text", "caption", "sentence", "lead", "sentence1", "sentence2", "anchor")
"""Of a Parquet, CSV or JSON lines file; those that it has are taken. The last is of pairs that a
corpus was prepared to."""


def measure(config: Config, data: str | None, *, sentences: int | None = None) -> dict[str, Any]:
    """Runs the comparison.

    Args:
        config: Of its section ``embedding``, only the model and the settings of the computation
            are used.
        data: A file or folder of sentences (Parquet, CSV, JSON lines); None for the sentences of
            the embedded default corpus.
        sentences: How many at most; 20,000 unless given.

    Returns:
        ``embed_vs_st_fp32_ratio``: sentences per CPU second over those of the library;
        ``int8_vs_st_fp32_ratio``: the same with int8 matrix products, None where there are none;
        ``int8``: what those change on the sample that they are calibrated on;
        ``min_cosine``: the least similarity of a sentence's two embeddings, without int8;
        ``spark_overhead_ratio``: CPU time of the Spark job over that of the plain loop, less 1;
        and the rates.

    Raises:
        InputError: There are too few sentences, or executors run on other machines.
    """
    asked = config.embedding
    options = embedding_options(
        asked.model or default_start(),
        backend=asked.backend,
        precision=asked.precision,
        batch_tokens=asked.batch_tokens,
    )
    with tempfile.TemporaryDirectory() as temporary, CpuMeter() as meter:
        folder = Path(temporary)
        most = sentences or SENTENCES
        config = _one_core(config, folder, options, most // ROUNDS)
        session = local_session(config)
        texts = folder / "texts.parquet"
        next_part("reading sentences")
        write_sentences(session, config, data, texts, most)
        int8 = _int8(config, texts)
        forms = {HERE: options}
        if int8 is not None:
            calibration = folder / CALIBRATION_FILE
            calibration.write_bytes(int8.content)
            forms[HERE_INT8] = replace(options, precision=INT8, calibration=calibration)
        rates, cosines, loop = _side_by_side(folder, texts, forms)
        spark = _spark_job(session, config, meter, folder)
    _print(rates, cosines, spark, loop)
    if int8 is not None:
        Screen().print(str(int8.form))
    return {
        "embed_vs_st_fp32_ratio": _ratio(rates, HERE),
        "int8_vs_st_fp32_ratio": None if int8 is None else _ratio(rates, HERE_INT8),
        "int8": None if int8 is None else asdict(int8.form),
        "min_cosine": round(float(cosines.min()), 6),
        "spark_overhead_ratio": round(spark / loop - 1, 4),
        "backend": options.backend,
        "sentences": len(cosines),
        "sentences_per_cpu_second": {
            name: [round(rate, 2) for rate in values] for name, values in rates.items()
        },
        "spark_cpu_seconds": round(spark, 2),
        "loop_cpu_seconds": round(loop, 2),
    }


def _int8(config: Config, texts: Path) -> Calibrated | None:
    """The calibration of int8 matrix products on the first sentences; None if they cannot be."""
    asked = config.embedding
    try:
        options = embedding_options(
            asked.model or default_start(), backend=asked.backend, precision=INT8
        )
    except InputError:
        return None
    if not multiplies_in_int8():
        return None
    next_part("calibrating int8")
    return calibrated(
        pq.read_table(texts).column("text").slice(0, SAMPLE_TEXTS).to_pylist(), options
    )


def _ratio(rates: Mapping[str, Sequence[float]], name: str) -> float:
    """The median, over rounds, of an embedder's rate over the library's."""
    pairs = zip(rates[name], rates[LIBRARY], strict=True)
    return round(statistics.median(ours / theirs for ours, theirs in pairs), 4)


def _one_core(config: Config, folder: Path, options: EmbeddingOptions, part_rows: int) -> Config:
    """A local cluster of one core, and an embedding job without quantising or shortening."""
    embedding = config.embedding.model_copy(
        update={
            "model": str(options.model),
            "inputs": (str(folder / "texts.parquet"),),
            "format": "parquet",
            "text_column": "text",
            "output": str(folder / "spark"),
            "output_column": "embedding",
            "dimensions": None,
            "quantise": "none",
            "part_rows": part_rows,
        }
    )
    training = config.training.model_copy(update={"workers": 1, "threads": 1})
    return config.model_copy(update={"embedding": embedding, "training": training})


def write_sentences(
    session: Any, config: Config, data: str | None, path: Path, most: int = SENTENCES
) -> None:
    """Writes the sentences, in an order that follows from their texts alone.

    Args:
        data: A file or folder of sentences; None for those of the embedded default corpus.
        path: Of the Parquet file.
        most: How many at most.

    Raises:
        InputError: There are fewer than a round needs.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    if data is None:
        found = _default_sentences(session, config, path.parent)
    else:
        found = texts_of(session, (data,), TEXT_COLUMNS, "--data")
    rows = (
        found.where(F.length(F.trim("text")) > 0)
        .orderBy(F.xxhash64("text"), "text")
        .limit(most)
        .collect()
    )
    if len(rows) < ROUNDS * WARM_UP:
        raise InputError(
            "--data",
            f"it holds {len(rows)} sentences",
            f"Name a file of at least {ROUNDS * WARM_UP}",
        )
    pq.write_table(pa.table({"text": [row["text"] for row in rows]}), path)


def _default_sentences(session: Any, config: Config, folder: Path) -> Any:
    from pipelines.corpus.stage import prepare_corpus

    corpus = config.corpus.model_copy(
        update={"pairs": "single", "sentences": True, "evaluation_share": 0.0}
    )
    prepared = config.prepared.model_copy(update={"folder": str(folder / "prepared")})
    prepare_corpus(session, config.model_copy(update={"corpus": corpus, "prepared": prepared}))
    written = PreparedFolder(folder / "prepared").corpus.pairs
    return read_parquet(session, written).selectExpr("anchor as text")


def _side_by_side(
    folder: Path, texts: Path, forms: Mapping[str, EmbeddingOptions]
) -> tuple[dict[str, list[float]], np.ndarray, float]:
    """All in turn: those of this package, by the names of their ``forms``, and the library.

    Returns:
        Sentences per CPU second of each, round by round; the cosines of all sentences without int8;
        and the CPU seconds of the rounds of this package without it.
    """
    options = forms[HERE]
    names = (*forms, LIBRARY)
    rows = pq.read_metadata(texts).num_rows
    bounds = np.linspace(0, rows, ROUNDS + 1).astype(int).tolist()
    rates: dict[str, list[float]] = {name: [] for name in names}
    seconds = dict.fromkeys(names, 0.0)
    with ExitStack() as running:
        embedders = {
            name: running.enter_context(_embedder(name, folder, texts, forms.get(name, options)))
            for name in names
        }
        for embedder in embedders.values():
            _embed(embedder, 0, min(WARM_UP, rows))
        for number, (start, stop) in enumerate(pairwise(bounds)):
            # Another order each round, so that none always follows the other.
            for name in names if number % 2 else names[::-1]:
                next_part(f"round {number + 1} of {ROUNDS}, {name}")
                answer = _embed(embedders[name], start, stop)
                rates[name].append(answer["rows"] / answer["cpu_seconds"])
                seconds[name] += answer["cpu_seconds"]
        cosines = [
            _cosines(*(folder / name / f"part-{start:05d}" for name in (HERE, LIBRARY)))
            for start in bounds[:-1]
        ]
    return rates, np.concatenate(cosines), seconds[HERE]


def _cosines(ours: Path, theirs: Path) -> np.ndarray:
    left = vectors_of(pq.read_table(ours.with_suffix(".parquet")).column("embedding"))
    left = left.astype(np.float64)
    right = np.load(theirs.with_suffix(".npy")).astype(np.float64)
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines: np.ndarray = np.einsum("ij,ij->i", left, right) / lengths
    return cosines


def _spark_job(session: Any, config: Config, meter: CpuMeter, folder: Path) -> float:
    """CPU seconds of the Spark job over all sentences, behind a small one that loads the model."""
    few = folder / "few.parquet"
    pq.write_table(pq.read_table(folder / "texts.parquet").slice(0, WARM_UP), few)
    first = {"inputs": (str(few),), "output": str(folder / "few")}
    next_part("the Spark job")
    for changes in (first, {}):
        before = meter.seconds()
        job = config.embedding.model_copy(update=changes)
        embed_table(session, config.model_copy(update={"embedding": job}))
    return meter.seconds() - before


@contextmanager
def _embedder(
    name: str, folder: Path, texts: Path, options: EmbeddingOptions
) -> Iterator[OrderedProcess]:
    """A process of :mod:`pipelines_bench.embedders`."""
    (folder / name / "_attempts").mkdir(parents=True, exist_ok=True)
    places = {"model": str(options.model)}
    if options.calibration is not None:
        places["calibration"] = str(options.calibration)
    told = asdict(options) | places
    arguments = {"texts": str(texts), "folder": str(folder / name), "options": told}
    module = "pipelines_bench.embedders"
    with ordered_process(f"the embedder {name}", module, [name, json.dumps(arguments)]) as process:
        yield process


def _embed(embedder: OrderedProcess, start: int, stop: int) -> Mapping[str, float]:
    embedder.order([start, stop])
    return embedder.answer()


def _print(
    rates: Mapping[str, Sequence[float]], cosines: np.ndarray, spark: float, loop: float
) -> None:
    table = Table("embedder", "sentences per CPU second (median)", "all rounds", "over the last")
    base = statistics.median([*rates.values()][-1])
    for name, values in rates.items():
        middle = statistics.median(values)
        rounds = ", ".join(f"{value:.1f}" for value in values)
        table.add_row(name, f"{middle:.1f}", rounds, f"{middle / base:.2f}")
    console = Screen()
    console.print(table)
    console.print(f"least cosine of {len(cosines):,} sentences: {cosines.min():.6f}")
    console.print(f"CPU seconds: Spark job {spark:.1f}, plain loop {loop:.1f}")
