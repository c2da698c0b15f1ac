"""The encoder in BigDL's dllib: a graph of layers in the driver's JVM.

Matrix products, losses and the graph are dllib's; the layers that dllib has only as many general
tensor operations are in :mod:`pipelines.jvm`. Texts are packed one behind the other, so that
nothing is computed for padding.

Source of dllib: Dai et al., "BigDL: A Distributed Deep Learning Framework for Big Data", SoCC 2019,
arXiv:1804.05839.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.encoder.spec import EncoderSpec
from pipelines.encoder.weights import WORDS, Weights, weight_shapes
from pipelines.jvm import provide_classes
from pipelines.quiet import quiet_import

with quiet_import():
    from bigdl.dllib.nn import layer as dllib

if TYPE_CHECKING:
    from pyspark import SparkContext

_TABLES = (
    WORDS,
    "embeddings.position_embeddings.weight",
    "embeddings.token_type_embeddings.weight",
)

Groups = tuple[tuple[str, ...], ...]
"""For each array of a layer, the weights in it by canonical names, one behind another."""


@dataclass(frozen=True)
class Nodes:
    """The encoder's place in a graph.

    Attributes:
        inputs: Token ids [tokens] and lengths [texts].
        embeddings: [texts, hidden].
        layers: The layers that have weights, in the JVM, with the names of these.
    """

    inputs: tuple[Any, Any]
    embeddings: Any
    layers: tuple[tuple[Any, Groups], ...]


@dataclass(frozen=True)
class Slot:
    """Where weights stand in the one vector of all of them.

    Attributes:
        names: Canonical names, one behind another.
        start: Place of the first number.
    """

    names: tuple[str, ...]
    start: int


@dataclass(frozen=True)
class Graph:
    """A graph with its weights, as one vector.

    Attributes:
        spec: The encoder's shape.
        classes: The package of :mod:`pipelines.jvm`.
        model: dllib's module, in the JVM.
        weights: Its vector: a tensor in the JVM.
        slots: What stands where in the vector.
        size: Of the vector.
    """

    spec: EncoderSpec
    classes: Any
    model: Any
    weights: Any
    slots: tuple[Slot, ...]
    size: int


def encoder_nodes(context: SparkContext, spec: EncoderSpec) -> Nodes:
    """Begins a graph with the encoder. Runs on the driver.

    Args:
        context: With dllib on the class path.
        spec: The shape.
    """
    classes = provide_classes(context)
    ids, lengths = dllib.Input(), dllib.Input()
    builder = _Builder(classes, spec, lengths)
    stream = builder.token_vectors(ids)
    for number in range(spec.layers):
        stream = builder.layer(stream, number)
    pooled = builder.own(classes.Pool(spec.hidden, _pooled_tokens(spec)), [stream, lengths])
    embeddings = dllib.Normalize(2.0)(pooled) if spec.normalise else pooled
    return Nodes((ids, lengths), embeddings, tuple(builder.layers))


def _pooled_tokens(spec: EncoderSpec) -> str:
    """Of which tokens an embedding is the mean, as the class `Pool` takes it."""
    return "inner" if spec.kind == "bag" else {"mean": "all", "cls": "first"}[spec.pooling]


class _Builder:
    """Adds layers to a graph, and remembers those that have weights."""

    def __init__(self, classes: Any, spec: EncoderSpec, lengths: Any) -> None:
        self._classes = classes
        self._spec = spec
        self._lengths = lengths
        # In turn: see the class.
        self._gradients = (classes.Gradients(), classes.Gradients())
        self.layers: list[tuple[Any, Groups]] = []

    def own(self, layer: Any, inputs: Any, groups: Groups = ()) -> Any:
        """A node of a layer in the JVM."""
        return self._node(dllib.Layer(layer, "float"), inputs, groups)

    def _node(self, layer: Any, inputs: Any, groups: Groups) -> Any:
        if groups:
            self.layers.append((layer.value, groups))
        return layer(inputs)

    def token_vectors(self, ids: Any) -> Any:
        """Words, positions and segment, normalised; those of a bag are its words."""
        shapes = weight_shapes(self._spec)
        tables = [name for name in _TABLES if name in shapes]
        rows = _integers(self._classes, [shapes[name][0] for name in tables])
        layer = self._classes.TokenVectors(rows, self._spec.hidden)
        vectors = self.own(layer, [ids, self._lengths], tuple((name,) for name in tables))
        if self._spec.kind == "bag":
            return vectors
        own = self._classes.Gradients()
        return self._norm(vectors, "embeddings.", own.norm(0, 0), own.norm(0, 1))

    def layer(self, stream: Any, number: int) -> Any:
        """A transformer layer."""
        spec, classes, prefix = self._spec, self._classes, f"encoder.layer.{number}."
        hidden, inner = spec.hidden, spec.intermediate
        own = self._gradients[number % 2]
        products = [dllib.Linear(*sizes) for sizes in _product_sizes(hidden, inner)]
        for place, product in enumerate(products):
            own.give(product.value, place)
        join, leave, widen, narrow = products
        parts = [f"{prefix}attention.self.{name}" for name in ("query", "key", "value")]
        joined = self._dense(join, stream, parts)
        attention = classes.Attention(hidden, spec.heads, own.attention())
        attended = self.own(attention, [joined, self._lengths])
        update = self._dense(leave, attended, [f"{prefix}attention.output.dense"])
        norm = f"{prefix}attention.output."
        stream = self._norm([stream, update], norm, own.norm(0, 0), own.norm(0, 1))
        wide = self._dense(widen, stream, [f"{prefix}intermediate.dense"])
        bent = self.own(classes.Gelu(own.gelu()), wide)
        update = self._dense(narrow, bent, [f"{prefix}output.dense"])
        return self._norm([stream, update], f"{prefix}output.", own.norm(1, 0), own.norm(1, 1))

    def _dense(self, product: Any, inputs: Any, names: Sequence[str]) -> Any:
        groups = tuple(tuple(f"{name}.{part}" for name in names) for part in ("weight", "bias"))
        return self._node(product, inputs, groups)

    def _norm(self, inputs: Any, prefix: str, back: Any, back_too: Any) -> Any:
        epsilon = self._spec.layer_norm_epsilon
        layer = self._classes.ResidualNorm(self._spec.hidden, epsilon, back, back_too)
        groups = ((f"{prefix}LayerNorm.weight",), (f"{prefix}LayerNorm.bias",))
        return self.own(layer, inputs, groups)


def _product_sizes(hidden: int, inner: int) -> list[tuple[int, int]]:
    """In and out of a layer's matrix products."""
    return [(hidden, 3 * hidden), (hidden, hidden), (hidden, inner), (inner, hidden)]


