"""A training run as plain values, which travel from the driver to every worker."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from pipelines.catalog import LOSSES
from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.files.run_folder import RunFolder
from pipelines.lanes.files import LaneManifest, TeacherVectors
from pipelines.lanes.plan import BatchPlan, GranuleAddress, StepPlan, first_lane, share
from pipelines.lanes.reader import LaneReader, Wanted
from pipelines.runs.attempts import FIRST
from pipelines.runs.learning_rate import Horizon, learning_rate
from pipelines.settings import Config
from pipelines.settings.training import Place, Placement
from pipelines.tokens.vocabulary import SpecialIds

SAMPLED_GRANULES = 512
"""The number of granules behind the axes, evenly spread over the lanes."""


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """The input of an engine and its workers.

    Every executor reaches ``lanes_folder`` and ``run_folder``.

    Attributes:
        first_step: The step to begin with; the checkpoint before it exists.
        last_step: One past the last step.
        horizons: The planned ends of the run from its first step on, if the end ever moved.
        teacher_axes: The projection of a teacher's vectors, fp32 [teacher's width, embedding's];
            None without a projection.
        special_ids: The vocabulary's, for a loss over hidden states; else None.
        attempt: The number of this attempt on the run; see :mod:`pipelines.runs.attempts`.
    """

    config: Config
    plan: BatchPlan
    manifest: LaneManifest
    lanes_folder: Location
    run_folder: Location
    first_step: int
    last_step: int
    horizons: tuple[Horizon, ...] = ()
    teacher_axes: np.ndarray | None = field(default=None, compare=False, repr=False)
    special_ids: SpecialIds | None = None
    attempt: int = FIRST

    def learning_rate(self, step: int) -> float:
        """See :func:`pipelines.runs.learning_rate.learning_rate`."""
        horizons = self.horizons or (Horizon(step=0, last_step=self.last_step),)
        return learning_rate(step, horizons, self.config.training)

    @property
    def examples_per_step(self) -> int:
        """Examples of one optimiser update."""
        return self.plan.granules_per_step * self.manifest.granule

    @property
    def takes_turns(self) -> bool:
        """Whether each step is one worker's, instead of shared by all."""
        return self.config.training.mode != "sync"

    def is_checkpointed(self, step: int) -> bool:
        """Return whether the settings plan a checkpoint before a step."""
        return step % self.config.training.checkpoint_every == 0 or step == self.last_step

    def shares(
        self, rank: int, workers: int
    ) -> Iterator[tuple[StepPlan, tuple[GranuleAddress, ...]]]:
        """Yield the steps of one worker, each with the worker's granules.

        ``rank`` is the number of the worker, or of its replica. A synchronous worker has an equal
        part of every step. An asynchronous one of n workers has every n-th step whole. So the
        updates, and their numbers of granules, are the same for any number of workers; only the age
        of the parameters differs.
        """
        for step in self.plan.steps(self.first_step, self.last_step):
            if not self.takes_turns:
                yield step, share(step, rank, workers)
            elif step.index % workers == rank:
                yield step, step.granules

    def lane_reader(self) -> LaneReader:
        """Return a reader of the embedded sides of granules. Runs on an executor."""
        cache_bytes = int(self.config.prepared.cache_gigabytes * 1e9)
        wanted = [Wanted(run.sides, run.teacher) for run in self.by_source]
        return LaneReader(
            self.lanes_folder, self.manifest, by_source=wanted, cache_bytes=cache_bytes
        )

    @property
    def by_source(self) -> tuple[TrainingRun, ...]:
        """The run restricted to each source, or itself for a single source.

        Each has its source's objective and sides, and the plan of the whole run.
        """
        if not self.config.corpus.sources:
            return (self,)
        restricted = zip(self.config.by_source(), self.manifest.by_source, strict=True)
        return tuple(replace(self, config=config, manifest=lanes) for config, lanes in restricted)

    @property
    def sides(self) -> tuple[str, ...]:
        """The embedded sides of a granule, in the loss's order.

        With several sources, ask each of them; see :attr:`by_source`.
        """
        return self.manifest.embedded(LOSSES.load(self.config.objective.name).sides)

    @property
    def teacher(self) -> TeacherVectors | None:
        """The teacher's vectors in the lanes, if the loss uses them."""
        # Lanes may hold vectors that this objective has no use for.
        stored = self.manifest.teacher if self.config.objective.uses_teacher else None
        if stored is None or self.teacher_axes is None:
            return stored
        return stored.along(self.teacher_axes)


