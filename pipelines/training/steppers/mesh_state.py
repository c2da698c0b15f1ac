"""Weights and moments as variables on the devices of a mesh, and their update by AdamW. Chief.

Not the library's own variables: of each of these one device keeps a whole copy beside the parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipelines.models.frameworks.mesh import Shape, on_devices
from pipelines.models.frameworks.mesh_library import mtf, tf1
from pipelines.models.weights import Weights
from pipelines.settings import TrainingSettings
from pipelines.settings.placement import Placement
from pipelines.training.steppers.adamw import BETA_1, BETA_2, EPSILON


class Sliced:
    """Arrays of which each device of a mesh has its part.

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
        self._starts: dict[str, Any] = {}
        for name, shape in self._shapes.items():
            self._starts[name] = tf1.placeholder(tf1.float32, mesh.slice_shape(shape))
            self._parts[name] = on_devices(mesh, lambda _, name=name: self._variable(name))

    def _variable(self, name: str) -> Any:
        start = self._starts[name]
        return tf1.Variable(start, trainable=False, use_resource=True, collections=[])

    def part(self, name: str, device: int) -> Any:
        """The variable of a device."""
        return self._parts[name].tensor_list[device]

    def imported(self, mesh: Any) -> dict[str, Any]:
        """All of them as tensors of a graph of the library's."""
        return {
            name: mtf.import_laid_out_tensor(
                mesh, on_devices(self._mesh, lambda n, name=name: self.part(name, n).value()), shape
            )
            for name, shape in self._shapes.items()
        }

    def fill(self, session: Any, name: str, whole: np.ndarray) -> None:
        """Gives each device its part of an array.

        Args:
            whole: The canonical array; where it has fewer rows than were shared out, the others
                are zero.
        """
        shape = self._shapes[name]
        padded = np.zeros(shape.size, np.float32)
        padded[: whole.size] = whole.reshape(-1)
        named = padded.reshape(shape.to_integer_list)
        for number in range(self._mesh.size):
            part = {self._starts[name]: named[self._bounds(name, number)]}
            session.run(self.part(name, number).initializer, part)

    def whole(self, session: Any, name: str, shape: Sequence[int]) -> np.ndarray:
        """An array of a canonical shape, put together from the parts of the first replica."""
        named = np.empty(self._shapes[name].to_integer_list, np.float32)
        parts = session.run([self.part(name, number).value() for number in self._members])
        for number, part in zip(self._members, parts, strict=True):
            named[self._bounds(name, number)] = part
        return named.reshape(-1)[: int(np.prod(shape))].reshape(shape)

    def is_divided(self, name: str) -> bool:
        """Whether members have different parts."""
        shape = self._shapes[name]
        return bool(np.prod(self._mesh.slice_shape(shape)) < shape.size)

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
        weights: Weights,
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

    def load(self, session: Any, weights: Weights, moments: Weights) -> None:
        """Takes a state; without moments, that of a fresh optimiser."""
        for name, value in weights.items():
            zero = np.zeros_like(value)
            self.weights.fill(session, name, value)
            self.gradients.fill(session, name, zero)
            for kind, of_kind in self._moments.items():
                of_kind.fill(session, name, moments.get(f"{kind}/{name}", zero))

    def arrays(self, session: Any) -> tuple[Weights, Weights]:
        """Weights and moments, whole."""
        shapes = self._canonical.items()
        weights = {name: self.weights.whole(session, name, shape) for name, shape in shapes}
        moments = {
            f"{kind}/{name}": of_kind.whole(session, name, shape)
            for kind, of_kind in self._moments.items()
            for name, shape in shapes
        }
        return weights, moments

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
                updates += [
                    self._update_part(name, number, norms[-1]) for name in self._canonical
                ]
        return norms[0], tf1.group(*updates)

    def _squares(self, number: int) -> tuple[Any, Any]:
        """The sums of squares of a device's gradients: of those that are divided, and others."""
        with tf1.device(self._mesh.devices[number]):
            sums: dict[bool, list[Any]] = {True: [tf1.zeros([])], False: [tf1.zeros([])]}
            for name in self._canonical:
                square = tf1.reduce_sum(tf1.square(self.gradients.part(name, number).value()))
                sums[self.weights.is_divided(name)].append(square)
            return tf1.add_n(sums[True]), tf1.add_n(sums[False])

    def _update_part(self, name: str, number: int, norm: Any) -> Any:
        """AdamW on a device's part; see :class:`.tensorflow.TensorFlowStepper`."""
        weight, gradients = self.weights.part(name, number), self.gradients.part(name, number)
        gradient = gradients.value() * self._share
        if clip := self._training.clip_norm:
            gradient *= clip * tf1.minimum(1 / norm, 1 / clip)
        before = [gradient]
        if self._training.weight_decay and len(self._canonical[name]) > 1:
            decay = self._rate * self._training.weight_decay
            before.append(weight.assign_sub(weight.value() * decay, read_value=False))
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
