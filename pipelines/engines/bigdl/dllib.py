"""Training by dllib's DistriOptimizer: a few Spark jobs for each step, gradients in its blocks.

dllib computes forward and backward passes on the executors, and sums gradients slice by slice
through Spark's block manager: each worker updates its slice of the weights, and all fetch the
others'. Ours are the order of the granules, AdamW on a slice, checkpoints, metrics, and the watch
over it all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.encoder.bigdl import Graph, flattened, set_weights
from pipelines.encoder.weights import weight_shapes
from pipelines.engines.bigdl.account import Account, OnStep, is_kept
from pipelines.engines.bigdl.feeding import PART_TOKENS, Part, part_bytes, parts_of, replicas
from pipelines.engines.bigdl.graph import training_graph
from pipelines.engines.bigdl.sizes import SizesParam
from pipelines.engines.bigdl.states import States, states_in
from pipelines.engines.bigdl.watch import Places, told
from pipelines.engines.jobs import SparkJob
from pipelines.errors import EngineError
from pipelines.training.checkpoint import Checkpoint, load_checkpoint
from pipelines.training.ledger import Ledger
from pipelines.training.run import TrainingOutcome, TrainingRun
from pipelines.training.schedule import learning_rate

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.05
# Of dllib, as Spark tells where an RDD was made.
_SOURCES = ("DistriOptimizer.scala", "FeatureSet.scala", "AllReduceParameter.scala")


@dataclass(frozen=True)
class _Trainer:
    """What all parts of a run share; see :func:`train_with_dllib`."""

    context: SparkContext
    run: TrainingRun
    graph: Graph
    criterion: Any
    states: States
    account: Account


def train_with_dllib(
    session: SparkSession,
    run: TrainingRun,
    on_metrics: Callable[[dict[str, Any]], None],
    on_step: OnStep,
) -> TrainingOutcome:
    """A run from first to last. Runs on the driver.

    Args:
        session: With dllib on its class paths.
        run: What to train.
        on_metrics: Called with each metrics line.
        on_step: Called with dllib's times of each step.

    Raises:
        EngineError: The run failed; no job of it is left.
    """
    context, training = session.sparkContext, run.config.training
    state = load_checkpoint(run.run_folder, run.first_step)
    graph, criterion = training_graph(context, state.spec, run)
    graph.classes.Runs.workers(training.workers, replicas(training))
    ledger = Ledger(run, training.workers, on_metrics)
    with states_in(run.run_folder, training.workers) as states:
        account = Account(run, graph, states, ledger, on_step)
        trainer = _Trainer(context, run, graph, criterion, states, account)
        for part in parts_of(run, PART_TOKENS):
            state = _train_part(trainer, part, state)
    return ledger.outcome()


def _train_part(trainer: _Trainer, part: Part, state: Checkpoint) -> Checkpoint:
    """Makes the steps of a part; returns the state after the last."""
    context, run, graph = trainer.context, trainer.run, trainer.graph
    places = Places(context, graph.classes, run.config.training)
    sizes = context.accumulator({}, SizesParam())
    with _forgotten(graph, context):
        asked = time.monotonic()
        data = graph.classes.Runs.data(part_bytes(context, run, part, sizes))
        _read(context, places, data)
        set_weights(graph, flattened(graph, state.weights))
        optimizer = _optimizer(trainer, part, state, data)
        progress = graph.classes.Progress(part.last - part.first, optimizer.metrics())
        optimizer.setEndWhen(progress)
        trainer.account.begin(part, sizes.value, time.monotonic() - asked)
        # Spark's registry of accumulators keeps this one, but no longer what it has found.
        sizes.value = {}
        with _job(context, places, "training", optimizer.optimize) as job, _stopped(progress):
            last = _watch(trainer, part, job, places, progress)
            # The next part's graph is this one's.
            _await(job, places.training.stall_seconds, "dllib has not given the weights back")
            return last


def _read(context: SparkContext, places: Places, data: Any) -> None:
    """Has the executors read their granules.

    Raises:
        EngineError: They cannot, or take too long.
    """
    seconds = places.training.stall_seconds
    with _job(context, places, "reading the lanes", data.size) as job:
        _await(job, seconds, "the lanes were not read")


def _await(job: SparkJob, seconds: float, what: str) -> None:
    """Waits for the end of a job.

    Raises:
        EngineError: It has failed, or takes too long.
    """
    job.join(seconds)
    if job.is_alive():
        raise EngineError("bigdl", f"{what} within training.stall_seconds ({seconds:.0f} s)")
    if (failure := job.failure()) is not None:
        raise failure


def _optimizer(trainer: _Trainer, part: Part, state: Checkpoint, data: Any) -> Any:
    """Dllib's optimiser of a part."""
    run, graph, training = trainer.run, trainer.graph, trainer.run.config.training
    steps = range(part.first, part.last)
    rates = [learning_rate(step, run.last_step, training) for step in steps]
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
    trainer: _Trainer, part: Part, job: SparkJob, places: Places, progress: Any
) -> Checkpoint:
    """Waits until all steps of a part are made; returns the state after the last.

    Raises:
        EngineError: A worker is lost, the job has failed, or a step takes too long.
    """
    training, moved, limit = places.training, time.monotonic(), "start_seconds"
    while True:
        for times in told(progress.take()):
            moved, limit = time.monotonic(), "stall_seconds"
            if times.steps == 0:
                places.find()
                continue
            try:
                state = trainer.account.enter(times)
            except FloatingPointError as error:
                # Of the mean of all workers, for which the first stands.
                cause = f"{type(error).__name__}: {error}"
                raise EngineError("bigdl", cause, **places.place(0)) from error
            if state is not None and state.step == part.last:
                return state
        if (failure := job.failure()) is not None:
            raise failure
        places.check()
        seconds = getattr(training, limit)
        if time.monotonic() - moved > seconds:
            raise EngineError(
                "bigdl", f"no step was finished within training.{limit} ({seconds} s)"
            )
        time.sleep(POLL_SECONDS)


def _job(context: SparkContext, places: Places, name: str, act: Callable[[], Any]) -> SparkJob:
    """A job of dllib's, whose errors say where they come from."""

    def guarded() -> None:
        try:
            act()
        except Exception as error:
            raise places.error(error) from error

    return SparkJob(context, "bigdl", name, f"engine bigdl: {name}", guarded)


@contextmanager
def _stopped(progress: Any) -> Iterator[None]:
    """Ends dllib's loop, which begins new jobs whatever becomes of the last."""
    try:
        yield
    finally:
        progress.stop()


@contextmanager
def _forgotten(graph: Graph, context: SparkContext) -> Iterator[None]:
    """Frees what dllib has left in the executors meanwhile, also where a run has failed."""
    before = set(context._jsc.getPersistentRDDs())
    try:
        yield
    finally:
        for number, rdd in dict(context._jsc.getPersistentRDDs()).items():
            made_at = str(rdd.rdd().getCreationSite())
            if number not in before and any(source in made_at for source in _SOURCES):
                rdd.unpersist()
        # Called off if it takes too long, and no more than a warning: the run's own error counts.
        clean = partial(graph.classes.Runs.clean, context._jsc)
        with SparkJob(context, "bigdl", "cleaning", "engine bigdl: cleaning", clean):
            pass
