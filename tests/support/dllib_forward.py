"""The encoder alone as a graph of dllib, which texts are embedded by in the driver's JVM."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from pipelines.engines.bigdl.feeding import packed_texts
from pipelines.engines.bigdl.form import (
    Graph,
    encoder_nodes,
    flattened,
    graph_of,
    quiet,
    set_weights,
    unflattened,
)

__all__ = ["encoder_graph", "flattened", "forward", "set_weights", "unflattened"]


def encoder_graph(context, spec) -> Graph:
    """A graph from token ids and lengths to embeddings [texts, hidden]."""
    with quiet(context):
        nodes = encoder_nodes(context, spec)
        return graph_of(context, spec, nodes, nodes.embeddings)


def forward(graph: Graph, token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Embed texts in the driver's JVM.

    Args:
        graph: Of :func:`encoder_graph`, with its weights.
        token_ids: int32 [texts, width], padded with any valid id.
        lengths: int32 [texts].

    Returns:
        fp32 [texts, embedding width].
    """
    ids = packed_texts(token_ids, lengths)
    head = [0, 1, len(ids), len(lengths), 0]
    excluded = [0]
    content = np.concatenate([head, ids, lengths, excluded]).astype("<i4").tobytes()
    output = graph.model.forward(graph.classes.Granules.read(content).getInput())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "embeddings.bin"
        graph.classes.FlatFile.save(str(path), output)
        return np.fromfile(path, "<f4").reshape(len(lengths), graph.spec.embedding_width)
