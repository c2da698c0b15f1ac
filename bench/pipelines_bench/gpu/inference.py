"""Embedding and evaluating texts, by the functions of the executors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from pipelines.catalog import EVALUATIONS
from pipelines.evaluation.base import Forms
from pipelines.evaluation.rows import LocalRows
from pipelines.models.inference.embedder import TextEmbedder, load_embedder
from pipelines.models.spec import EncoderSpec
from pipelines.vectors.embedding import Columns, EmbeddingOptions, embed_batches, embedding_options
from pipelines_bench.gpu.checks import Finding, Place
from pipelines_bench.gpu.models import sentences, write_model

TEXTS, VECTORS = "text", "vector"
LARGEST = 2e-5
"""Between embeddings in fp32."""
BF16_COSINE = 0.999
POINTS = 1.0
"""Between figures of an evaluation, of 100: equal documents may change places."""


def embedding(place: Place) -> Finding:
    """A column of vectors by the function of the embedding job, in fp32, bf16 and int8."""
    from pipelines_bench.gpu.torch_samples import cosine, same, tiny

    spec, weights = tiny("bert")
    folder = write_model(place.folder / "model", spec, weights)
    generator = np.random.default_rng(2)
    texts = sentences(generator.integers(0, 60, 300).tolist(), spec.vocabulary)
    options = embedding_options(str(folder), backend="torch", precision="fp32")
    expected = _vectors(texts, options, "cpu")
    apart = same("vectors", _vectors(texts, options, place.device), expected, LARGEST)
    half = _vectors(texts, replace(options, precision="bf16"), place.device)
    least = min(map(cosine, half, expected))
    if least < BF16_COSINE:
        raise AssertionError(f"a vector in bf16 has a cosine of {least:.5f} with its own in fp32")
    bytes_ = _vectors(texts, replace(options, quantise="int8"), place.device)
    expected_bytes = _vectors(texts, replace(options, quantise="int8"), "cpu")
    if (most := np.abs(bytes_.astype(int) - expected_bytes.astype(int)).max()) > 1:
        raise AssertionError(f"int8 values are {most} apart")
    return Finding(f"{len(texts)} texts, fp32 {apart:.1e} apart, least cosine in bf16 {least:.6f}")


def evaluation(place: Place) -> Finding:
    """Retrieval and similarity, as checkpoints are measured."""
    from pipelines_bench.gpu.torch_samples import tiny

    spec, weights = tiny("roberta")
    folder = write_model(place.folder / "measured", spec, weights)
    expected, own = (
        _figures(load_embedder(folder, backend="torch", precision="fp32", device=device), spec)
        for device in ("cpu", place.device)
    )
    for figure, value in expected.items():
        if abs(own[figure] - value) > POINTS:
            raise AssertionError(f"{figure} is {own[figure]:.2f} instead of {value:.2f}")
    return Finding(f"{len(own)} figures, nDCG@10 {own['retrieval ndcg@10']:.2f}")


def _figures(embedder: TextEmbedder, spec: EncoderSpec) -> dict[str, float]:
    """What the evaluations find, by their names and those of the figures."""
    figures: dict[str, float] = {}
    for name, tables in _tables(spec.vocabulary).items():
        rows = {table: LocalRows(content.to_batches) for table, content in tables.items()}
        (found,) = EVALUATIONS.load(name).measure(rows, lambda: embedder, Forms())
        figures |= {f"{name} {figure}": value for figure, value in found.figures.items()}
    return figures


def _vectors(texts: list[str], options: EmbeddingOptions, device: str) -> np.ndarray:
    """The rows of the column, on a device that the task was given."""
    from pipelines_bench.gpu.torch_machine import workers_on

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({TEXTS: texts})

    with workers_on(device):
        columns = Columns(text=TEXTS, vector=VECTORS)
        tables = list(embed_batches(batches(), options=options, columns=columns))
    rows = [row for batch in tables for row in batch.column(VECTORS).to_pylist()]
    return np.array(rows)


def _tables(vocabulary: int) -> Mapping[str, Mapping[str, pa.Table]]:
    """What two evaluations are measured on: a query is a part of its document."""
    generator = np.random.default_rng(3)
    documents = sentences(generator.integers(6, 40, 120).tolist(), vocabulary)
    queries = [" ".join(text.split()[1:5]) for text in documents[:40]]
    numbers = list(range(len(queries)))
    ids = pa.array(numbers, pa.int64())
    asked = {"query_id": ids, "document_id": ids, "gain": [1.0] * len(queries)}
    texts = {"query_id": ids, "text": queries}
    held = {"document_id": pa.array(range(len(documents)), pa.int64()), "text": documents}
    pairs = {
        "text_0": documents[:80],
        "text_1": documents[40:120],
        "pair": list(range(80)),
        "score": generator.random(80).tolist(),
    }
    retrieval = {"asked": asked, "queries": texts, "documents": held}
    return {
        "retrieval": {name: pa.table(one) for name, one in retrieval.items()},
        "similarity": {"pairs": pa.table(pairs)},
    }
