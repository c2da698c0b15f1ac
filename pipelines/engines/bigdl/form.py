"""The common part of architectures in BigDL's dllib: a graph of layers in the driver's JVM.

Matrix products, losses and the graph are dllib's. :mod:`pipelines.engines.bigdl.jvm` has the layers
for which dllib needs many general tensor operations. Texts are packed one behind the other, so
padding costs nothing.

Source of dllib: Dai et al., "BigDL: A Distributed Deep Learning Framework for Big Data", SoCC 2019,
arXiv:1804.05839.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pipelines.engines.bigdl.jvm import provide_classes
from pipelines.models.architecture import form_of
from pipelines.models.spec import EncoderSpec, Pooling
from pipelines.models.weights import Weights, dense_name, weight_shapes
from pipelines.quiet import quiet_import

if TYPE_CHECKING:
    from pyspark import SparkContext


with quiet_import():
    from bigdl.dllib.nn import layer as dllib


Groups = tuple[tuple[str, ...], ...]
"""The weights of each array of a layer, by canonical names, one behind another."""


@dataclass(frozen=True)
class Nodes:
    """The encoder's place in a graph.

    Attributes:
        inputs: Token ids [tokens] and lengths [texts].
        embeddings: [texts, embedding width].
        layers: The JVM's layers with weights, and the names of these weights.
    """

    inputs: tuple[Any, Any]
    embeddings: Any
    layers: tuple[tuple[Any, Groups], ...]


@dataclass(frozen=True)
class Slot:
    """A range of the one vector of all weights: its canonical names, and its first index."""

    names: tuple[str, ...]
    start: int


@dataclass(frozen=True)
class Graph:
    """A graph with its weights, as one vector.

    Attributes:
        classes: The package of :mod:`pipelines.engines.bigdl.jvm`.
        model: dllib's module, in the JVM.
        weights: The vector: a tensor in the JVM.
        slots: The layout of the vector.
        size: Of the vector.
    """

    spec: EncoderSpec
    classes: Any
    model: Any
    weights: Any
    slots: tuple[Slot, ...]
    size: int


class Builder:
    """Adds layers to a graph, and keeps those with weights in `layers`, with their names.

    `classes` is the package of :mod:`pipelines.engines.bigdl.jvm`; `lengths` the node of [texts].
    """

    def __init__(self, classes: Any, lengths: Any) -> None:
        self.classes = classes
        self.lengths = lengths
        self.layers: list[tuple[Any, Groups]] = []

    def add(self, layer: Any, inputs: Any, groups: Groups = ()) -> Any:
        """Return a node of one of dllib's layers; `inputs` is a node or a list of them."""
        if groups:
            self.layers.append((layer.value, groups))
        return layer(inputs)

    def add_own(self, layer: Any, inputs: Any, groups: Groups = ()) -> Any:
        """Return a node of a layer of :mod:`pipelines.engines.bigdl.jvm`; see :meth:`add`."""
        return self.add(dllib.Layer(layer, "float"), inputs, groups)

    def token_vectors(self, ids: Any, tables: Mapping[str, int], hidden: int) -> Any:
        """Return the sum of a token's rows of up to three tables: words, positions, and segment.

        The node `ids` is [tokens]; the tables give their numbers of rows, of width `hidden`.
        """
        rows = self.classes.Floats.integers(np.array([*tables.values()], "<i4").tobytes())
        layer = self.classes.TokenVectors(rows, hidden)
        return self.add_own(layer, [ids, self.lengths], tuple((name,) for name in tables))

    def pool(self, vectors: Any, tokens: str, hidden: int) -> Any:
        """Return the mean of some of a text's vectors, [texts, hidden], of a node [tokens, hidden].

        `tokens` is `all`, `weighted` by position, `first`, `last`, or `inner`: all but the first
        and the last.
        """
        return self.add_own(self.classes.Pool(hidden, tokens), [vectors, self.lengths])


