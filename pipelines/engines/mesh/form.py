"""The common part of architectures in Mesh TensorFlow: named dimensions on a mesh.

A mesh has the axes ``data``, of replicas, and ``model``, of the members of each. A dimension is
divided along one of them, or along none: then every device has all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipelines.engines.mesh.library import PlacementMeshImpl, mtf, tf1
from pipelines.lean_tensorflow import tensorflow as tf
from pipelines.models.architecture import form_of
from pipelines.models.spec import DropoutRates, EncoderSpec, Pooling
from pipelines.models.weights import dense_name
from pipelines.settings.training import Placement

DATA, MODEL = "data", "model"
REPLICA, EXAMPLES, TOKENS, HIDDEN = "replica", "examples", "tokens", "hidden"
VOCABULARY, HEADS, WIDE = "vocabulary", "heads", "wide"
LAYOUT = f"{REPLICA}:{DATA};{VOCABULARY}:{MODEL};{HEADS}:{MODEL};{WIDE}:{MODEL}"
"""The axis of the mesh for each divided dimension."""

Shape = Sequence[Any]
"""Dimensions of the library."""
TensorFunction = Callable[..., Any]


def mesh_of(placement: Placement, devices: Sequence[str]) -> Any:
    """Return the mesh of the workers' devices, which come by rank: members, then replicas."""
    shape = f"{DATA}:{placement.replicas};{MODEL}:{placement.members}"
    return PlacementMeshImpl(mtf.convert_to_shape(shape), LAYOUT, list(devices))


def on_devices(mesh: Any, make: Callable[[int], Any]) -> Any:
    """Return one value of the mesh, from a part per device by its number."""
    parts = []
    for number, device in enumerate(mesh.devices):
        with tf1.device(device):
            parts.append(make(number))
    return mesh.LaidOutTensor(parts)


@dataclass(frozen=True)
class Side:
    """One side of a granule of each replica, padded to one width.

    Attributes:
        token_ids: int32 [replica, examples, tokens].
        is_token: fp32 of the same shape, 0 for padding.
        pooled: fp32 of the same shape, the share of a token in the embedding.
        dropout: Applies the dropout of each site in turn.
    """

    token_ids: Any
    is_token: Any
    pooled: Any
    dropout: Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Form:
    """The registration of an architecture for `mesh`.

    Attributes:
        shapes: The dimensions of each weight, in the canonical array's order; several may make up
            one of its axes.
        encode: The forward pass, from weights and a side to fp32 [replica, examples, hidden],
            before dense layers.
    """

    shapes: Callable[[Any], Mapping[str, Shape]]
    encode: Callable[[Any, Mapping[str, Any], Side], Any]


def named_shapes(spec: EncoderSpec) -> Mapping[str, Shape]:
    """Return the dimensions of every weight of an encoder."""
    form: Form = form_of(spec, "mesh")
    shapes, before = dict(form.shapes(spec)), mtf.Dimension(HIDDEN, spec.hidden)
    for number, layer in enumerate(spec.dense):
        after = mtf.Dimension(f"dense_{number}", layer.width)
        shapes[dense_name(number, "weight")] = [after, before]
        if layer.bias:
            shapes[dense_name(number, "bias")] = [after]
        before = after
    return shapes


def forward(spec: EncoderSpec, weights: Mapping[str, Any], side: Side) -> Any:
    """Embed a side: fp32 [replica, examples, embedding width], of length 1.

    The weights are tensors of the library, of :func:`named_shapes`.
    """
    form: Form = form_of(spec, "mesh")
    embeddings = form.encode(spec, weights, side)
    for number, layer in enumerate(spec.dense):
        matrix = weights[dense_name(number, "weight")]
        before, after = embeddings.shape[-1], matrix.shape[0]
        embeddings = mtf.einsum([embeddings, matrix], reduced_dims=[before])
        if layer.bias:
            embeddings += weights[dense_name(number, "bias")]
        if layer.activation == "tanh":
            embeddings = locally(tf.tanh, embeddings, undivided=after)
    normalise = partial(tf.math.l2_normalize, axis=-1)
    return locally(normalise, embeddings, undivided=embeddings.shape[-1])


def pooling_shares(pooling: Pooling, lengths: tf.Tensor, width: int) -> tf.Tensor:
    """Return the share of each token in the embedding of its text, fp32 [texts, width]."""
    is_token = tf.sequence_mask(lengths, width, dtype=tf.float32)
    if pooling == "cls":
        return tf.one_hot(tf.zeros_like(lengths), width)
    if pooling == "lasttoken":
        return tf.one_hot(lengths - 1, width)
    if pooling == "weightedmean":
        is_token *= tf.range(1, width + 1, dtype=tf.float32)
    return is_token / tf.reduce_sum(is_token, axis=1, keepdims=True)


class _Local(mtf.SlicewiseOperation):  # type: ignore[misc] # the library has no types
    """A TensorFlow function on each device's part, with TensorFlow's gradient.

    The library's own gradient of such functions rejects sums that are still pending.
    """

    def gradient(self, grad_ys: Sequence[Any]) -> list[Any]:
        (values,), (upstream,) = self.inputs, grad_ys
        function = partial(_gradient, self._tf_fn)
        splittable = [
            dimension for dimension in values.shape if dimension.name in self._splittable_dims
        ]
        return [mtf.slicewise(function, [values, upstream], splittable_dims=splittable)]


