"""One embedder in a process of its own, which embeds the rows it is told, when it is told.

Several of them can be measured in turn, while the others wait: each order is a line of JSON on
standard input, each answer one on standard output, with the CPU time that it took.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

BATCH_SIZE = 64

Work = Callable[[int, int], None]
"""Embeds the rows from the first number up to the second, and writes what comes out."""


def embed_here(texts: str, folder: str, options: Mapping[str, Any]) -> Work:
    """The function of the embedding job's executors, on rows of a Parquet file."""
    from pipelines.files.locations import location
    from pipelines.vectors.embed_parts import embed_parts
    from pipelines.vectors.embedding import Columns, EmbeddingOptions
    from pipelines.vectors.parts import RowRange

    columns = Columns(text="text", vector="embedding")
    places = {
        name: location(options[name]) for name in ("model", "calibration") if options.get(name)
    }
    # JSON has made a list of the tuple.
    kinds = tuple(options["kinds"])
    embedding_options = EmbeddingOptions(**{**options, **places, "kinds": kinds})

    def embed(start: int, stop: int) -> None:
        part = RowRange(f"part-{start:05d}", Path(texts), start, stop)
        for _ in embed_parts(
            [part], folder=Path(folder), options=embedding_options, columns=columns
        ):
            pass

    return embed


def embed_in_library(texts: str, folder: str, options: Mapping[str, Any]) -> Work:
    """`SentenceTransformer.encode` in fp32, with batches of 64, on one thread."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    model = SentenceTransformer(options["model"], device="cpu")
    rows = pq.read_table(texts).column("text").to_pylist()

    def embed(start: int, stop: int) -> None:
        embeddings = model.encode(rows[start:stop], batch_size=BATCH_SIZE, show_progress_bar=False)
        np.save(Path(folder) / f"part-{start:05d}.npy", embeddings)

    return embed


EMBEDDERS: Mapping[str, Callable[..., Work]] = {
    "here": embed_here,
    "here-int8": embed_here,
    "sentence-transformers": embed_in_library,
}


def main() -> None:
    """Runs the embedder that is named first, with the JSON arguments that are named second."""
    name, arguments = sys.argv[1], json.loads(sys.argv[2])
    # What libraries print goes to standard error, so that the answers stand alone.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    work = EMBEDDERS[name](**arguments)
    tell = partial(print, file=answers, flush=True)
    for line in sys.stdin:
        start, stop = json.loads(line)
        cpu, wall = time.process_time(), time.perf_counter()
        work(start, stop)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        tell(json.dumps({"rows": stop - start, "cpu_seconds": cpu, "seconds": wall}))


if __name__ == "__main__":
    main()