POOLED: Mapping[Pooling, str] = {
    "mean": "all",
    "cls": "first",
    "lasttoken": "last",
    "weightedmean": "weighted",
}
"""The names of the ways of pooling for :meth:`Builder.pool`."""


class Form(Protocol):
    """The registration of an architecture for `bigdl`: its part of the graph."""

    def __call__(self, spec: Any, builder: Builder, ids: Any) -> Any:
        """Return the node of [texts, hidden], before dense layers, from token ids [tokens]."""
        ...


def encoder_nodes(context: SparkContext, spec: EncoderSpec) -> Nodes:
    """Begin a graph with the encoder, with dllib on the class path. Runs on the driver."""
    encode: Form = form_of(spec, "bigdl")
    ids, lengths = dllib.Input(), dllib.Input()
    builder = Builder(provide_classes(context), lengths)
    embeddings = encode(spec, builder, ids)
    width = spec.hidden
    for number, dense in enumerate(spec.dense):
        parts = ("weight", "bias") if dense.bias else ("weight",)
        groups = tuple((dense_name(number, part),) for part in parts)
        product = dllib.Linear(width, dense.width, with_bias=dense.bias)
        embeddings = builder.add(product, embeddings, groups)
        embeddings = dllib.Tanh()(embeddings) if dense.activation == "tanh" else embeddings
        width = dense.width
    embeddings = dllib.Normalize(2.0)(embeddings) if spec.normalise else embeddings
    return Nodes((ids, lengths), embeddings, tuple(builder.layers))


def graph_of(context: SparkContext, spec: EncoderSpec, nodes: Nodes, output: Any) -> Graph:
    """Close a graph at its output node, with dllib on the class path. Runs on the driver."""
    model = dllib.Model(list(nodes.inputs), [output]).value
    # From here on the layers' arrays are parts of one vector.
    vector = model.getParameters()._1()
    slots = []
    for layer, groups in nodes.layers:
        arrays = layer.parameters()._1()
        slots += [
            Slot(names, arrays[place].storageOffset() - vector.storageOffset())
            for place, names in enumerate(groups)
        ]
    return Graph(
        spec, provide_classes(context), model, vector, tuple(slots), int(vector.nElement())
    )


@contextmanager
def quiet(context: SparkContext) -> Iterator[None]:
    """Silence dllib's lines for every layer, and those of its JVM side at its start."""
    jvm: Any = context._jvm
    system, nowhere = jvm.java.lang.System, jvm.java.io.OutputStream.nullOutputStream()
    streams = system.out, system.err
    system.setOut(jvm.java.io.PrintStream(nowhere))
    system.setErr(jvm.java.io.PrintStream(nowhere))
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        system.setOut(streams[0])
        system.setErr(streams[1])


def flattened(graph: Graph, weights: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return weights, or moments, in canonical names as the graph's vector, fp32."""
    vector = np.empty(graph.size, np.float32)
    for slot in graph.slots:
        start = slot.start
        for name in slot.names:
            end = start + weights[name].size
            vector[start:end] = weights[name].reshape(-1)
            start = end
    return vector


def unflattened(graph: Graph, vector: np.ndarray) -> Weights:
    """Return the graph's vector as arrays in canonical names; views of it."""
    shapes = weight_shapes(graph.spec)
    weights: Weights = {}
    for slot in graph.slots:
        start = slot.start
        for name in slot.names:
            end = start + int(np.prod(shapes[name]))
            weights[name] = vector[start:end].reshape(shapes[name])
            start = end
    # In canonical order, the order of files.
    return {name: weights[name] for name in shapes}


def set_weights(graph: Graph, vector: np.ndarray) -> None:
    """Put a vector into the graph, by a file: the pipe to the JVM is slow. Runs on the driver."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.bin"
        vector.astype("<f4", copy=False).tofile(path)
        graph.classes.FlatFile.load(str(path), graph.weights)
