"""Weights and moments as variables on the devices of a mesh, and their update by AdamW. Chief.

Not the library's own variables: of each of these one device keeps a whole copy beside the parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pipelines.models.frameworks.mesh import Shape, on_devices
from pipelines.models.frameworks.mesh_library import mtf, tf1
from pipelines.models.weights import Weights
from pipelines.settings import TrainingSettings
from pipelines.settings.training import Placement
from pipelines.training.steppers.adamw import BETA_1, BETA_2, EPSILON


class Sliced:
    """Arrays of which each device of a mesh has its part.

    They travel to a device, or from one, in one message, which may have 2 GB.

    Args:
        mesh: The mesh.
        shapes: The dimensions of each, by name.
        placement: How the devices are laid out.
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
        """The variable of a device."""
        return self._parts[name].tensor_list[device]

    def value(self, name: str, device: int) -> Any:
        """What that is at the beginning of a run of the session."""
        return self._values[name].tensor_list[device]

    def imported(self, mesh: Any) -> dict[str, Any]:
        """All of them as tensors of a graph of the library's."""
        return {
            name: mtf.import_laid_out_tensor(mesh, self._values[name], shape)
            for name, shape in self._shapes.items()
        }

    def clear(self, session: Any) -> None:
        """Makes all of them zero."""
        session.run(self._clear)

    def fill(self, session: Any, arrays: Mapping[str, np.ndarray]) -> None:
        """Gives each device its parts of canonical arrays.

        Where one has fewer rows than were shared out, the others are zero.
        """
        for number, starts in enumerate(self._starts):
            fed = {
                start: self._named(name, arrays[name])[self._bounds(name, number)]
                for name, start in starts.items()
            }
            session.run(self._fill[number], fed)

    def arrays(self, session: Any, canonical: Mapping[str, Sequence[int]]) -> Weights:
        """The whole arrays, put together from the parts of the first replica.

        Args:
            canonical: The shape of each.
        """
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

    def _named(self, name: str, whole: np.ndarray) -> np.ndarray:
        shape = self._shapes[name]
        padded = np.zeros(shape.size, np.float32)
        padded[: whole.size] = whole.reshape(-1)
        return padded.reshape(shape.to_integer_list)

    def is_divided(self, name: str) -> bool:
        """Whether members have different parts."""
        shape = self._shapes[name]
        return bool(math.prod(self._mesh.slice_shape(shape)) < shape.size)

    def _bounds(self, name: str, number: int) -> tuple[slice, ...]:
        first = self._mesh.slice_begin(self._shapes[name], number)
        size = self._mesh.slice_shape(self._shapes[name])
        return tuple(slice(one, one + some) for one, some in zip(first, size, strict=True))


class MeshState:
    """What is trained, in the session of the chief.

    Args:
        mesh: The mesh.
        shapes: The dimensions of each weight, by name.
        weights: The canonical arrays to begin with.
        training: The settings.
        placement: How the devices are laid out.
    """

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
        """Takes a state; without moments, that of a fresh optimiser."""
        self.weights.fill(session, weights)
        self.gradients.clear(session)
        for kind, of_kind in self._moments.items():
            if moments:
                of_kind.fill(session, {name: moments[f"{kind}/{name}"] for name in weights})
            else:
                of_kind.clear(session)

    def arrays(self, session: Any) -> tuple[Weights, Weights]:
        """Weights and moments, whole."""
        moments = {
            f"{kind}/{name}": value
            for kind, of_kind in self._moments.items()
            for name, value in of_kind.arrays(session, self._canonical).items()
        }
        return self.weights.arrays(session, self._canonical), moments

    def update(self, session: Any, rate: float, number: int, granules: int) -> float:
        """Makes an update from the gradients that were added up, and begins anew.

        Args:
            number: How many updates there have been with it.
            granules: Of each replica, whose gradients were added up.

        Returns:
            The norm of the gradient before it was clipped.
        """
        # A rate beyond single precision is infinite, of which the state that comes out tells.
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
        """The norm, and the operation that updates every device's part."""
        norms, updates = [], []
        squares = [self._squares(number) for number in range(self._mesh.size)]
        for number, device in enumerate(self._mesh.devices):
            peers = [squares[rank][0] for rank in self._placement.member_ranks(number)]
            with tf1.device(device):
                norms.append(tf1.sqrt(tf1.add_n([*peers, squares[number][1]])) * self._share)
                updates += [self._update_part(name, number, norms[-1]) for name in self._canonical]
        return norms[0], tf1.group(*updates)

    def _squares(self, number: int) -> tuple[Any, Any]:
        """The sums of squares of a device's gradients: of those that are divided, and others."""
        with tf1.device(self._mesh.devices[number]):
            sums: dict[bool, list[Any]] = {True: [tf1.zeros([])], False: [tf1.zeros([])]}
            for name in self._canonical:
                square = tf1.reduce_sum(tf1.square(self.gradients.value(name, number)))
                sums[self.weights.is_divided(name)].append(square)
            return tf1.add_n(sums[True]), tf1.add_n(sums[False])

    def _update_part(self, name: str, number: int, norm: Any) -> Any:
        """AdamW on a device's part; see :class:`.tensorflow.TensorFlowStepper`."""
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
        # Every device reads the others' sums of squares before its own are gone.
        with tf1.control_dependencies([applied, norm]):
            return gradients.assign(tf1.zeros_like(gradient), read_value=False)
