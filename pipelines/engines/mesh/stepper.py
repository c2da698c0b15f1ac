"""The training side of Mesh TensorFlow. Runs on executors.

Rank 0 is the chief: its session runs the graph on the servers of all workers. One worker of each
other replica sends the chief its granules, and all wait for the loss. Weights and moments are
variables on the devices of the mesh; the library's own variables keep a second, whole copy on one
device. A graph of the library has fixed dimensions, so each combination of padded widths has its
own graph.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from pipelines.engines.mesh.form import (
    EXAMPLES,
    REPLICA,
    TOKENS,
    Dropout,
    Shape,
    Side,
    forward,
    mesh_of,
    named_shapes,
    on_devices,
    pooling_shares,
)
from pipelines.engines.mesh.library import mtf, tf1
from pipelines.lanes.files import Granule
from pipelines.lanes.plan import noise_seed
from pipelines.lean_tensorflow import tensorflow as tf
from pipelines.models.bert.tensorflow import Packing
from pipelines.models.frameworks.tensorflow import configure_threads
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import Weights
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.settings import TrainingSettings
from pipelines.settings.training import Placement
from pipelines.training.collectives.base import Collectives
from pipelines.training.collectives.ring import gather_bytes
from pipelines.training.steppers.base import Stepper, StepperFactory, StepWork
from pipelines.training.steppers.numpy_adamw import BETA_1, BETA_2, EPSILON
from pipelines.training.steppers.objectives import LossOf, Objective, objectives
from pipelines.training.steppers.tensorflow import target_specs


class Sliced:
    """Arrays in parts, one on each device of a mesh.

    A transfer to or from a device is one message; TensorFlow's limit for it is 2 GB.
    """

    def __init__(self, mesh: Any, shapes: Mapping[str, Shape], placement: Placement) -> None:
        self._mesh = mesh
        self._shapes = {name: mtf.Shape(list(shape)) for name, shape in shapes.items()}
        self._members = range(placement.members)
        self._parts: dict[str, Any] = {}
        self._values: dict[str, Any] = {}
        self._starts: list[dict[str, Any]] = [{} for _ in range(mesh.size)]
        for name in shapes:
            self._parts[name] = on_devices(mesh, partial(self._variable, name))
            self._values[name] = on_devices(mesh, partial(self._read, name))
        self._fill, self._clear = (
            [tf1.group(*self._assigned(number, zero)) for number in range(mesh.size)]
            for zero in (False, True)
        )

    def _variable(self, name: str, device: int) -> Any:
        start = tf1.placeholder(tf1.float32, self._mesh.slice_shape(self._shapes[name]))
        self._starts[device][name] = start
        return tf1.Variable(start, trainable=False, use_resource=True, collections=[])

    def _read(self, name: str, device: int) -> Any:
        return self.part(name, device).value()

    def _assigned(self, number: int, zero: bool) -> Iterator[Any]:
        with tf1.device(self._mesh.devices[number]):
            for name, start in self._starts[number].items():
                value = tf1.zeros(start.shape) if zero else start
                yield self.part(name, number).assign(value, read_value=False)

    def part(self, name: str, device: int) -> Any:
        """Return the variable of a device."""
        return self._parts[name].tensor_list[device]

    def value(self, name: str, device: int) -> Any:
        """Return a variable's value at the beginning of a session run."""
        return self._values[name].tensor_list[device]

    def imported(self, mesh: Any) -> dict[str, Any]:
        """Return all arrays as tensors of a graph of the library."""
        return {
            name: mtf.import_laid_out_tensor(mesh, self._values[name], shape)
            for name, shape in self._shapes.items()
        }

    def clear(self, session: Any) -> None:
        """Set all arrays to zero."""
        session.run(self._clear)

    def fill(self, session: Any, arrays: Mapping[str, np.ndarray]) -> None:
        """Give each device its parts of canonical arrays; pad missing rows with zeros."""
        for number, starts in enumerate(self._starts):
            fed = {
                start: self._named(name, arrays[name])[self._bounds(name, number)]
                for name, start in starts.items()
            }
            session.run(self._fill[number], fed)

    def arrays(self, session: Any, canonical: Mapping[str, Sequence[int]]) -> Weights:
        """Assemble the whole arrays, of canonical shapes, from the parts of the first replica."""
        named = {
            name: np.empty(shape.to_integer_list, np.float32)
            for name, shape in self._shapes.items()
        }
        for number in self._members:
            values = session.run({name: self.value(name, number) for name in self._shapes})
            for name, value in values.items():
                named[name][self._bounds(name, number)] = value
        return {
            name: named[name].reshape(-1)[: math.prod(shape)].reshape(shape)
            for name, shape in canonical.items()
        }

    def _named(self, name: str, canonical: np.ndarray) -> np.ndarray:
        shape = self._shapes[name]
        padded = np.zeros(shape.size, np.float32)
        padded[: canonical.size] = canonical.reshape(-1)
        return padded.reshape(shape.to_integer_list)

    def is_divided(self, name: str) -> bool:
        """Return whether the members of a replica hold different parts."""
        shape = self._shapes[name]
        return bool(math.prod(self._mesh.slice_shape(shape)) < shape.size)

    def _bounds(self, name: str, number: int) -> tuple[slice, ...]:
        starts = self._mesh.slice_begin(self._shapes[name], number)
        sizes = self._mesh.slice_shape(self._shapes[name])
        return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))


