"""Training by dllib's DistriOptimizer: a few Spark jobs for each step, gradients in Spark's blocks.

dllib computes forward and backward passes on the executors, and sums gradients slice by slice
through Spark's block manager: each worker updates its slice of the weights, and all fetch the
others'. A run is cut into parts, whose granules fit into the executors' memory; each part is one
run of the optimiser, which begins from the state at the end of the part before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.engines.bigdl.feeding import PART_TOKENS, StepRange, part_bytes, parts_of, replicas
from pipelines.engines.bigdl.graph import training_graph
from pipelines.engines.bigdl.heartbeats import CHECK_SECONDS, Heartbeats, listening
from pipelines.engines.bigdl.progress import WorkerLocations, parse_progress
from pipelines.engines.bigdl.sizes import SizesParam
from pipelines.engines.bigdl.states import States, states_in
from pipelines.engines.bigdl.step_recorder import OnStep, StepRecorder, is_kept
from pipelines.errors import EngineError
from pipelines.models.frameworks.dllib import Graph, flattened, set_weights
from pipelines.models.weights import weight_shapes
from pipelines.runs.checkpoint import Checkpoint, load_checkpoint
from pipelines.runs.run import TrainingOutcome, TrainingRun
from pipelines.runs.step_metrics import StepMetrics
from pipelines.spark.jobs import SparkJob

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.05
# Of dllib, as Spark tells where an RDD was made.
_SOURCES = ("DistriOptimizer.scala", "FeatureSet.scala", "AllReduceParameter.scala")


@dataclass(frozen=True)
class _Trainer:
    """What all parts of a run share."""

    context: SparkContext
    run: TrainingRun
    graph: Graph
    criterion: Any
    states: States
    recorder: StepRecorder
    heartbeats: Heartbeats


def train_with_dllib(
    session: SparkSession,
    run: TrainingRun,
    step_metrics: StepMetrics,
    on_step: OnStep,
) -> TrainingOutcome:
    """A run from its start to its end. Runs on the driver.

    Args:
        session: With dllib on its class paths.
        step_metrics: Of the whole run.
        on_step: Called with dllib's times of each step.

    Raises:
        WorkerLostError: A worker is lost; no job of the run is left.
        EngineError: The run failed; no job of it is left.
    """
    context, training = session.sparkContext, run.config.training
    state = load_checkpoint(run.run_folder, run.first_step)
    graph, criterion = training_graph(context, state.spec, run)
    graph.classes.Runs.workers(training.workers, replicas(training))
    with (
        states_in(run.run_folder, training.workers) as states,
        listening(context, graph.classes) as heartbeats,
    ):
        recorder = StepRecorder(run, graph, states, step_metrics, on_step)
        trainer = _Trainer(context, run, graph, criterion, states, recorder, heartbeats)
        for part in parts_of(run, PART_TOKENS):
            state = _train_part(trainer, part, state)
    return step_metrics.outcome()


def _train_part(trainer: _Trainer, part: StepRange, state: Checkpoint) -> Checkpoint:
    """Makes the steps of a part; returns the state after the last."""
    context, run, graph = trainer.context, trainer.run, trainer.graph
    names = context._jsc.sc().collectionAccumulator()
    locations = WorkerLocations(
        context, graph.classes, run.config.training, trainer.heartbeats, names.value
    )
    sizes = context.accumulator({}, SizesParam())
    with _unpersisted(trainer):
        began = time.monotonic()
        data = graph.classes.Runs.data(part_bytes(context, run, part, sizes), names)
        _read(context, locations, data)
        set_weights(graph, flattened(graph, state.weights))
        optimizer = _optimizer(trainer, part, state, data)
        progress = graph.classes.Progress(part.last - part.first, optimizer.metrics())
        optimizer.setEndWhen(progress)
        trainer.recorder.begin(part, sizes.value, time.monotonic() - began)
        # Spark's registry keeps the accumulator, so that its value has to go.
        sizes.value = {}
        with _job(context, locations, "training", optimizer.optimize) as job, _stopped(progress):
            last = _watch(trainer, part, job, locations, progress)
            # The next part uses the same graph, into which dllib writes the weights back.
            _await(job, locations, "dllib has not given the weights back")
            return last


def _read(context: SparkContext, locations: WorkerLocations, data: Any) -> None:
    """Has the executors read their granules.

    Raises:
        EngineError: They cannot, or take too long.
    """
    with _job(context, locations, "reading the lanes", data.size) as job:
        _await(job, locations, "the lanes were not read")


def _await(job: SparkJob, locations: WorkerLocations, what: str) -> None:
    """Waits for the end of a job.

    Raises:
        EngineError: An executor is lost, or the job has failed, or takes too long.
    """
    seconds = locations.training.stall_seconds
    deadline = time.monotonic() + seconds
    while job.is_alive():
        if time.monotonic() > deadline:
            raise EngineError("bigdl", f"{what} within training.stall_seconds ({seconds:.0f} s)")
        job.join(CHECK_SECONDS)
        locations.check()
    if (failure := job.failure()) is not None:
        raise failure


def _optimizer(trainer: _Trainer, part: StepRange, state: Checkpoint, data: Any) -> Any:
    """Dllib's optimiser of a part."""
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
    """Begin and end of what is decayed in the vector: matrices, but no biases and norms.

    The lowest comes first.
    """
    shapes = weight_shapes(graph.spec)
    ranges = []
    for slot in sorted(graph.slots, key=lambda slot: slot.start):
        if len(shapes[slot.names[0]]) > 1:
            size = sum(int(np.prod(shapes[name])) for name in slot.names)
            ranges += [slot.start, slot.start + size]
    return ranges


def _watch(
    trainer: _Trainer, part: StepRange, job: SparkJob, locations: WorkerLocations, progress: Any
) -> Checkpoint:
    """Waits until all steps of a part are made; returns the state after the last.

    Raises:
        EngineError: A worker is lost, the job has failed, or a step takes too long.
    """
    training, moved, limit = locations.training, time.monotonic(), "start_seconds"
    while True:
        for times in parse_progress(progress.take()):
            moved, limit = time.monotonic(), "stall_seconds"
            if times.steps == 0:
                locations.find()
                continue
            try:
                state = trainer.recorder.enter(times)
            except FloatingPointError as error:
                # The loss is the mean over all workers; the error names the first.
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
    """A job of dllib's, whose errors name the worker."""

    def locating() -> None:
        try:
            act()
        except Exception as error:
            raise locations.error(error) from error

    return SparkJob(context, "bigdl", name, f"engine bigdl: {name}", locating)


@contextmanager
def _stopped(progress: Any) -> Iterator[None]:
    """Ends dllib's loop, which starts new jobs even where the last one was cancelled."""
    try:
        yield
    finally:
        progress.stop()


@contextmanager
def _unpersisted(trainer: _Trainer) -> Iterator[None]:
    """Frees what dllib leaves in the executors, also where a run has failed."""
    context, classes = trainer.context, trainer.graph.classes
    before = set(context._jsc.getPersistentRDDs())
    try:
        yield
    finally:
        for number, rdd in dict(context._jsc.getPersistentRDDs()).items():
            made_at = str(rdd.rdd().getCreationSite())
            if number not in before and any(source in made_at for source in _SOURCES):
                rdd.unpersist()
        # Cancelled if it takes too long, and a failure is only logged: the run's error counts.
        silent = " ".join(trainer.heartbeats.silent())
        clean = partial(classes.Runs.clean, context._jsc, silent)
        with SparkJob(context, "bigdl", "cleaning", "engine bigdl: cleaning", clean):
            pass
