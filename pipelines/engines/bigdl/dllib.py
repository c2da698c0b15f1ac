"""Training by dllib's DistriOptimizer: a few Spark jobs per step, gradients in Spark's blocks.

dllib computes forward and backward passes on the executors, and sums gradients slice by slice
through Spark's block manager: each worker updates its slice of the weights and fetches the others'.
A run consists of parts, with as many granules as the executors' memory holds. Each part is one run
of the optimiser, and begins from the last state of the part before.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark import AccumulatorParam

from pipelines.catalog import LOSSES
from pipelines.engines.bigdl.feeding import (
    PART_TOKENS,
    Sizes,
    StepRange,
    part_bytes,
    parts_of,
    replicas,
)
from pipelines.engines.bigdl.form import (
    Graph,
    encoder_nodes,
    flattened,
    graph_of,
    quiet,
    set_weights,
    unflattened,
)
from pipelines.engines.bigdl.progress import (
    CHECK_SECONDS,
    Heartbeats,
    StepTimes,
    WorkerLocations,
    listening,
    parse_progress,
)
from pipelines.errors import EngineError, InputError
from pipelines.files import storage
from pipelines.files.locations import Location, as_local
from pipelines.files.run_folder import RunFolder
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import weight_shapes
from pipelines.quiet import quiet_import
from pipelines.runs.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from pipelines.runs.run import TrainingOutcome, TrainingRun
from pipelines.runs.step_metrics import StepMetrics, StepRecord
from pipelines.spark.jobs import SparkJob
from pipelines.training.loop import check_finite

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


class SizesParam(AccumulatorParam[Sizes]):
    """A growing dict; a repeated task of Spark overwrites its entries with the same values."""

    def zero(self, value: Sizes) -> Sizes:
        """Return an empty dict."""
        return {}

    def addInPlace(self, value1: Sizes, value2: Sizes) -> Sizes:  # noqa: N802 - Spark's name
        """Merge the second into the first."""
        value1.update(value2)
        return value1


@dataclass(frozen=True)
class States:
    """A folder for the executors' slices of the state, reachable from all of them."""

    folder: Path
    workers: int

    def write_moments(self, graph: Graph, checkpoint: Checkpoint) -> str:
        """Write the optimiser's first moments and return the file, or "" for zeros."""
        if not checkpoint.moments:
            return ""
        path = self.folder / "begin.bin"
        with path.open("wb") as file:
            for kind in ("m", "v"):
                moments = {
                    name: checkpoint.moments[f"{kind}/{name}"] for name in checkpoint.weights
                }
                flattened(graph, moments).astype("<f4", copy=False).tofile(file)
        return str(path)

    def take(self, graph: Graph, step: int) -> Checkpoint:
        """Return the state before a step from the executors' files, and delete these."""
        paths = [self.folder / f"state-{step}-{rank}.bin" for rank in range(self.workers)]
        slices = [np.fromfile(path, "<f4").reshape(3, -1) for path in paths]
        weights, *moments = (unflattened(graph, row) for row in np.concatenate(slices, axis=1))
        for path in paths:
            path.unlink()
        named = {
            f"{kind}/{name}": value
            for kind, arrays in zip(("m", "v"), moments, strict=True)
            for name, value in arrays.items()
        }
        return Checkpoint(step, graph.spec, weights, named)


@contextmanager
def states_in(run_folder: Location, workers: int) -> Iterator[States]:
    """Yield a folder for the states, and delete it in the end.

    Its name is new each time: executors of an earlier attempt may outlive their driver, end their
    step, and must not write into this folder. The next resume, with any engine, sweeps the folders
    of dead drivers.
    """
    checkpoints = as_local(RunFolder(run_folder).checkpoints)
    if checkpoints is None:
        raise InputError(
            "run.folder",
            f"{run_folder} is in an object store, and the workers of dllib exchange their states "
            "through files",
            "Name a folder that the driver and all executors see, or choose another engine",
        )
    folder = storage.aside_name(checkpoints / "bigdl", ".part")
    folder.mkdir(parents=True)
    try:
        yield States(folder, workers)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_kept(run: TrainingRun, part: StepRange, step: int) -> bool:
    """Return whether the executors write the state before a step."""
    return run.is_checkpointed(step) or step == part.last


with quiet_import():
    from bigdl.dllib.nn import layer as dllib