@dataclass(frozen=True, kw_only=True)
class WorkerTask:
    """A run as one worker sees it.

    Attributes:
        monitor: Host and port of the driver's monitor.
        token: Authenticates the worker to the monitor.
        fingerprint: Of the driver's certificate, to authenticate the monitor to the worker; None
            without encryption.
    """

    run: TrainingRun
    rank: int
    workers: int
    monitor: tuple[str, int]
    token: str
    fingerprint: str | None = None

    @property
    def placement(self) -> Placement:
        """The layout of the workers."""
        training = self.run.config.training
        stages, members = training.pipeline_parallel, training.model_parallel
        return Placement(
            replicas=self.workers // (stages * members), stages=stages, members=members
        )

    @property
    def place(self) -> Place:
        """This worker's place in the layout."""
        return self.placement.place(self.rank)

    @property
    def first_lane(self) -> int:
        """This worker's first lane."""
        if self.run.takes_turns:
            return 0
        replicas = self.placement.replicas
        return first_lane(self.place.replica, replicas, self.run.plan.granules_per_step)

    def steps(self) -> Iterator[tuple[StepPlan, tuple[GranuleAddress, ...]]]:
        """Yield this worker's steps; see :meth:`TrainingRun.shares`."""
        return self.run.shares(self.place.replica, self.placement.replicas)


@dataclass(frozen=True, kw_only=True)
class Staleness:
    """The age of the parameters behind gradients, in updates by other workers."""

    mean: float
    most: int


@dataclass(frozen=True, kw_only=True)
class Restart:
    """The continuation of a run after a loss of workers.

    Attributes:
        step: The first step of the remaining workers, perhaps a repeated one.
        made: Steps of the run made before.
        time: UTC, in ISO 8601.
        cause: The reason for the first loss.
        lane: The first lane of the worker lost first, if known.
    """

    step: int
    workers: int
    made: int = 0
    time: str = ""
    engine: str = ""
    cause: str = ""
    rank: int | None = None
    host: str | None = None
    lane: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingOutcome:
    """The report of a finished run.

    Attributes:
        steps: Optimiser updates made.
        seconds: From the first step to the last.
        examples_per_second: Without the first logged steps and their framework start-up.
        precision: Of matrix multiplications; None if no worker reported it.
    """

    steps: int
    examples: int
    seconds: float
    examples_per_second: float
    losses: tuple[float, ...]
    staleness: Staleness | None = None
    restarts: tuple[Restart, ...] = ()
    precision: str | None = None


def with_axes(run: TrainingRun, width: int) -> TrainingRun:
    """Return the run with the projection axes of its teacher's vectors, if it projects them.

    The vectors get ``width`` numbers, as many as embeddings have. Along the axes the vectors differ
    most from zero: no projection to as many dimensions keeps their inner products better (Eckart
    and Young, "The approximation of one matrix by another of lower rank", Psychometrika 1936).
    Centring would change cosines. The first axis holds most, so projected vectors are truncatable.
    The axes are a part of the training target: the run folder keeps them from the start on.
    """
    vectors = run.teacher
    if vectors is None or vectors.width <= width or not run.config.objective.projects_teacher:
        return run
    path = RunFolder(run.run_folder).teacher_axes
    if not path.is_file():
        axes = principal_axes(_second_moment(run, vectors.width), width)
        # An open file: numpy would add `.npy` to a name.
        with storage.built_file(path) as file, file.open("wb") as opened:
            np.save(opened, axes)
    return replace(run, teacher_axes=np.load(io.BytesIO(path.read_bytes())))


def principal_axes(moment: np.ndarray, count: int) -> np.ndarray:
    """Return the axes of the vectors' largest mean square: fp32 [width, count], largest first.

    ``moment`` [width, width] is the sum or mean of the vectors' outer products. The axes are
    orthonormal, and the entry of largest magnitude in each is positive.
    """
    _, axes = np.linalg.eigh(moment)
    # `eigh` sorts eigenvalues in ascending order.
    axes = axes[:, ::-1][:, :count]
    # An eigenvector's sign is arbitrary: a rule for it makes runs repeat.
    largest = np.abs(axes).argmax(axis=0)
    signs = np.sign(axes[largest, np.arange(axes.shape[1])])
    found: np.ndarray = (axes * signs).astype(np.float32)
    return found


def _second_moment(run: TrainingRun, width: int) -> np.ndarray:
    """Return the sum of outer products of the teacher's vectors in sampled granules."""
    manifest = run.manifest
    granules = manifest.lanes * manifest.rows
    total = np.zeros((width, width))
    reader = run.lane_reader()
    for number in np.linspace(0, granules - 1, min(granules, SAMPLED_GRANULES)).astype(int):
        row, lane = divmod(int(number), manifest.lanes)
        for vectors in reader.granule(GranuleAddress(lane=lane, row=row)).teacher.values():
            total += vectors.T @ vectors
    return total
