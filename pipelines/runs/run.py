"""What a training run is, as plain values that travel from the driver to every worker."""

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
"""From which the axes are computed, evenly spread over the lanes."""


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """Everything that an engine and its workers need to know.

    Attributes:
        lanes_folder: Folder of the lanes, reachable from every executor.
        run_folder: Folder of the run, reachable from every executor.
        first_step: The step to begin with; the checkpoint before it exists.
        last_step: One past the last step.
        horizons: Where the run was to end, from its first step on, if that was ever moved.
        teacher_axes: On what a teacher's vectors are projected, fp32 [its width, the embeddings'];
            None if they are taken as they are.
        special_ids: Of the vocabulary, for an objective that reconstructs texts; else None.
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
        """Whether each step is one worker's alone, and not shared by all of them."""
        return self.config.training.mode != "sync"

    def is_checkpointed(self, step: int) -> bool:
        """Return whether the state before a step is kept."""
        return step % self.config.training.checkpoint_every == 0 or step == self.last_step

    def shares(
        self, rank: int, workers: int
    ) -> Iterator[tuple[StepPlan, tuple[GranuleAddress, ...]]]:
        """Yield the steps that one worker has a part in, each with the granules that are its own.

        In a synchronous run that is an equal part of every step. In an asynchronous one it is
        the whole of every so many-th step, so that the updates are the same ones, of as many
        granules, on any number of workers; they differ by the age of the parameters alone.

        Args:
            rank: Number of the worker, or of the replica that it belongs to.
        """
        for step in self.plan.steps(self.first_step, self.last_step):
            if not self.takes_turns:
                yield step, share(step, rank, workers)
            elif step.index % workers == rank:
                yield step, step.granules

    def lane_reader(self) -> LaneReader:
        """Read the sides of granules that are embedded. Runs on an executor."""
        cache_bytes = int(self.config.prepared.cache_gigabytes * 1e9)
        wanted = [Wanted(one.sides, one.teacher) for one in self.by_source]
        return LaneReader(
            self.lanes_folder, self.manifest, by_source=wanted, cache_bytes=cache_bytes
        )

    @property
    def by_source(self) -> tuple[TrainingRun, ...]:
        """The run as it would be if each source were alone; of one source, itself.

        Their objectives and sides are those of the source; the plan is that of all.
        """
        if not self.config.corpus.sources:
            return (self,)
        alone = zip(self.config.by_source(), self.manifest.by_source, strict=True)
        return tuple(replace(self, config=config, manifest=lanes) for config, lanes in alone)

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides of a granule that are embedded, in the order in which the loss takes them.

        Of several sources those of each are asked for; see :attr:`by_source`.
        """
        return self.manifest.embedded(LOSSES.load(self.config.objective.name).sides)

    @property
    def teacher(self) -> TeacherVectors | None:
        """The vectors of a teacher in the lanes, if the loss is given them."""
        held = self.manifest.teacher if self.config.objective.uses_teacher else None
        return held if held is None or self.teacher_axes is None else held.along(self.teacher_axes)


@dataclass(frozen=True, kw_only=True)
class WorkerTask:
    """A run as one worker sees it.

    Attributes:
        monitor: Host and port of the driver's monitor.
        token: Authenticates the worker to the monitor.
        fingerprint: Of the driver's certificate, which authenticates the monitor to the worker;
            none where the cluster does not encrypt.
    """

    run: TrainingRun
    rank: int
    workers: int
    monitor: tuple[str, int]
    token: str
    fingerprint: str | None = None

    @property
    def placement(self) -> Placement:
        """How the workers are laid out."""
        training = self.run.config.training
        stages, members = training.pipeline_parallel, training.model_parallel
        return Placement(
            replicas=self.workers // (stages * members), stages=stages, members=members
        )

    @property
    def place(self) -> Place:
        """Where this worker stands among them."""
        return self.placement.place(self.rank)

    @property
    def first_lane(self) -> int:
        """The first lane that this worker reads."""
        if self.run.takes_turns:
            return 0
        replicas = self.placement.replicas
        return first_lane(self.place.replica, replicas, self.run.plan.granules_per_step)

    def steps(self) -> Iterator[tuple[StepPlan, tuple[GranuleAddress, ...]]]:
        """Yield the steps that this worker has a part in; see :meth:`TrainingRun.shares`."""
        return self.run.shares(self.place.replica, self.placement.replicas)


@dataclass(frozen=True, kw_only=True)
class Staleness:
    """How old the parameters were that gradients were computed on, in updates by others."""

    mean: float
    most: int


@dataclass(frozen=True, kw_only=True)
class Restart:
    """A run goes on after it has lost workers.

    Attributes:
        step: The first step that is made, perhaps again, by those that are there.
        made: Steps of the run that had been made before.
        time: When, in UTC, as ISO 8601 has it.
        cause: What happened to the worker that was lost first.
        lane: The first lane that it read, where one is known.
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
    """What a finished run reports.

    Attributes:
        steps: Optimiser updates that were made.
        seconds: From the first step to the last.
        examples_per_second: Over the steps after the first logged ones, which hold the
            framework's start-up.
        precision: In which matrices were multiplied; None where no worker reported it.
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
    """Return the run with the axes on which its teacher's vectors are projected, if they are.

    The vectors get as many numbers as an embedding has. They are projected on the axes along which
    they differ most from zero: no projection to as many dimensions keeps their inner products
    better (Eckart and Young, "The approximation of one matrix by another of lower rank",
    Psychometrika 1936). They are not centred, which would change cosines. The first axis holds
    most, so the projected vectors may be cut. The axes are part of what a run learns: they are
    written into its folder when it begins, and stay.

    Args:
        width: Of an embedding.
    """
    held = run.teacher
    if held is None or held.width <= width or not run.config.objective.projects_teacher:
        return run
    path = RunFolder(run.run_folder).teacher_axes
    if not path.is_file():
        axes = principal_axes(_second_moment(run, held.width), width)
        # Not by its name, to which numpy would add an ending.
        with storage.built_file(path) as file, file.open("wb") as opened:
            np.save(opened, axes)
    return replace(run, teacher_axes=np.load(io.BytesIO(path.read_bytes())))


def principal_axes(moment: np.ndarray, count: int) -> np.ndarray:
    """Return the axes along which vectors have the largest mean square.

    Args:
        moment: [width, width], the sum or mean of the vectors' outer products.

    Returns:
        fp32 [width, count], orthogonal and of length 1, the largest first. Of an axis and its
        opposite the one is taken whose largest number is positive.
    """
    _, axes = np.linalg.eigh(moment)
    axes = axes[:, ::-1][:, :count]
    largest = np.abs(axes).argmax(axis=0)
    signs = np.sign(axes[largest, np.arange(axes.shape[1])])
    found: np.ndarray = (axes * signs).astype(np.float32)
    return found


def _second_moment(run: TrainingRun, width: int) -> np.ndarray:
    """Return the sum of the outer products of the teacher's vectors in some granules."""
    manifest = run.manifest
    granules = manifest.lanes * manifest.rows
    total = np.zeros((width, width))
    reader = run.lane_reader()
    for number in np.linspace(0, granules - 1, min(granules, SAMPLED_GRANULES)).astype(int):
        row, lane = divmod(int(number), manifest.lanes)
        for vectors in reader.granule(GranuleAddress(lane=lane, row=row)).teacher.values():
            total += vectors.T @ vectors
    return total
