"""Texts of Arrow columns to columns of vectors. Runs on an executor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import pyarrow as pa

from pipelines.arrow_columns import as_text
from pipelines.embedding.options import EmbeddingOptions
from pipelines.embedding.vectors import (
    SCALE_SUFFIX,
    KeptVectors,
    quantised,
    shortened,
    vector_array,
)
from pipelines.models.inference.backends import GPU_BACKEND
from pipelines.models.inference.embedder import TEXTS_AT_ONCE, TextEmbedder, load_embedder


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of columns.

    Attributes:
        text: Is read.
        vector: Is written; its scales, if it is quantised, are in `<vector>_scale`.
    """

    text: str
    vector: str


@lru_cache(maxsize=1)
def cached_embedder(options: EmbeddingOptions, device: str) -> TextEmbedder:
    """The model on a device, kept between the tasks of a Python worker. Runs on an executor.

    Args:
        options: The model.
        device: Is asked for in each task, since Spark may give the next one another GPU.
    """
    return load_embedder(
        options.model,
        backend=options.backend,
        threads=options.threads,
        precision=options.precision,
        device=device,
        batch_tokens=options.batch_tokens,
    )


def task_device(backend: str) -> str:
    """The GPU that Spark gave this task, or the CPU. Runs on an executor."""
    if backend != GPU_BACKEND:
        return "cpu"
    from pipelines.training.devices import worker_device

    return str(worker_device())


def embed_arrow(
    texts: pa.Array, options: EmbeddingOptions, kept: KeptVectors | None = None
) -> tuple[pa.Array, pa.Array | None]:
    """A column of vectors, and of scales where they are quantised. Runs on an executor.

    Args:
        texts: Strings; a null gives a null.
        options: The model and what is done with its embeddings.
        kept: Vectors that some of the texts have already.
    """
    column = as_text(texts)
    present = column.is_valid().to_numpy(zero_copy_only=False)
    missing = present.copy()
    if kept is not None:
        missing[kept.rows] = False
        present[kept.rows] = True
    vectors = shortened(
        _embedded(column.filter(pa.array(missing)), options),
        options.dimensions,
        normalise=options.normalise,
    )
    if options.quantise == "none":
        whole = _spread(vectors, missing, kept)
        return vector_array(whole[present], present), None
    values, scales = quantised(vectors)
    whole = _spread(values, missing, kept)
    all_scales = _spread(scales, missing, kept, "scales")
    return vector_array(whole[present], present), pa.array(all_scales, mask=~present)


def _embedded(texts: pa.StringArray, options: EmbeddingOptions) -> np.ndarray:
    if not len(texts):
        return np.empty((0, options.hidden), np.float32)
    embed = cached_embedder(options, task_device(options.backend))
    return embed(texts, options.prompt_name)


def _spread(
    made: np.ndarray,
    missing: np.ndarray,
    kept: KeptVectors | None,
    what: Literal["values", "scales"] = "values",
) -> np.ndarray:
    """Values of all rows: those that were made, those that are kept, and zeros elsewhere.

    Args:
        made: Values of the rows that are missing.
        missing: bool [rows].
        kept: The rows that keep something, if any.
        what: They keep of their vectors.
    """
    whole = np.zeros((len(missing), *made.shape[1:]), made.dtype)
    whole[missing] = made
    if kept is not None:
        whole[kept.rows] = getattr(kept, what)
    return whole


def embed_batches(
    batches: Iterable[pa.RecordBatch],
    *,
    options: EmbeddingOptions,
    columns: Columns,
    kept: KeptVectors | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows with their vectors behind the other columns. Runs on an executor.

    Args:
        batches: Have the text column.
        options: The model and what is done with its embeddings.
        columns: Names.
        kept: Vectors that some of the rows have already.
    """
    first = 0
    for block in blocks(batches):
        some = None if kept is None else kept.within(first, first + block.num_rows)
        vectors, scales = embed_arrow(block.column(columns.text), options, some)
        first += block.num_rows
        added = {columns.vector: vectors}
        if scales is not None:
            added[f"{columns.vector}{SCALE_SUFFIX}"] = scales
        fields = [*block.schema, *(pa.field(name, array.type) for name, array in added.items())]
        yield pa.RecordBatch.from_arrays(
            [*block.columns, *added.values()], schema=pa.schema(fields, block.schema.metadata)
        )


def blocks(
    batches: Iterable[pa.RecordBatch], rows: int = TEXTS_AT_ONCE
) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of so many, which are then sorted by length together."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        rest = batch
        while count + rest.num_rows >= rows:
            yield _joined([*waiting, rest.slice(0, rows - count)])
            rest, waiting, count = rest.slice(rows - count), [], 0
        if rest.num_rows:
            waiting.append(rest)
            count += rest.num_rows
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