def _integers(classes: Any, values: Sequence[int]) -> Any:
    """An int[] in the JVM."""
    return classes.Floats.integers(np.array(values, "<i4").tobytes())


def graph_of(context: SparkContext, spec: EncoderSpec, nodes: Nodes, output: Any) -> Graph:
    """Closes a graph. Runs on the driver.

    Args:
        context: The Spark context.
        spec: The encoder's shape.
        nodes: The encoder.
        output: The node that the graph gives.
    """
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


def encoder_graph(context: SparkContext, spec: EncoderSpec) -> Graph:
    """A graph from token ids and lengths to embeddings [texts, hidden]. Runs on the driver."""
    with quiet(context):
        nodes = encoder_nodes(context, spec)
        return graph_of(context, spec, nodes, nodes.embeddings)


@contextmanager
def quiet(context: SparkContext) -> Iterator[None]:
    """Keeps to itself what dllib prints for every layer, and its JVM side when it begins."""
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
    """Weights, or moments, in canonical names as the graph's vector, fp32."""
    vector = np.empty(graph.size, np.float32)
    for slot in graph.slots:
        start = slot.start
        for name in slot.names:
            end = start + weights[name].size
            vector[start:end] = weights[name].reshape(-1)
            start = end
    return vector


def unflattened(graph: Graph, vector: np.ndarray) -> Weights:
    """The graph's vector as arrays in canonical names; views of it."""
    shapes = weight_shapes(graph.spec)
    weights: Weights = {}
    for slot in graph.slots:
        start = slot.start
        for name in slot.names:
            end = start + int(np.prod(shapes[name]))
            weights[name] = vector[start:end].reshape(shapes[name])
            start = end
    # In canonical order, in which files are written.
    return {name: weights[name] for name in shapes}


def set_weights(graph: Graph, vector: np.ndarray) -> None:
    """Puts a vector into the graph. Runs on the driver, by a file: its pipe to the JVM is slow."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.bin"
        vector.astype("<f4", copy=False).tofile(path)
        graph.classes.FlatFile.load(str(path), graph.weights)


def packed_texts(token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The ids of padded texts one behind the other.

    Args:
        token_ids: int32 [texts, width].
        lengths: int32 [texts].
    """
    return token_ids[np.arange(token_ids.shape[1]) < lengths[:, None]]


def forward(graph: Graph, token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Embeds texts in the driver's JVM.

    Args:
        graph: Of :func:`encoder_graph`, with its weights.
        token_ids: int32 [texts, width], padded with any valid id.
        lengths: int32 [texts].

    Returns:
        fp32 [texts, hidden].
    """
    ids = packed_texts(token_ids, lengths)
    head = np.array([0, 1, len(ids), len(lengths), 0])
    content = np.concatenate([head, ids, lengths]).astype("<i4").tobytes()
    output = graph.model.forward(graph.classes.Granules.read(content).getInput())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "embeddings.bin"
        graph.classes.FlatFile.save(str(path), output)
        return np.fromfile(path, "<f4").reshape(len(lengths), graph.spec.hidden)