class MeshState:
    """The trained state, in the session of the chief; weights start from canonical arrays."""

    def __init__(
        self,
        mesh: Any,
        shapes: Mapping[str, Shape],
        weights: Mapping[str, np.ndarray],
        training: TrainingSettings,
        placement: Placement,
    ) -> None:
        self._mesh, self._training, self._placement = mesh, training, placement
        self._canonical = {name: value.shape for name, value in weights.items()}
        named = {name: shapes[name] for name in weights}
        self.weights, self.gradients = (Sliced(mesh, named, placement) for _ in range(2))
        self._moments = {kind: Sliced(mesh, named, placement) for kind in ("m", "v")}
        scalars = [tf1.placeholder(tf1.float32, []) for _ in range(4)]
        self._rate, self._beta_1_power, self._beta_2_power, self._share = scalars
        self._norm, self._update = self._updating()

    def load(
        self,
        session: Any,
        weights: Mapping[str, np.ndarray],
        moments: Mapping[str, np.ndarray],
    ) -> None:
        """Load weights and moments; without moments, start a fresh optimiser."""
        self.weights.fill(session, weights)
        self.gradients.clear(session)
        for kind, of_kind in self._moments.items():
            if moments:
                of_kind.fill(session, {name: moments[f"{kind}/{name}"] for name in weights})
            else:
                of_kind.clear(session)

    def arrays(self, session: Any) -> tuple[Weights, Weights]:
        """Return weights and moments, whole."""
        moments = {
            f"{kind}/{name}": value
            for kind, of_kind in self._moments.items()
            for name, value in of_kind.arrays(session, self._canonical).items()
        }
        return self.weights.arrays(session, self._canonical), moments

    def update(self, session: Any, rate: float, number: int, granules: int) -> float:
        """Apply and clear the gradients of update `number`; return their norm before clipping.

        Each replica has accumulated `granules`; the update divides the gradients by their number.
        """
        # A rate beyond single precision becomes infinite, and shows in the updated state.
        with np.errstate(over="ignore"):
            fed = {
                self._rate: np.float32(rate),
                self._beta_1_power: np.float32(BETA_1**number),
                self._beta_2_power: np.float32(BETA_2**number),
                self._share: np.float32(1 / granules),
            }
        norm, _ = session.run([self._norm, self._update], fed)
        return float(norm)

    def _updating(self) -> tuple[Any, Any]:
        """Return the gradient norm, and the operation for the update of every device's part."""
        norms, updates = [], []
        squares = [self._squares(number) for number in range(self._mesh.size)]
        for number, device in enumerate(self._mesh.devices):
            peers = [squares[rank][0] for rank in self._placement.member_ranks(number)]
            with tf1.device(device):
                norms.append(tf1.sqrt(tf1.add_n([*peers, squares[number][1]])) * self._share)
                updates += [self._update_part(name, number, norms[-1]) for name in self._canonical]
        return norms[0], tf1.group(*updates)

    def _squares(self, number: int) -> tuple[Any, Any]:
        """Return a device's sums of squared gradients: of divided and of undivided weights."""
        with tf1.device(self._mesh.devices[number]):
            sums: dict[bool, list[Any]] = {True: [tf1.zeros([])], False: [tf1.zeros([])]}
            for name in self._canonical:
                square = tf1.reduce_sum(tf1.square(self.gradients.value(name, number)))
                sums[self.weights.is_divided(name)].append(square)
            return tf1.add_n(sums[True]), tf1.add_n(sums[False])

    def _update_part(self, name: str, number: int, norm: Any) -> Any:
        """Apply AdamW to a device's part; see :class:`.tensorflow.TensorFlowStepper`."""
        weight, gradients = self.weights.part(name, number), self.gradients.part(name, number)
        gradient = self.gradients.value(name, number) * self._share
        if clip := self._training.clip_norm:
            gradient *= clip * tf1.minimum(1 / norm, 1 / clip)
        before = [gradient]
        if self._training.weight_decay and len(self._canonical[name]) > 1:
            decay = self._rate * self._training.weight_decay
            before.append(
                weight.assign_sub(self.weights.value(name, number) * decay, read_value=False)
            )
        with tf1.control_dependencies(before):
            applied = tf1.raw_ops.ResourceApplyAdam(
                var=weight.handle,
                m=self._moments["m"].part(name, number).handle,
                v=self._moments["v"].part(name, number).handle,
                beta1_power=self._beta_1_power,
                beta2_power=self._beta_2_power,
                lr=self._rate,
                beta1=BETA_1,
                beta2=BETA_2,
                epsilon=EPSILON * tf1.sqrt(1 - self._beta_2_power),
                grad=gradient,
            )
        # No device clears its gradients before it has read the others' sums of squares.
        with tf1.control_dependencies([applied, norm]):
            return gradients.assign(tf1.zeros_like(gradient), read_value=False)


