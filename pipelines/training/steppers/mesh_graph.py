"""The graph of a training on a mesh: a granule of each replica at once. Runs in the chief.

The library's dimensions have sizes that are known when a graph is made, so there is a graph for
each combination of widths, to which the sides of granules are padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pipelines.lean_tensorflow import tensorflow as tf
from pipelines.models.bert.tensorflow_packing import Packing
from pipelines.models.frameworks.mesh import (
    EXAMPLES,
    REPLICA,
    TOKENS,
    Dropout,
    Side,
    forward,
    on_devices,
    pooling_shares,
)
from pipelines.models.frameworks.mesh_library import mtf, tf1
from pipelines.models.spec import EncoderSpec
from pipelines.settings import TrainingSettings
from pipelines.settings.training import Placement
from pipelines.training.steppers.mesh_state import MeshState
from pipelines.training.steppers.objectives import LossOf, Objective
from pipelines.training.steppers.tensorflow_targets import target_specs

_SIZES_PER_OCTAVE = 2
_NARROWEST = 8


class SideInputs(NamedTuple):
    """One side of a granule, as it is fed.

    Attributes:
        token_ids: int32 [examples, width].
        lengths: int32 [examples].
        seed: int32 [2], of the noise on this side.
        width: int32 [], without the padding that the graph adds.
    """

    token_ids: Any
    lengths: Any
    seed: Any
    width: Any


class GranuleInputs(NamedTuple):
    """A granule, as it is fed.

    Attributes:
        sides: Those that the objective embeds.
        targets: What it compares with, one array after another.
    """

    sides: list[SideInputs]
    targets: list[Any]


def graph_width(width: int, positions: int) -> int:
    """The width that a side is padded to, so that few graphs do for many widths.

    Args:
        width: Of the side.
        positions: Of the encoder, which has no more.
    """
    octave = max(1 << (width.bit_length() - 1), _NARROWEST)
    step = max(octave // _SIZES_PER_OCTAVE, _NARROWEST)
    return min(-(-width // step) * step, positions)


class GranuleGraph:
    """Adds the gradients of a granule of each replica to those of the state.

    Args:
        spec: Of the encoder, whose vocabulary the members can share.
        objective: Of the granules.
        examples: Of each granule.
        widths: Of each side.
        mesh: The mesh.
        state: Whose weights they are the gradients of.
    """

    def __init__(
        self,
        spec: EncoderSpec,
        objective: Objective,
        examples: int,
        widths: Sequence[int],
        mesh: Any,
        state: MeshState,
        training: TrainingSettings,
        placement: Placement,
    ) -> None:
        self._spec, self._training = spec, training
        self._mesh, self._placement = mesh, placement
        self._dimensions = [
            mtf.Dimension(REPLICA, placement.replicas),
            mtf.Dimension(EXAMPLES, examples),
        ]
        self._widths = widths
        self._inputs = [self._placeholders(objective, one) for one in range(placement.replicas)]
        graph = mtf.Graph()
        self._library_mesh = mtf.Mesh(graph, "mesh")
        weights = state.weights.imported(self._library_mesh)
        embeddings = [forward(spec, weights, self._side(number)) for number in range(len(widths))]
        targets = [
            tf.nest.pack_sequence_as(target_specs(objective), one.targets) for one in self._inputs
        ]
        compared = _Loss(objective.loss, embeddings, [targets[n] for n in self._replicas])
        losses, *pulls = compared.outputs
        gradients = mtf.gradients(embeddings, list(weights.values()), grad_ys=pulls)
        lowered = mtf.Lowering(graph, {self._library_mesh: mesh}, autostack=False)
        first_members = [
            number for number in range(mesh.size) if placement.place(number).member == 0
        ]
        of_devices = lowered.tensors[losses].tensor_list
        self._losses = [of_devices[number][0] for number in first_members]
        added = []
        for name, gradient in zip(weights, gradients, strict=True):
            parts = lowered.tensors[gradient].to_laid_out_tensor().tensor_list
            for number, part in enumerate(parts):
                total = state.gradients.part(name, number)
                with tf1.device(mesh.devices[number]):
                    added.append(total.assign_add(part, read_value=False))
        self._added = tf1.group(*added)

    def run(self, session: Any, granules: Sequence[GranuleInputs]) -> list[float]:
        """Adds the gradients of granules, one of each replica; returns their losses."""
        fed = {}
        for placeholders, granule in zip(self._inputs, granules, strict=True):
            sides = zip(placeholders.sides, granule.sides, self._widths, strict=True)
            for (ids, *others), (own_ids, *own_others), width in sides:
                fed[ids] = np.pad(own_ids, [(0, 0), (0, width - own_ids.shape[1])])
                fed |= dict(zip(others, own_others, strict=True))
            fed |= dict(zip(placeholders.targets, granule.targets, strict=True))
        losses, _ = session.run([self._losses, self._added], fed)
        return [float(loss) for loss in losses]

    @property
    def _replicas(self) -> list[int]:
        """The replica of each device."""
        return [self._placement.place(number).replica for number in range(self._mesh.size)]

    def _placeholders(self, objective: Objective, replica: int) -> GranuleInputs:
        """What is fed to a replica, at its first device."""
        examples = self._dimensions[1].size
        with tf1.device(self._mesh.devices[self._replicas.index(replica)]):
            sides = [
                SideInputs(
                    tf1.placeholder(tf.int32, [examples, width]),
                    tf1.placeholder(tf.int32, [examples]),
                    tf1.placeholder(tf.int32, [2]),
                    tf1.placeholder(tf.int32, []),
                )
                for width in self._widths
            ]
            specs = tf.nest.flatten(target_specs(objective))
            return GranuleInputs(sides, [tf1.placeholder(spec.dtype, spec.shape) for spec in specs])

    def _side(self, number: int) -> Side:
        """A side of all replicas' granules."""
        width = self._widths[number]
        shape = [*self._dimensions, mtf.Dimension(TOKENS, width)]
        inputs = [self._inputs[replica].sides[number] for replica in self._replicas]
        masks = _Masks(self._library_mesh, self._mesh, inputs, self._placement)

        def imported(make: Any) -> Any:
            parts = on_devices(self._mesh, lambda device: make(inputs[device])[None])
            return mtf.import_laid_out_tensor(self._library_mesh, parts, shape)

        return Side(
            token_ids=imported(lambda side: side.token_ids),
            is_token=imported(lambda side: tf.sequence_mask(side.lengths, width, tf.float32)),
            pooled=imported(
                lambda side: pooling_shares(self._spec.pooling, side.lengths, width)  # type: ignore[attr-defined] # specs that have a form have it
            ),
            dropout=Dropout(self._spec.dropout(self._training.dropout), masks.mask),
        )


