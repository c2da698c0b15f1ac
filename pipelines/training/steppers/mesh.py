"""The side of training of Mesh TensorFlow. Runs on executors.

The worker of rank 0 is the chief: its session runs the graph on the servers of all workers. Of the
others one of each replica sends the chief its granules, and all wait for the loss.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pipelines.lanes.files import Granule
from pipelines.lanes.plan import noise_seed
from pipelines.lean_tensorflow import tensorflow as tf
from pipelines.models.frameworks.mesh import mesh_of, named_shapes
from pipelines.models.frameworks.mesh_library import tf1
from pipelines.models.frameworks.tensorflow import configure_threads
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.settings import TrainingSettings
from pipelines.training.collectives.base import Collectives
from pipelines.training.collectives.ring import gather_bytes
from pipelines.training.feed import StepWork
from pipelines.training.steppers.base import Stepper, StepperFactory
from pipelines.training.steppers.mesh_graph import (
    GranuleGraph,
    GranuleInputs,
    SideInputs,
    graph_width,
)
from pipelines.training.steppers.mesh_state import MeshState
from pipelines.training.steppers.objectives import Objective, objectives

CHIEF = 0


class MeshCollectives(Collectives, Protocol):
    """What the workers of a mesh move numbers with.

    Attributes:
        target: What the chief's session connects to; empty for this process alone.
        devices: Of each worker, by rank.
    """

    target: str
    devices: Sequence[str]


class MeshStepper:
    """Makes optimiser updates; see :mod:`pipelines.training.steppers.base`.

    Args:
        checkpoint: The state to begin with.
        collectives: Between the workers.
    """

    sharded = True
    precision = "fp32"
    # The library's exchange is a part of the graph.
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
        """Gives TensorFlow its threads, before its first operation."""
        configure_threads(settings.threads)

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Makes one update from the replicas' granules; returns the loss over all of them."""
        objective = self._objectives[work.source]
        is_first = self._task.place.member == 0
        own = [self._inputs(one, objective, work.noise_epoch) for one in work.granules]
        gathered = gather_bytes(
            self._collectives.all_gather, _packed(own) if is_first else _NOTHING
        )
        # A row from the chief, and none from the others.
        result = np.empty([0, 2], np.float64)
        if self._chief is not None:
            replicas = _unpacked(gathered, len(objective.sides))
            result = np.array([self._chief.step(work, list(replicas), learning_rate)])
        ((loss, norm),) = np.asarray(self._collectives.all_gather(result)).tolist()
        self.gradient_norm = norm
        return float(loss)

    def checkpoint(self, step: int) -> Checkpoint:
        """The state before a step; the chief's has the arrays, and the others' none."""
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
    """The session that computes on all workers."""

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
        # Each member has as many rows of the words: the last ones may be nobody's.
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
        # As long as the driver waits for a step.
        config.operation_timeout_in_ms = 1000 * self._training.stall_seconds
        self._session = tf1.Session(collectives.target, self._graph, config)
        self._state.load(self._session, checkpoint.weights, checkpoint.moments)

    def step(
        self, work: StepWork, replicas: Sequence[Sequence[GranuleInputs]], learning_rate: float
    ) -> tuple[float, float]:
        """Makes an update from the granules of all replicas; returns the loss and the norm."""
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
        """Weights and moments, whole."""
        return self._state.arrays(self._session)

    def _granule_graph(self, source: int, granules: Sequence[GranuleInputs]) -> GranuleGraph:
        """The graph for granules of such widths, one of each replica."""
        by_side = zip(*(one.sides for one in granules), strict=True)
        positions = self._spec.positions  # type: ignore[attr-defined] # specs that have a form have it
        widths = [
            graph_width(max(one.token_ids.shape[1] for one in sides), positions)
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
    """How TensorFlow computes, in servers and sessions: on so many threads, and on no GPU."""
    return tf1.ConfigProto(
        intra_op_parallelism_threads=threads,
        inter_op_parallelism_threads=threads,
        device_count={"GPU": 0},
    )


_NOTHING = np.empty(0, np.uint8)
_SIZE = np.dtype("<u8")


def _packed(granules: Sequence[GranuleInputs]) -> np.ndarray:
    """Granules as bytes, behind their number."""
    buffer = io.BytesIO()
    arrays = [
        array for one in granules for array in (*chain.from_iterable(one.sides), *one.targets)
    ]
    np.savez(buffer, np.array([len(granules)]), *arrays)
    data = np.frombuffer(buffer.getvalue(), np.uint8)
    return np.concatenate([np.array([len(data)], _SIZE).view(np.uint8), data])


def _unpacked(data: np.ndarray, sides: int) -> Iterator[list[GranuleInputs]]:
    """The granules of each replica.

    Args:
        sides: Of a granule.
    """
    while len(data):
        size = _SIZE.itemsize + int(data[: _SIZE.itemsize].view(_SIZE)[0])
        with np.load(io.BytesIO(data[_SIZE.itemsize : size].tobytes())) as stored:
            count, *arrays = [stored[f"arr_{number}"] for number in range(len(stored.files))]
        data = data[size:]
        each = len(arrays) // int(count[0])
        fields = len(SideInputs._fields)
        granules = []
        for start in range(0, len(arrays), each):
            own = arrays[start : start + each]
            inputs = [SideInputs(*own[n * fields : (n + 1) * fields]) for n in range(sides)]
            granules.append(GranuleInputs(inputs, own[sides * fields :]))
        yield granules


if TYPE_CHECKING:
    # mypy: the class has what the loop needs.
    _for_steps: StepperFactory[Stepper] = MeshStepper  # type: ignore[assignment] # of its own collectives