def training_graph(context: SparkContext, spec: EncoderSpec, run: TrainingRun) -> tuple[Graph, Any]:
    """Build the graph in the driver's JVM; dllib must be on the class path.

    Return a module with the encoder's weights, from token ids, lengths and targets of any number of
    granules to their mean loss, and dllib's criterion for it.
    """
    objective, examples = run.config.objective, run.manifest.granule
    sides = len(run.sides)
    with quiet(context):
        nodes = encoder_nodes(context, spec)
        units = nodes.embeddings if spec.normalise else dllib.Normalize(2.0)(nodes.embeddings)
        granules = dllib.InferReshape([-1, sides * examples, spec.embedding_width])(units)
        each = [
            dllib.Narrow(2, 1 + number * examples, examples)(granules) for number in range(sides)
        ]
        form = LOSSES.load(objective.name).form("bigdl")
        output, criterion = form(each, examples, objective)
        graph = graph_of(context, spec, nodes, output)
    classes = graph.classes
    losses = classes.GranuleLosses(graph.model, criterion.value, sides * examples)
    return replace(graph, model=losses), classes.MeanLoss()


POLL_SECONDS = 0.05
# dllib's files in the creation sites of RDDs.
_SOURCES = ("DistriOptimizer.scala", "FeatureSet.scala", "AllReduceParameter.scala")


@dataclass
class Trainer:
    """The common state of a run's parts; enters their steps into the step metrics."""

    context: SparkContext
    run: TrainingRun
    graph: Graph
    criterion: Any
    states: States
    heartbeats: Heartbeats
    step_metrics: StepMetrics
    _data_seconds: float = 0.0

    def begin(self, part: StepRange, sizes: Sizes, data_seconds: float) -> None:
        """Begin a part, after a wait of all workers for its granules of `data_seconds`."""
        # Counts only the first time: the clock starts with the first part.
        self.step_metrics.begin(time.monotonic())
        self._part, self._sizes, self._data_seconds = part, sizes, data_seconds

    def enter(self, times: StepTimes) -> Checkpoint | None:
        """Enter a step; return the state after a checkpoint or the last step of the part.

        Raises:
            FloatingPointError: The loss is not finite.
        """
        run, workers = self.run, self.states.workers
        step, now = self._part.first + times.steps - 1, time.monotonic()
        check_finite(step, times.loss)
        sizes = [self._sizes[step, rank] for rank in range(workers)]
        self.step_metrics.add(
            StepRecord(
                step=step,
                epoch=step // run.plan.steps_per_epoch,
                loss=times.loss,
                learning_rate=run.learning_rate(step),
                granules=run.plan.granules_per_step,
                tokens=sum(tokens for tokens, _ in sizes),
                padded_tokens=sum(padded for _, padded in sizes),
                # The record stands for all workers.
                data_seconds=self._data_seconds * workers,
                seconds=now - self.step_metrics.begin(now),
                precision="fp32",
            )
        )
        self._data_seconds = 0.0
        return self._keep(step + 1) if is_kept(run, self._part, step + 1) else None

    def _keep(self, step: int) -> Checkpoint:
        state = self.states.take(self.graph, step)
        if self.run.is_checkpointed(step):
            run, training = self.run, self.run.config.training
            keep, spared = training.kept_checkpoints, training.averaged_steps(step)
            save_checkpoint(run.run_folder, state, keep, spared, attempt=run.attempt)
        return state


def train_with_dllib(
    session: SparkSession, run: TrainingRun, step_metrics: StepMetrics
) -> TrainingOutcome:
    """Train a run from start to end, in a session with dllib. Runs on the driver.

    Raises:
        WorkerLostError: A worker is lost; the run's jobs have ended.
        EngineError: The run failed; its jobs have ended.
    """
    context, training = session.sparkContext, run.config.training
    state = load_checkpoint(run.run_folder, run.first_step)
    graph, criterion = training_graph(context, state.spec, run)
    graph.classes.Runs.workers(training.workers, replicas(training))
    with (
        states_in(run.run_folder, training.workers) as states,
        listening(context, graph.classes) as heartbeats,
    ):
        trainer = Trainer(context, run, graph, criterion, states, heartbeats, step_metrics)
        for part in parts_of(run, PART_TOKENS):
            state = _train_part(trainer, part, state)
    return step_metrics.outcome()


def _train_part(trainer: Trainer, part: StepRange, state: Checkpoint) -> Checkpoint:
    """Make the steps of a part; return the state after the last."""
    context, run, graph = trainer.context, trainer.run, trainer.graph
    names = context._jsc.sc().collectionAccumulator()
    locations = WorkerLocations(
        context, graph.classes, run.config.training, trainer.heartbeats, names.value
    )
    sizes = context.accumulator({}, SizesParam())
    with _unpersisted(trainer):
        began = time.monotonic()
        data = graph.classes.Runs.data(part_bytes(context, run, part, sizes), names)
        with _job(context, locations, "reading the lanes", data.size) as job:
            _await(job, locations, "the executors did not read the lanes")
        set_weights(graph, flattened(graph, state.weights))
        optimizer = _optimizer(trainer, part, state, data)
        progress = graph.classes.Progress(part.last - part.first, optimizer.metrics())
        optimizer.setEndWhen(progress)
        trainer.begin(part, sizes.value, time.monotonic() - began)
        # Spark's registry keeps the accumulator; an empty value frees the memory.
        sizes.value = {}
        training = _job(context, locations, "training", optimizer.optimize)
        with training as job, ExitStack() as stopping:
            # dllib's loop starts new jobs even after a cancelled one.
            stopping.callback(progress.stop)
            last = _watch(trainer, part, job, locations, progress)
            # The next part uses the same graph, and dllib writes the weights back into it.
            _await(job, locations, "dllib did not return the weights")
            return last