class _Masks:
    """The dropout of a side, the same as in a single process.

    Each device draws the mask of its whole granule, as the form in TensorFlow does for the rows and
    heads that it has, and takes its part of it: nothing is sent.

    Args:
        library_mesh: Of the graph.
        mesh: The mesh.
        inputs: The side, of each device.
        placement: How the devices are laid out.
    """

    def __init__(
        self,
        library_mesh: Any,
        mesh: Any,
        inputs: Sequence[SideInputs],
        placement: Placement,
    ) -> None:
        self._library_mesh, self._mesh = library_mesh, mesh
        self._inputs, self._placement = inputs, placement

    def mask(self, site: int, share: float, shape: Any, attention: bool) -> Any:
        """What the values of a shape are multiplied by at a place; see :class:`Dropout`."""
        draw = self._of_heads if attention else self._of_rows

        def make(device: int) -> tf.Tensor:
            seed = tf.random.fold_in(self._inputs[device].seed, site, alg="philox")
            part = draw(device, seed, share, shape)
            # One granule for each replica.
            return tf.ensure_shape(part[None], self._mesh.slice_shape(shape))

        parts = on_devices(self._mesh, make)
        return mtf.import_laid_out_tensor(self._library_mesh, parts, shape)

    def _of_heads(self, device: int, seed: tf.Tensor, share: float, shape: Any) -> tf.Tensor:
        """[examples, heads of the member, tokens, tokens]."""
        _, examples, heads, tokens, _ = shape.to_integer_list
        width = self._inputs[device].width
        whole = _drawn([examples, heads, width, width], share, seed)
        first = self._mesh.slice_begin(shape, device)[2]
        own = whole[:, first : first + self._mesh.slice_shape(shape)[2]]
        more = [0, tokens - width]
        return tf.pad(own, [[0, 0], [0, 0], more, more])

    def _of_rows(self, device: int, seed: tf.Tensor, share: float, shape: Any) -> tf.Tensor:
        """[examples, tokens, hidden], drawn for rows of tokens without padding."""
        _, examples, tokens, hidden = shape.to_integer_list
        side = self._inputs[device]
        packing = Packing(side.lengths, examples, side.width)
        rows = _drawn([tf.shape(packing.places)[0], hidden], share, seed)
        return tf.pad(packing.rectangle(rows), [[0, 0], [0, tokens - side.width], [0, 0]])


def _drawn(shape: Sequence[Any], share: float, seed: tf.Tensor) -> tf.Tensor:
    ones = tf.ones(shape)
    return tf.nn.experimental.stateless_dropout(ones, share, seed=seed, rng_alg="philox")


class _Loss(mtf.Operation):  # type: ignore[misc] # the library has no types
    """The loss of each replica's granule, and the gradients of their mean at its embeddings.

    The project's own form in TensorFlow, on the device that has the granule: a part of a mesh's
    tensor is the whole of a granule.

    Args:
        loss: Of the embeddings of the sides and the targets.
        embeddings: Of each side.
        targets: Of each device's granule.
    """

    has_gradient = False

    def __init__(self, loss: LossOf, embeddings: Sequence[Any], targets: Sequence[Any]) -> None:
        super().__init__(list(embeddings), name="loss")
        self._loss, self._targets = loss, targets
        self._replica = embeddings[0].shape[0]
        shapes = [mtf.Shape([self._replica]), *(one.shape for one in embeddings)]
        self._outputs = [mtf.Tensor(self, shape, tf.float32) for shape in shapes]

    def lower(self, lowering: Any) -> None:
        """The loss and its gradients on each device."""
        mesh = lowering.mesh_impl(self)
        sides = [lowering.tensors[one].to_laid_out_tensor().tensor_list for one in self.inputs]

        def make(device: int) -> list[tf.Tensor]:
            own = [side[device][0] for side in sides]
            loss = self._loss(own, self._targets[device])
            pulls = tf1.gradients(loss / self._replica.size, own)
            return [loss[None], *(pull[None] for pull in pulls)]

        by_device = on_devices(mesh, make).tensor_list
        for output, parts in zip(self.outputs, zip(*by_device, strict=True), strict=True):
            lowering.set_tensor_lowering(output, mesh.LaidOutTensor(list(parts)))