def _gradient(function: TensorFunction, values: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    (found,) = tf1.gradients(function(values), values, upstream)
    return found


def locally(function: TensorFunction, values: Any, *, undivided: Any) -> Any:
    """Apply a shape-preserving TensorFlow function to each device's part.

    The dimension `undivided` is whole on each device; None if any may be divided.
    """
    splittable = [dimension for dimension in values.shape if dimension != undivided]
    return _Local(function, [values], [values.shape], [values.dtype], splittable).outputs[0]


class _Lookup(mtf.Operation):  # type: ignore[misc] # the library has no types
    """Rows of a table by number, with the rows divided along an axis of the mesh.

    The library's own lookup multiplies with one-hot rows, as wide as the table is long.
    """

    def __init__(self, table: Any, numbers: Any) -> None:
        super().__init__([table, numbers], name="lookup")
        shape = mtf.Shape([*numbers.shape, *table.shape[1:]])
        self._outputs = [mtf.Tensor(self, shape, table.dtype)]

    def gradient(self, grad_ys: Sequence[Any]) -> list[Any]:
        table, numbers = self.inputs
        return [_LookupGradient(table, numbers, grad_ys[0]).outputs[0], None]

    def lower(self, lowering: Any) -> None:
        """Look up each device's own rows; the sum over devices is every row."""
        table, numbers = self.inputs
        mesh = lowering.mesh_impl(self)
        rows = mesh.slicewise(
            _rows, lowering.tensors[table], lowering.tensors[numbers], _firsts(mesh, table)
        )
        lowering.set_tensor_lowering(self.outputs[0], _sum_over(mesh, rows, table.shape[:1]))


class _LookupGradient(mtf.Operation):  # type: ignore[misc] # the library has no types
    """The gradient of a lookup's table."""

    def __init__(self, table: Any, numbers: Any, upstream: Any) -> None:
        super().__init__([table, numbers, upstream], name="lookup_gradient")
        self._outputs = [mtf.Tensor(self, table.shape, table.dtype)]

    def lower(self, lowering: Any) -> None:
        """Sum on each device the gradients of its rows, and then over replicas."""
        table, numbers, upstream = self.inputs
        mesh = lowering.mesh_impl(self)
        rows = mesh.slicewise(
            partial(_summed_rows, count=mesh.slice_shape(table.shape)[0]),
            lowering.tensors[numbers],
            lowering.tensors[upstream],
            _firsts(mesh, table),
        )
        lowering.set_tensor_lowering(self.outputs[0], _sum_over(mesh, rows, numbers.shape.dims))


def look_up(table: Any, numbers: Any) -> Any:
    """Return the rows of a table [rows, width] by number, [..., width]."""
    return _Lookup(table, numbers).outputs[0]


def _firsts(mesh: Any, table: Any) -> Any:
    return mesh.LaidOutTensor([mesh.slice_begin(table.shape, n)[0] for n in range(mesh.size)])


def _sum_over(mesh: Any, parts: Any, dimensions: Shape) -> Any:
    """Return the lazy sum over the axes of divided dimensions."""
    axes = [mesh.tensor_dimension_to_mesh_axis(dimension) for dimension in dimensions]
    found = sorted(axis for axis in axes if axis is not None and mesh.shape[axis].size > 1)
    return mtf.LazyAllreduceSum(mesh, parts, found) if found else parts


def _rows(table: tf.Tensor, numbers: tf.Tensor, first: int) -> tf.Tensor:
    places = numbers - first
    is_here = (places >= 0) & (places < table.shape[0])
    found = tf.gather(table, tf.where(is_here, places, 0))
    return tf.where(is_here[..., None], found, 0.0)


def _summed_rows(numbers: tf.Tensor, upstream: tf.Tensor, first: int, *, count: int) -> tf.Tensor:
    places = numbers - first
    # TensorFlow ignores rows with a negative number.
    places = tf.where((places >= 0) & (places < count), places, -1)
    return tf.math.unsorted_segment_sum(upstream, places, count)


class Dropout:
    """Dropout in one forward pass of a side; see :class:`.tensorflow.Dropout`.

    Args:
        rates: Shares of dropped values; None without dropout.
        mask: Returns the factors at a site, from its number, the share, the dimensions of the
            values, and whether they are attention's probabilities.
    """

    def __init__(
        self, rates: DropoutRates | None, mask: Callable[[int, float, Any, bool], Any]
    ) -> None:
        self._rates = rates or DropoutRates(0.0, 0.0)
        self._mask = mask
        self._sites = 0

    def __call__(self, values: Any, *, attention: bool = False) -> Any:
        """Apply the next site's dropout; attention's probabilities have a separate rate."""
        share = self._rates.attention if attention else self._rates.hidden
        if not share:
            return values
        self._sites += 1
        return values * self._mask(self._sites, share, values.shape, attention)