def _await(job: SparkJob, locations: WorkerLocations, what: str) -> None:
    """Wait for the end of a job; raise EngineError for a lost executor, a failure, or a timeout."""
    seconds = locations.training.stall_seconds
    deadline = time.monotonic() + seconds
    while job.is_alive():
        if time.monotonic() > deadline:
            raise EngineError("bigdl", f"{what} within training.stall_seconds ({seconds:.0f} s)")
        job.join(CHECK_SECONDS)
        locations.check()
    if (failure := job.failure()) is not None:
        raise failure


def _optimizer(trainer: Trainer, part: StepRange, state: Checkpoint, data: Any) -> Any:
    """Return dllib's optimiser of a part."""
    run, graph, training = trainer.run, trainer.graph, trainer.run.config.training
    steps = range(part.first, part.last)
    rates = [run.learning_rate(step) for step in steps]
    kept = [step + 1 for step in steps if is_kept(run, part, step + 1)]
    optimizer = graph.classes.Runs.optimizer(
        graph.model, data, trainer.criterion, training.compression
    )
    method = graph.classes.AdamW(
        part.first,
        training.workers,
        graph.size,
        training.weight_decay,
        np.array(decayed_ranges(graph), "<i4").tobytes(),
        np.array(rates, "<f4").tobytes(),
        np.array(kept, "<i4").tobytes(),
        trainer.states.write_moments(graph, state),
        str(trainer.states.folder),
    )
    optimizer.setOptimMethod(method)
    if training.clip_norm:
        optimizer.setGradientClippingByl2Norm(training.clip_norm)
    return optimizer


def decayed_ranges(graph: Graph) -> list[int]:
    """Return the ranges of the vector with weight decay (matrices only), the lowest first."""
    shapes = weight_shapes(graph.spec)
    ranges = []
    for slot in sorted(graph.slots, key=lambda slot: slot.start):
        if len(shapes[slot.names[0]]) > 1:
            size = sum(int(np.prod(shapes[name])) for name in slot.names)
            ranges += [slot.start, slot.start + size]
    return ranges


def _watch(
    trainer: Trainer, part: StepRange, job: SparkJob, locations: WorkerLocations, progress: Any
) -> Checkpoint:
    """Wait for all steps of a part; return the state after the last."""
    training, moved, limit = locations.training, time.monotonic(), "start_seconds"
    while True:
        for times in parse_progress(progress.take()):
            moved, limit = time.monotonic(), "stall_seconds"
            if times.steps == 0:
                locations.find()
                continue
            try:
                state = trainer.enter(times)
            except FloatingPointError as error:
                # The loss is the mean over all workers, so the error can only name the first.
                cause = f"{type(error).__name__}: {error}"
                raise EngineError("bigdl", cause, **locations.place(0)) from error
            if state is not None and state.step == part.last:
                return state
        if (failure := job.failure()) is not None:
            raise failure
        locations.check()
        seconds = getattr(training, limit)
        if time.monotonic() - moved > seconds:
            raise EngineError(
                "bigdl", f"no step was finished within training.{limit} ({seconds} s)"
            )
        time.sleep(POLL_SECONDS)


def _job(
    context: SparkContext, locations: WorkerLocations, name: str, act: Callable[[], Any]
) -> SparkJob:
    """Return a job of dllib, with the worker in its errors."""

    def locating() -> None:
        try:
            act()
        except Exception as error:
            raise locations.error(error) from error

    return SparkJob(context, "bigdl", name, f"engine bigdl: {name}", locating)


@contextmanager
def _unpersisted(trainer: Trainer) -> Iterator[None]:
    """Free dllib's leftovers in the executors, also after a failure."""
    context, classes = trainer.context, trainer.graph.classes
    before = set(context._jsc.getPersistentRDDs())
    try:
        yield
    finally:
        for number, rdd in dict(context._jsc.getPersistentRDDs()).items():
            made_at = str(rdd.rdd().getCreationSite())
            if number not in before and any(source in made_at for source in _SOURCES):
                rdd.unpersist()
        # SparkJob cancels it after a deadline and only logs a failure: the run's error counts.
        silent = " ".join(trainer.heartbeats.silent())
        clean = partial(classes.Runs.clean, context._jsc, silent)
        with SparkJob(context, "bigdl", "cleaning", "engine bigdl: cleaning", clean):
            pass
