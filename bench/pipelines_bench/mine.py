"""Measures speed and memory of a task of `mine` by the number of documents.

The vectors are made up, as nothing here depends on what they mean: clusters of random ones. A
process of its own makes one part as a task of Spark does, from files to a file, on one thread.
"""

from __future__ import annotations

import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

from pipelines.errors import InputError
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.settings import Config, MiningSettings
from pipelines.vectors.embedding import vector_array
from pipelines.vectors.mining_parts import GROUPS, Texts, Work, mine_parts
from pipelines.vectors.mining_texts import MOST_ROWS, PLACE_BITS, part_name
from pipelines.vectors.nearest import unit_length
from pipelines.vectors.store import VectorFile, VectorTable

DOCUMENTS = (25_000, 100_000, 200_000)
DIMENSIONS = 384
CLUSTERS = 1000
NOISE = 0.7
"""Of a document against its cluster; that of an anchor against its positive is half of it."""
SECONDS = 1800.0
"""Until a process that hangs is given up."""


@dataclass(frozen=True)
class Measured:
    """What a part took.

    Attributes:
        documents: That were searched.
        anchors: Of the part.
        anchors_per_cpu_second: That were searched.
        megabytes: Resident memory of the process at its highest.
        own_megabytes: Of that, what it did not have before it began.
    """

    documents: int
    anchors: int
    anchors_per_cpu_second: float
    megabytes: float
    own_megabytes: float


def measure(config: Config, data: str | None) -> dict[str, Any]:
    """Searches ever more documents.

    Args:
        config: The section ``mining`` says what is taken, and how many anchors a part has
            (``part_rows``).
        data: Has to be None.

    Returns:
        ``memory_ratio``: resident memory with the most documents over that with the fewest; and
        ``parts``, with the figures of each.

    Raises:
        InputError: Data were named.
    """
    if data is not None:
        raise InputError("--data", "the vectors are made up", "Leave it out")
    parts = [measured(config.mining, documents) for documents in DOCUMENTS]
    _print(parts)
    return {
        "memory_ratio": round(parts[-1].megabytes / parts[0].megabytes, 3),
        "parts": [asdict(part) for part in parts],
    }


def measured(settings: MiningSettings, documents: int, dimensions: int = DIMENSIONS) -> Measured:
    """Searches so many documents in a process of its own."""
    anchors = settings.part_rows or MOST_ROWS
    next_part(f"{documents:,} documents")
    with tempfile.TemporaryDirectory() as temporary:
        texts = _write(Path(temporary), anchors, documents, dimensions)
        work = Work(
            settings=settings,
            pairs=Path(temporary, "pairs"),
            texts=texts,
            folder=Path(temporary, "mined"),
            threads=1,
        )
        # A fork would have the memory of this process.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            seconds, before, after = pool.submit(_make, work).result(timeout=SECONDS)
    rate = round(anchors / seconds, 1)
    return Measured(documents, anchors, rate, round(after, 1), round(after - before, 1))


def _make(work: Work) -> tuple[float, float, float]:
    """CPU seconds of a part, and megabytes of this process at its highest before and after."""
    before, began = _peak(), time.process_time()
    list(mine_parts([part_name(0)], work=work, attempts=work.folder))
    return time.process_time() - began, before, _peak()


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _write(folder: Path, anchors: int, documents: int, dimensions: int) -> Texts:
    """Documents in files as large as those of a job, and a file of pairs."""
    draw = np.random.default_rng(0)
    centres = unit_length(draw.standard_normal((CLUSTERS, dimensions)))
    noise = NOISE / np.sqrt(dimensions)
    positives = np.sort(draw.choice(documents, anchors, replace=anchors > documents))
    vectors = np.empty((anchors, dimensions), np.float32)
    files = []
    for bucket, start in enumerate(range(0, documents, MOST_ROWS)):
        rows = min(MOST_ROWS, documents - start)
        some = centres[draw.integers(0, CLUSTERS, rows)]
        some = unit_length(some + noise * draw.standard_normal(some.shape))
        inside = (positives >= start) & (positives < start + rows)
        vectors[inside] = some[positives[inside] - start]
        path = _part(folder / "documents", bucket, some, start)
        files.append(VectorFile(path, start, rows))
    vectors = unit_length(vectors + noise / 2 * draw.standard_normal(vectors.shape))
    own = _part(folder / "anchors", 0, vectors, documents)
    _write_pairs(folder / "pairs", positives)
    table = partial(
        VectorTable, vector="vector", scale=None, text="text", model=None, dimensions=dimensions
    )
    return Texts(
        table(folder / "documents", tuple(files)),
        table(folder / "anchors", (VectorFile(own, 0, anchors),)),
    )


def _part(folder: Path, bucket: int, vectors: np.ndarray, first: int) -> Path:
    """A file of texts with vectors, of five texts a group."""
    folder.mkdir(exist_ok=True)
    numbers = first + np.arange(len(vectors))
    columns = {
        "text": [f"the text of number {number}" for number in numbers],
        GROUPS: pa.array([[number] for number in numbers // 5], pa.list_(pa.int64())),
        "vector": vector_array(vectors, np.ones(len(vectors), bool)),
    }
    path = folder / f"{part_name(bucket)}.parquet"
    pq.write_table(pa.table(columns), path, compression="zstd", use_dictionary=False)
    return path


def _write_pairs(folder: Path, positives: np.ndarray) -> None:
    folder.mkdir()
    rows = np.arange(len(positives))
    buckets, places = np.divmod(positives, MOST_ROWS)
    columns = {
        "anchor": [f"anchor {row}" for row in rows],
        "positive": [f"positive {row}" for row in rows],
        "id": rows,
        "own_at": pa.nulls(len(rows), pa.int64()),
        "anchor_at": rows,
        "positive_at": (buckets << PLACE_BITS) + places,
        "group_id": positives // 5,
    }
    pq.write_table(pa.table(columns), folder / f"{part_name(0)}.parquet")


def _print(parts: list[Measured]) -> None:
    table = Table()
    for title in ("documents", "anchors", "anchors a CPU-second", "MB", "MB of its own"):
        table.add_column(title, justify="right")
    for part in parts:
        sizes = (f"{part.megabytes:,.0f}", f"{part.own_megabytes:,.0f}")
        rate = f"{part.anchors_per_cpu_second:,.0f}"
        counts = (f"{part.documents:,}", f"{part.anchors:,}", rate)
        table.add_row(*counts, *sizes)
    Screen().print(table)