_SIZES_PER_OCTAVE = 2
_NARROWEST = 8


class SideInputs(NamedTuple):
    """One side of a granule, as the session's input.

    Attributes:
        token_ids: int32 [examples, width].
        lengths: int32 [examples].
        seed: int32 [2], of this side's noise.
        width: int32 [], before the padding to the graph's width.
    """

    token_ids: Any
    lengths: Any
    seed: Any
    width: Any


class GranuleInputs(NamedTuple):
    """A granule as the session's input: embedded sides, and the objective's targets."""

    sides: list[SideInputs]
    targets: list[Any]


def graph_width(width: int, positions: int) -> int:
    """Return a side's padded width, at most `positions`; few widths mean few graphs."""
    octave = max(1 << (width.bit_length() - 1), _NARROWEST)
    step = max(octave // _SIZES_PER_OCTAVE, _NARROWEST)
    return min(-(-width // step) * step, positions)


class GranuleGraph:
    """The graph of one granule per replica; it accumulates gradients in the state.

    The spec's vocabulary must be divisible among the members.
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
        self._inputs = [
            self._placeholders(objective, replica) for replica in range(placement.replicas)
        ]
        graph = mtf.Graph()
        self._library_mesh = mtf.Mesh(graph, "mesh")
        weights = state.weights.imported(self._library_mesh)
        embeddings = [forward(spec, weights, self._side(number)) for number in range(len(widths))]
        targets = [
            tf.nest.pack_sequence_as(target_specs(objective), granule.targets)
            for granule in self._inputs
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
        """Add the gradients of granules, one per replica; return their losses."""
        fed = {}
        for placeholders, granule in zip(self._inputs, granules, strict=True):
            sides = zip(placeholders.sides, granule.sides, self._widths, strict=True)
            for (ids, *fields), (ids_value, *field_values), width in sides:
                fed[ids] = np.pad(ids_value, [(0, 0), (0, width - ids_value.shape[1])])
                fed |= dict(zip(fields, field_values, strict=True))
            fed |= dict(zip(placeholders.targets, granule.targets, strict=True))
        losses, _ = session.run([self._losses, self._added], fed)
        return [float(loss) for loss in losses]

    @property
    def _replicas(self) -> list[int]:
        return [self._placement.place(number).replica for number in range(self._mesh.size)]

    def _placeholders(self, objective: Objective, replica: int) -> GranuleInputs:
        """Return a replica's placeholders, on its first device."""
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
        """Return a side of all replicas' granules."""
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

    Each device draws the mask of its whole granule, in the order of the TensorFlow form, and takes
    its part without any exchange.
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
        """Return the factors for values of a shape at a dropout site; see :class:`Dropout`."""
        draw = self._of_heads if attention else self._of_rows

        def make(device: int) -> tf.Tensor:
            seed = tf.random.fold_in(self._inputs[device].seed, site, alg="philox")
            part = draw(device, seed, share, shape)
            # A device has one granule: that of its replica.
            return tf.ensure_shape(part[None], self._mesh.slice_shape(shape))

        parts = on_devices(self._mesh, make)
        return mtf.import_laid_out_tensor(self._library_mesh, parts, shape)

    def _of_heads(self, device: int, seed: tf.Tensor, share: float, shape: Any) -> tf.Tensor:
        """Return [examples, heads of the member, tokens, tokens]."""
        _, examples, heads, tokens, _ = shape.to_integer_list
        width = self._inputs[device].width
        mask = _drawn([examples, heads, width, width], share, seed)
        first = self._mesh.slice_begin(shape, device)[2]
        part = mask[:, first : first + self._mesh.slice_shape(shape)[2]]
        padding = [0, tokens - width]
        return tf.pad(part, [[0, 0], [0, 0], padding, padding])

    def _of_rows(self, device: int, seed: tf.Tensor, share: float, shape: Any) -> tf.Tensor:
        """Return [examples, tokens, hidden], drawn for rows of tokens without padding."""
        _, examples, tokens, hidden = shape.to_integer_list
        side = self._inputs[device]
        packing = Packing(side.lengths, examples, side.width)
        rows = _drawn([tf.shape(packing.places)[0], hidden], share, seed)
        return tf.pad(packing.rectangle(rows), [[0, 0], [0, tokens - side.width], [0, 0]])


def _drawn(shape: Sequence[Any], share: float, seed: tf.Tensor) -> tf.Tensor:
    ones = tf.ones(shape)
    return tf.nn.experimental.stateless_dropout(ones, share, seed=seed, rng_alg="philox")


class _Loss(mtf.Operation):  # type: ignore[misc] # the library has no types
    """The loss of each replica's granule, and the gradients of the mean loss at its embeddings.

    The package's TensorFlow loss computes it on the granule's device: along the data axis, a part
    of a mesh tensor is a whole granule.
    """

    has_gradient = False

    def __init__(self, loss: LossOf, embeddings: Sequence[Any], targets: Sequence[Any]) -> None:
        super().__init__(list(embeddings), name="loss")
        self._loss, self._targets = loss, targets
        self._replica = embeddings[0].shape[0]
        shapes = [mtf.Shape([self._replica]), *(side.shape for side in embeddings)]
        self._outputs = [mtf.Tensor(self, shape, tf.float32) for shape in shapes]

    def lower(self, lowering: Any) -> None:
        """Compute the loss and its gradients on each device."""
        mesh = lowering.mesh_impl(self)
        sides = [
            lowering.tensors[tensor].to_laid_out_tensor().tensor_list for tensor in self.inputs
        ]

        def make(device: int) -> list[tf.Tensor]:
            granule = [side[device][0] for side in sides]
            loss = self._loss(granule, self._targets[device])
            pulls = tf1.gradients(loss / self._replica.size, granule)
            return [loss[None], *(pull[None] for pull in pulls)]

        by_device = on_devices(mesh, make).tensor_list
        for output, parts in zip(self.outputs, zip(*by_device, strict=True), strict=True):
            lowering.set_tensor_lowering(output, mesh.LaidOutTensor(list(parts)))


CHIEF = 0


class MeshCollectives(Collectives, Protocol):
    """The transport of a mesh's workers, with their devices by rank.

    The chief's session connects to `target`; it is empty for this process alone.
    """

    target: str
    devices: Sequence[str]


class MeshStepper:
    """Makes optimiser updates; see :mod:`pipelines.training.steppers.base`."""

    sharded = True
    precision = "fp32"
    # Unknown, since the library's exchange is a part of the graph.
    exchange_seconds = None

    def __init__(
        self, task: WorkerTask, checkpoint: Checkpoint, collectives: MeshCollectives
    ) -> None:
        self._task, self._collectives, self._spec = task, collectives, checkpoint.spec
        self._seed = task.run.config.training.seed
        self._objectives = objectives(task.run, "tensorflow")
        self.gradient_norm: float | None = None
        self._chief = (
            _Chief(task, checkpoint, collectives, self._objectives)
            if collectives.rank == CHIEF
            else None
        )

    @staticmethod
    def prepare_process(settings: TrainingSettings) -> None:
        """Set TensorFlow's threads, before its first operation."""
        configure_threads(settings.threads)

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Make one update from the replicas' granules; return the loss over all of them."""
        objective = self._objectives[work.source]
        is_first = self._task.place.member == 0
        granules = [self._inputs(granule, objective, work.noise_epoch) for granule in work.granules]
        gathered = gather_bytes(
            self._collectives.all_gather, _packed(granules) if is_first else _NOTHING
        )
        # One row from the chief, and none from the other workers.
        result = np.empty([0, 2], np.float64)
        if self._chief is not None:
            replicas = _unpacked(gathered, len(objective.sides))
            result = np.array([self._chief.step(work, list(replicas), learning_rate)])
        ((loss, norm),) = np.asarray(self._collectives.all_gather(result)).tolist()
        self.gradient_norm = norm
        return float(loss)

    def checkpoint(self, step: int) -> Checkpoint:
        """Return the state before a step; only the chief's has arrays."""
        weights, moments = ({}, {}) if self._chief is None else self._chief.arrays()
        return Checkpoint(step=step, spec=self._spec, weights=weights, moments=moments)

    def _inputs(self, granule: Granule, objective: Objective, epoch: int) -> GranuleInputs:
        sides = []
        for site, name in enumerate(objective.sides):
            side = granule.sides[name]
            seed = np.array(noise_seed(self._seed, epoch, granule.number, site), np.int32)
            width = np.int32(side.token_ids.shape[1])
            sides.append(SideInputs(side.token_ids, side.lengths, seed, np.array(width)))
        return GranuleInputs(sides, tf.nest.flatten(objective.targets(granule)))


class _Chief:
    """The session for the computation on all workers."""

    def __init__(
        self,
        task: WorkerTask,
        checkpoint: Checkpoint,
        collectives: MeshCollectives,
        known: Sequence[Objective],
    ) -> None:
        self._training = task.run.config.training
        self._placement, self._objectives = task.placement, known
        members = self._placement.members
        # The library divides only evenly, so padding rows follow the vocabulary.
        rows = -(-checkpoint.spec.vocabulary // members) * members
        self._spec = replace(checkpoint.spec, vocabulary=rows)
        self._graph = tf1.Graph()
        self._mesh = mesh_of(self._placement, collectives.devices)
        self._compiled: dict[tuple[int, ...], GranuleGraph] = {}
        with self._graph.as_default():
            self._state = MeshState(
                self._mesh,
                named_shapes(self._spec),
                checkpoint.weights,
                self._training,
                self._placement,
            )
        config = session_config(self._training.threads)
        # The driver's deadline for a step.
        config.operation_timeout_in_ms = 1000 * self._training.stall_seconds
        self._session = tf1.Session(collectives.target, self._graph, config)
        self._state.load(self._session, checkpoint.weights, checkpoint.moments)

    def step(
        self, work: StepWork, replicas: Sequence[Sequence[GranuleInputs]], learning_rate: float
    ) -> tuple[float, float]:
        """Make an update from the granules of all replicas; return the loss and the norm."""
        losses = list(
            chain.from_iterable(
                self._granule_graph(work.source, granules).run(self._session, granules)
                for granules in zip(*replicas, strict=True)
            )
        )
        granules = len(losses) // self._placement.replicas
        norm = self._state.update(self._session, learning_rate, work.index + 1, granules)
        return float(np.mean(losses)), norm

    def arrays(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        return self._state.arrays(self._session)

    def _granule_graph(self, source: int, granules: Sequence[GranuleInputs]) -> GranuleGraph:
        """Return the graph for the widths of these granules, one per replica."""
        by_side = zip(*(granule.sides for granule in granules), strict=True)
        positions = self._spec.positions  # type: ignore[attr-defined] # specs that have a form have it
        widths = [
            graph_width(max(side.token_ids.shape[1] for side in sides), positions)
            for sides in by_side
        ]
        examples = len(granules[0].sides[0].lengths)
        key = (source, examples, *widths)
        if key not in self._compiled:
            with self._graph.as_default():
                self._compiled[key] = GranuleGraph(
                    self._spec,
                    self._objectives[source],
                    examples,
                    widths,
                    self._mesh,
                    self._state,
                    self._training,
                    self._placement,
                )
        return self._compiled[key]


def session_config(threads: int) -> Any:
    """Return the configuration of TensorFlow's servers and sessions: CPU only."""
    return tf1.ConfigProto(
        intra_op_parallelism_threads=threads,
        inter_op_parallelism_threads=threads,
        device_count={"GPU": 0},
    )


_NOTHING = np.empty(0, np.uint8)
_SIZE = np.dtype("<u8")


def _packed(granules: Sequence[GranuleInputs]) -> np.ndarray:
    """Return granules as bytes, behind their number."""
    buffer = io.BytesIO()
    arrays = [
        array
        for granule in granules
        for array in (*chain.from_iterable(granule.sides), *granule.targets)
    ]
    np.savez(buffer, np.array([len(granules)]), *arrays)
    data = np.frombuffer(buffer.getvalue(), np.uint8)
    return np.concatenate([np.array([len(data)], _SIZE).view(np.uint8), data])


def _unpacked(data: np.ndarray, sides: int) -> Iterator[list[GranuleInputs]]:
    """Yield the granules of each replica."""
    while len(data):
        size = _SIZE.itemsize + int(data[: _SIZE.itemsize].view(_SIZE)[0])
        with np.load(io.BytesIO(data[_SIZE.itemsize : size].tobytes())) as stored:
            count, *arrays = [stored[f"arr_{number}"] for number in range(len(stored.files))]
        data = data[size:]
        each = len(arrays) // int(count[0])
        fields = len(SideInputs._fields)
        granules = []
        for start in range(0, len(arrays), each):
            values = arrays[start : start + each]
            inputs = [SideInputs(*values[n * fields : (n + 1) * fields]) for n in range(sides)]
            granules.append(GranuleInputs(inputs, values[sides * fields :]))
        yield granules


if TYPE_CHECKING:
    # mypy: the class has what the loop needs.
    _for_steps: StepperFactory[Stepper] = MeshStepper  # type: ignore[assignment] # of its own collectives
